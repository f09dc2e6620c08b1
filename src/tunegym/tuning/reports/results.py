"""Results as a user reads them back: from the journal, never from a view.

``load`` gives a run's results. An experiment of each kind has its own class, ``TrialResults`` here and
``live.LiveResults``; both are ``ports.Results``. A journal is parsed once, at the first look at it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tunegym.core.errors import ActionError, ConfigError, Problem, StoreError, TunegymError
from tunegym.core.files import dump_toml, write_atomic
from tunegym.core.text import closest
from tunegym.tuning.agents import policies
from tunegym.tuning.answers.contexts import domain, domains_of
from tunegym.tuning.answers.ranking import Best, Measurements, Setting, best_among
from tunegym.tuning.answers.recommendation import PolicyTable, Recommendation, Recommender
from tunegym.tuning.model.scenario import Objective
from tunegym.tuning.model.space import Space, nested
from tunegym.tuning.model.summary import Counts, Summary
from tunegym.tuning.model.trial import Measured, Trial
from tunegym.tuning.model.values import spelled, spelled_pairs
from tunegym.tuning.reports import charts, summary
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.journal import living_writer

if TYPE_CHECKING:
    import pandas as pd

    from tunegym.tuning.reports.live import LiveResults

SCENARIO = "scenario.toml"
BEST = "best.toml"
_EDITED = "it was changed after the run had started: undo that"


@dataclass(frozen=True)
class JournalResults:
    """The part that the results of both kinds share.

    Attributes:
        name: the experiment.
        folder: its results.
        declared: what the scenario says of it.
    """

    name: str
    folder: Path
    declared: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def path(self) -> Path:
        """The journal."""
        return self.folder / reader.JOURNAL

    @cached_property
    def _read(self) -> tuple[reader.Journal, Any]:
        raise NotImplementedError

    @property
    def journal(self) -> reader.Journal:
        """The journal's bookkeeping, as of the first look at it."""
        return self._read[0]

    @property
    def head(self) -> Mapping[str, Any]:
        """The journal's first record; empty before there is one."""
        return self.journal.head or {}

    @property
    def state(self) -> str:
        """``not started``, ``running``, ``finished`` or ``interrupted``."""
        if self.journal.head is None:
            return "not started"
        if living_writer(self.folder) is not None:
            return "running"
        return "finished" if self.journal.ended is not None else "interrupted"

    @property
    def ended(self) -> str | None:
        """Why the experiment ended; None if it was cut off or still runs."""
        return self.journal.ended["reason"] if self.journal.ended is not None else None


@dataclass(frozen=True)
class TrialResults(JournalResults):
    """One experiment's trials. Reading while a run writes is fine: you see what was written until the first look."""

    @cached_property
    def _read(self) -> tuple[reader.Journal, tuple[reader.ClosedTrial, ...]]:
        journal = reader.Reader(self.path)
        closed = tuple(one for one in journal.read(last=True) if isinstance(one, reader.ClosedTrial))
        return journal.journal, closed

    @cached_property
    def times(self) -> Mapping[int, float]:
        """Seconds from the experiment's start to each trial's close; time between sessions doesn't count."""
        return {one.trial.number: one.elapsed_s for one in self._read[1]}

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """Every closed trial by number."""
        return tuple(sorted(self, key=lambda trial: trial.number))

    def __iter__(self) -> Iterator[Trial]:
        """Every closed trial in the order of closing."""
        return (one.trial for one in self._read[1])

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """Which way each metric is better; empty where the reward alone says so."""
        return tuple(Objective(**document) for document in self.head.get("objectives", ()))

    @cached_property
    def measurements(self) -> Measurements:
        """The trials by action and context."""
        return Measurements(self, self.objectives)

    @cached_property
    def _best(self) -> Best:
        return best_among(self.measurements)

    @property
    def best(self) -> Setting | None:
        """The best setting over all, as in ``best.toml``; None if nothing was measured."""
        return self._best.overall

    @property
    def best_per_context(self) -> tuple[Setting, ...]:
        """The best setting in each context, where there are several and not too many."""
        return self._best.per_context

    @property
    def pareto(self) -> tuple[Setting, ...]:
        """With several objectives the settings of which none is better than another in every respect; else empty."""
        return self._best.pareto

    def write_best(self, fixed: Mapping[str, Any]) -> None:
        """Write ``best.toml``: the settings with the fixed parameters beside them, ready to use."""
        document = self._best.as_dict()
        for setting in [*([document["best"]] if "best" in document else []), *document.get("pareto", [])]:
            if fixed:
                setting["fixed"] = nested(fixed)
        write_atomic(self.folder / BEST, dump_toml(document))

    def policy_choices(self) -> PolicyTable | None:
        """The choices of the agent's saved policy in each context; None if there is no policy.

        Raises:
            StoreError: it can't be read, or belongs to other knobs or env_params.
        """
        table = policies.load(self.folder)
        if table is None or not self.head:
            return None
        knobs = Space({name: domain(spec) for name, spec in self.head["knobs"].items()})
        drawn = Space(domains_of(self.head))
        choices = []
        for one in table.choices:
            try:
                choices.append(replace(one, action=knobs.accept(one.action), context=drawn.accept(one.context)))
            except ActionError as error:
                place = self.folder / policies.FOLDER / policies.FILE
                told = f"{spelled_pairs(one.action)} at {spelled_pairs(one.context) or '{}'}"
                raise StoreError(
                    f"{place} doesn't belong to this journal: it has {told}",
                    hint="resume the run, and it is written again",
                ) from error
        return replace(table, choices=tuple(choices))

    def recommend(self, context: Mapping[str, Any]) -> Recommendation:
        """The settings to use; see ``tunegym.recommend``."""
        policy: PolicyTable | str | None
        try:
            policy = self.policy_choices()
        except StoreError as error:
            policy = error.message + (f" ({error.hint})" if error.hint else "")
        return Recommender(self.name, tuple(self), self.head, self.declared, policy).recommend(context)

    # what is shown ------------------------------------------------------------------------------------

    def counts(self, total: int | None = None) -> Counts:
        """How far the experiment is; ``total`` is how many trials it has at most, if that is known."""
        return summary.counts_of(self, total)

    def summary(self, total: int | None = None) -> Summary:
        """What the experiment found."""
        return summary.summarise(self, {**self._facts, "trials": {**self._facts["trials"], "total": total}})

    @cached_property
    def _facts(self) -> dict[str, Any]:
        return summary.facts_of(self)

    def charts(self, command: Callable[[Trial], str | None] | None = None, share: float = 1.0) -> dict[str, Any]:
        """Plain data that ``report.html`` plots.

        Args:
            command: what a trial ran; None where that can't be told.
            share: this experiment's part of what a page can hold.
        """
        return {**charts.charts_of(self, command, share), "labels": charts.setting_labels(self._facts)}

    def compared(self) -> tuple[dict[str, Any], dict[str, str]]:
        """The experiment among others: plain data, and the cells of a table by column."""
        return summary.compared(self, self._facts)

    def to_pandas(self) -> pd.DataFrame:
        """One row per trial: the columns of ``trajectory.csv``, then every other metric, the spreads and the reason."""
        need_pandas()
        import pandas as pd

        rows = [row(trial) for trial in self.trials]
        found = (name for cells in rows for name in cells)
        return pd.DataFrame(rows, columns=list(dict.fromkeys([*self._columns(), *found])))

    def _columns(self) -> list[str]:
        """Those of ``trajectory.csv``, which are there however the trials ended."""
        named = {"action": "knobs", "context": "env_params", "observation": "metrics"}
        columns = [f"{kind}.{name}" for kind, key in named.items() for name in self.head.get(key, ())]
        return ["step", "status", "cached", "reward", *columns, "duration_s"]


def need_pandas() -> None:
    """Say how pandas is installed, where it isn't."""
    if importlib.util.find_spec("pandas") is None:
        raise TunegymError("to_pandas needs pandas", hint="pip install 'tunegym[pandas]'")


def row(trial: Trial) -> dict[str, Any]:
    """A trial as flat, named cells."""
    cells: dict[str, Any] = {
        "step": trial.number,
        "status": trial.status,
        "cached": trial.cached_from is not None,
        "reward": trial.reward,
    }
    cells |= {f"action.{name}": value for name, value in trial.action.items()}
    cells |= {f"context.{name}": value for name, value in trial.context.items()}
    if isinstance(trial.outcome, Measured):
        cells |= {f"observation.{name}": value for name, value in trial.metrics.items()}
        if len(trial.outcome.samples) > 1:
            cells |= {f"spread.{name}": value for name, value in trial.outcome.spread().items()}
    return cells | {"duration_s": trial.duration_s, "reason": trial.reason}


AnyResults: TypeAlias = "TrialResults | LiveResults"


@dataclass(frozen=True)
class RunResults:
    """One run's results folder."""

    folder: Path
    scenario: Mapping[str, Any]
    experiments: Mapping[str, AnyResults]


def load(folder: str | Path) -> RunResults:
    """The results in ``folder``: a run's own folder, or one that holds exactly one run somewhere below.

    Raises:
        StoreError: there is no run, or there are several; it lists them.
    """
    run = find_run(Path(folder))
    try:
        scenario = tomllib.loads((run / SCENARIO).read_text(encoding="utf-8"))
        declared = {str(experiment["name"]): experiment for experiment in scenario["experiments"]}
    except (OSError, ValueError) as error:
        raise StoreError(f"{run / SCENARIO} can't be read: {error}", hint=_EDITED) from error
    except (KeyError, TypeError) as error:
        raise StoreError(f"{run / SCENARIO} is no scenario: its experiments have no names", hint=_EDITED) from error
    return RunResults(run, scenario, {name: open_results(name, run / name, one) for name, one in declared.items()})


def open_results(name: str, folder: Path, declared: Mapping[str, Any]) -> AnyResults:
    """The results of an experiment of either kind: its journal knows which; before there is one, the scenario does."""
    head = None
    with contextlib.suppress(OSError, StoreError):  # a broken journal is reported when it is read
        head = reader.head_of(folder / reader.JOURNAL)
    arguments = declared.get("cmd_args")
    mode = arguments.get("live_rl_mode") if isinstance(arguments, Mapping) else None
    if bool(head.get("live")) if head is not None else declared.get("workload") == "live" or mode is True:
        from tunegym.tuning.reports.live import LiveResults

        return LiveResults(name, folder, declared)
    return TrialResults(name, folder, declared)


def _is_run(folder: Path) -> bool:
    """Whether ``folder`` holds a resolved scenario, which names its ``scenario_dir``, and not just a user's own."""
    try:
        return "scenario_dir" in tomllib.loads((folder / SCENARIO).read_text(encoding="utf-8"))
    except OSError:
        return False
    except ValueError:  # the error is reported when it is read
        return True


def find_run(folder: Path) -> Path:
    """The one run's folder at or below ``folder``."""
    if _is_run(folder):
        return folder
    if (folder / reader.JOURNAL).is_file() and (folder.parent / SCENARIO).is_file():
        return folder.parent
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder", hint="give the results folder that the run printed")
    found = sorted({*folder.glob(f"*/{SCENARIO}"), *folder.glob(f"*/*/{SCENARIO}")})
    runs = [path.parent for path in found if _is_run(path.parent)]
    if not runs:
        raise StoreError(f"{folder} holds no results", hint="give the results folder that the run printed")
    if len(runs) > 1:
        listed = "\n".join(f"  {run}" for run in runs[-10:])
        raise StoreError(f"{folder} holds {len(runs)} runs; the latest are:\n{listed}", hint="give one of them")
    return runs[0]


def recommend(
    folder: str | Path, context: Mapping[str, Any] | None = None, experiment: str | None = None
) -> Recommendation:
    """The settings to use, over all contexts or in the one that ``context`` describes, wholly or in part.

    Args:
        folder: a run's results.
        context: values of env_params by address.
        experiment: which one; may be left out when there is only one.

    Raises:
        ConfigError: no such experiment, or a context that the run could not have drawn.
        StoreError: there are no results, nothing was measured, or the experiment is live: it has a policy and no
            settings. The message says where the policy is and how it is used.
    """
    return _chosen(load(folder).experiments, experiment, Path(folder)).recommend(context or {})


def _chosen(experiments: Mapping[str, AnyResults], name: str | None, folder: Path) -> AnyResults:
    """The experiment that is asked about: by name, by its own folder, or the only one."""
    if name is None and len(experiments) == 1:
        return next(iter(experiments.values()))
    if name is None and folder.name in experiments and (folder / reader.JOURNAL).is_file():
        return experiments[folder.name]
    if name is not None and name in experiments:
        return experiments[name]
    match = closest(name, experiments) if name is not None else None
    what = "there is no such experiment" if name is not None else "which experiment? the run has several"
    hint = f"did you mean {match}?" if match is not None else "give one of these"
    found = spelled(name) if name is not None else None
    raise ConfigError("--experiment", [Problem("", what, found, ", ".join(experiments), hint)])
