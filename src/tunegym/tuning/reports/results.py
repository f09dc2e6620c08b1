"""Results as a user reads them back: from the journal, never from a view.

``load`` gives a run's results. An experiment of each kind has its own class, ``trials.TrialResults`` and
``live.LiveResults``. Both extend ``Results``, which makes the counts, the summary and the comparison of what
each kind has to say. A journal is parsed once, at the first look at it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import tomllib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from tunegym.core.errors import ConfigError, Problem, StoreError, TunegymError
from tunegym.core.text import did_you_mean, escaped
from tunegym.tuning.model.head import Head
from tunegym.tuning.model.summary import Counts, Summary, Table
from tunegym.tuning.model.values import counted, masked, number, spelled
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.journal import living_writer

if TYPE_CHECKING:
    import pandas as pd

    from tunegym.tuning.inference.recommendation import Recommendation

logger = logging.getLogger(__name__)

SCENARIO = "scenario.toml"
RESULTS = "results"  # the folder of runs, unless one is named
MOST_REASONS = 50
_EDITED = "it was changed after the run had started: undo that"


@dataclass(frozen=True)
class Results(ABC):
    """The results of one experiment. Reading while a run writes is fine: you see the state of the first look."""

    name: str  # the experiment
    folder: Path  # its results
    declared: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)  # what the scenario says of it
    scenario_dir: str = field(default="", repr=False, compare=False)  # the scenario's own folder

    unit: ClassVar[str]
    """``trial`` or ``step``."""

    @property
    def path(self) -> Path:
        """The journal."""
        return self.folder / reader.JOURNAL

    @cached_property
    def _read(self) -> tuple[reader.Journal, Any]:
        """The journal's bookkeeping, and what the kind takes from its entries. Damaged lines are left out and told."""
        journal = reader.Reader(self.path, tolerant=True)
        found, past = self._take(journal), journal.journal
        for damage in past.damage:
            logger.warning("%s", damage)
        return past, found

    @property
    def journal(self) -> reader.Journal:
        """The journal's bookkeeping."""
        return self._read[0]

    @property
    def head(self) -> Head:
        """The journal's first record; one without knobs and metrics before there is one."""
        return self.journal.head or Head(experiment=self.name, run="")

    @property
    def state(self) -> str:
        """``not started``, ``running``, ``finished``, ``failed`` (code not 0), ``interrupted`` or ``unreadable``."""
        if self.journal.head is None and not self.journal.sessions:
            return "unreadable" if self.journal.damage else "not started"
        if living_writer(self.folder) is not None:
            return "running"
        return "interrupted" if self.code is None else "failed" if self.code else "finished"

    @property
    def ended(self) -> str | None:
        """Why the experiment ended; None if it was cut off or still runs."""
        return self.journal.ended.reason if self.journal.ended is not None else None

    @property
    def code(self) -> int | None:
        """The exit code that it ended with; None if it was cut off or still runs."""
        return self.journal.ended.code if self.journal.ended is not None else None

    # the part of each kind ----------------------------------------------------------------------------

    @abstractmethod
    def _take(self, journal: reader.Reader) -> Any:
        """Read the whole journal; what the kind takes from its entries."""

    @property
    @abstractmethod
    def statuses(self) -> Counter[str]:
        """Trials or steps by status."""

    @abstractmethod
    def recommend(self, context: Mapping[str, Any]) -> Recommendation:
        """The settings to use; see ``tunegym.recommend``."""

    @abstractmethod
    def write_best(self, fixed: Mapping[str, Any]) -> None:
        """Write ``best.toml``, with the fixed parameters in it, if the kind has settings."""

    @abstractmethod
    def charts(self, fixed: Mapping[str, Any], share: float = 1.0) -> dict[str, Any]:
        """Plain data that ``report.html`` plots: ``fixed`` completes commands, ``share`` is its part of a page."""

    @abstractmethod
    def to_pandas(self) -> pd.DataFrame:
        """One row per trial or recorded step."""

    @abstractmethod
    def _counts(self) -> tuple[dict[str, Any], dict[str, str], tuple[str, ...]]:
        """More facts and cells of ``counts``, and notes to print."""

    @abstractmethod
    def _findings(self) -> tuple[Counter[tuple[str, str]], dict[str, Any], dict[str, Any]]:
        """Why some were not measured, by status and reason; more facts about time; more facts of ``summary``."""

    @abstractmethod
    def _printed(self) -> tuple[Table | None, list[str], str]:
        """The table and the lines at the end of a run, and the file that has all reasons."""

    @abstractmethod
    def _entry(self, peers: Sequence[Results]) -> tuple[dict[str, Any], dict[str, str]]:
        """More facts of ``compared``, and all its cells."""

    # the part of both ---------------------------------------------------------------------------------

    @property
    def _done(self) -> int:
        return self.statuses.total()

    def counts(self, total: int | None = None) -> Counts:
        """How far the experiment is; ``total`` is how many trials or steps it has at most, if that is known."""
        more, cells, notes = self._counts()
        done = self._done
        facts = {
            "name": self.name,
            "state": self.state,
            "total": total,
            "done": done,
            "open": len(self.journal.open),
            "statuses": dict(self.statuses),
            "cached": 0,
            "best": None,
            "elapsed_s": self.journal.elapsed_s,
            "ended": self.ended,
            "code": self.code,
            "problem": self._problem(),
            "damage": self.journal.damage,
            "live": None,
            **more,
        }
        if facts["latest_failure"] is not None:
            facts["latest_failure"] = masked(facts["latest_failure"])
            notes = (*notes, f"{escaped(self.name)}: latest failure: {escaped(facts['latest_failure'])}")
        shown = f"{number(done)}/{number(total)}" if total is not None else number(done)
        row = {"experiment": escaped(self.name), "state": self.state}
        row |= {"done" if self.unit == "trial" else "steps": shown, **cells}
        if facts["problem"] is not None:
            notes = (*notes, f"{escaped(self.name)}: {escaped(facts['problem'])}")
        return Counts(self.unit, facts, row, notes)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What the experiment found, as plain data."""
        head, sessions = self.head, self.journal.sessions
        reasons, time, findings = self._findings()
        return {
            "name": self.name,
            "live": self.unit == "step",
            "state": self.state,
            "problem": self._problem(),
            "ended": self.ended,
            "code": self.code,
            "damage": self.journal.damage,
            "agent": head.agent,
            "seed": head.seed,
            "metrics": head.metrics,
            "reasons": _most_common(reasons),
            "time": {
                "wall_s": self.journal.elapsed_s,
                **time,
                "sessions": len(sessions),
                "hosts": list(dict.fromkeys(session.host for session in sessions)),
                "started_at": sessions[0].at if sessions else None,
                "slots": sessions[-1].slots if sessions else None,
            },
            **findings,
        }

    def summary(self, total: int | None = None) -> Summary:
        """What the experiment found: what the terminal, the report and ``--json`` render."""
        table, lines, where = self._printed()
        reasons, units = self.facts["reasons"], f"{self.unit}s"
        lines += [f"  {number(one['count'])} x {one['status']}: {escaped(one['reason'])}" for one in reasons[:3]]
        if len(reasons) > 3:
            lines.append(f"  and {counted(len(reasons) - 3, 'more reason')}: see {where} and journal.jsonl")
        facts = {**self.facts, units: {"total": total, **self.facts[units]}}
        return Summary(facts, table, tuple(lines))

    def compared(self, peers: Sequence[Results]) -> tuple[dict[str, Any], dict[str, str]]:
        """The experiment among its ``peers``: plain data, and the cells of a table by column."""
        more, cells = self._entry(peers)
        entry = {
            "experiment": self.name,
            "state": self.state,
            "agent": self.head.agent,
            "trials": self._done,
            "measured": self.statuses["measured"],
            "best": None,
            "total_s": self.journal.elapsed_s,
            "metrics": self.head.metrics,
            "objectives": [],
            "goals": {},
            "reward": self.head.reward,
            "knobs": {},
            "env_params": msgspec.to_builtins(self.head.env_params),
            "spaces": None,
            "baseline": None,
            "over_contexts": self.head.over_contexts,
            "contexts": [],
            "live": None,
        }
        return entry | more, cells

    def _problem(self) -> str | None:
        """The reason why it is no success; None if it is one, and while it may still become one."""
        some = any(self.statuses.values())
        if self.state in ("not started", "running"):
            return None
        if some and not self.statuses["measured"]:
            return f"none of its {self.unit}s was measured"
        if self.code is not None and not some:
            return "it made no trial" if self.unit == "trial" else "it took no step"
        return f"it ended with code {self.code} ({self.ended})" if self.code else None


def _most_common(reasons: Counter[tuple[str, str]]) -> list[dict[str, Any]]:
    """Statuses and reasons with their counts, the most common first; the rest together."""
    shown = [
        {"status": status, "reason": masked(reason), "count": count}
        for (status, reason), count in reasons.most_common(MOST_REASONS)
    ]
    rest = reasons.total() - sum(one["count"] for one in shown)
    return [*shown, {"status": "", "reason": "other reasons", "count": rest}] if rest else shown


def need_pandas() -> None:
    """Say how pandas is installed, where it isn't."""
    if importlib.util.find_spec("pandas") is None:
        raise TunegymError("to_pandas needs pandas", hint="pip install 'tunegym[pandas]'")


# runs -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunResults:
    """One run's results folder."""

    folder: Path
    scenario: Mapping[str, Any]
    experiments: Mapping[str, Results]


def load(folder: str | Path = RESULTS) -> RunResults:
    """The results of a run, or of the newest run in a folder. Raises ``StoreError`` if there is none."""
    run = find_run(Path(folder))
    try:
        scenario = tomllib.loads((run / SCENARIO).read_text(encoding="utf-8"))
        declared = {str(experiment["name"]): experiment for experiment in scenario["experiments"]}
    except (OSError, ValueError) as error:
        raise StoreError(f"{run / SCENARIO} can't be read: {error}", hint=_EDITED) from error
    except (KeyError, TypeError) as error:
        raise StoreError(f"{run / SCENARIO} is no scenario: its experiments have no names", hint=_EDITED) from error
    place = str(scenario.get("scenario_dir", ""))
    return RunResults(run, scenario, {name: _open(name, run / name, one, place) for name, one in declared.items()})


def _open(name: str, folder: Path, declared: Mapping[str, Any], scenario_dir: str) -> Results:
    """The results of an experiment of either kind: its journal knows which; before there is one, the scenario does."""
    from tunegym.tuning.reports.live import LiveResults
    from tunegym.tuning.reports.trials import TrialResults

    head = None
    with contextlib.suppress(OSError, StoreError):  # a broken journal is reported when it is read
        head = reader.head_of(folder / reader.JOURNAL)
    arguments = declared.get("cmd_args")
    mode = arguments.get("live_rl_mode") if isinstance(arguments, Mapping) else None
    live = head.live is not None if head is not None else declared.get("workload") == "live" or mode is True
    return (LiveResults if live else TrialResults)(name, folder, declared, scenario_dir)


def _is_run(folder: Path) -> bool:
    """Whether ``folder`` holds a resolved scenario, which names its ``scenario_dir``, and not just a user's own."""
    try:
        return "scenario_dir" in tomllib.loads((folder / SCENARIO).read_text(encoding="utf-8"))
    except OSError:
        return False
    except ValueError:  # the error is reported when it is read
        return True


def find_run(folder: Path) -> Path:
    """The run that a path means: of several the newest. Raises ``StoreError``."""
    return find_runs(folder)[-1]


def find_runs(folder: Path) -> list[Path]:
    """The runs that a path means, the newest last: a run, an experiment's folder in one, or a folder of runs."""
    if _is_run(folder):
        return [folder]
    if (folder / reader.JOURNAL).is_file() and (folder.parent / SCENARIO).is_file():
        return [folder.parent]
    found = {*folder.glob(f"*/{SCENARIO}"), *folder.glob(f"*/*/{SCENARIO}")}
    runs = [path.parent for path in found if _is_run(path.parent)]
    if not runs:
        what = f"{folder} {'holds no results' if folder.is_dir() else 'is not a folder'}"
        raise StoreError(what, hint="give the folder that the run printed, or run a scenario: tunegym run SCENARIO")
    return sorted(runs, key=lambda run: (started_at(run), run))


def started_at(run: Path) -> float:
    """When a run began: by its journals, which a copy leaves as they are; without one, by its scenario's file."""
    with contextlib.suppress(OSError, StoreError, ValueError):
        heads = map(reader.head_of, run.glob(f"*/{reader.JOURNAL}"))
        return min(head.at for head in heads if head is not None)
    return (run / SCENARIO).stat().st_mtime


def recommend(
    folder: str | Path = RESULTS, context: Mapping[str, Any] | None = None, experiment: str | None = None
) -> Recommendation:
    """The settings to use, over all contexts or in the one that ``context`` describes, wholly or in part.

    Args:
        folder: a run's results, or a folder of runs: the newest.
        context: values of env_params by address.
        experiment: which one; may be left out when there is only one.

    Raises:
        ConfigError: no such experiment, or a context that the run could not have drawn.
        StoreError: there are no results, nothing was measured, or the experiment is live: it has a policy and no
            settings. The message says where the policy is and how it is used.
    """
    return chosen(folder, experiment).recommend(context or {})


def chosen(folder: str | Path, name: str | None) -> Results:
    """The experiment of a run that is asked about: by name, by its own folder, or the only one."""
    folder, experiments = Path(folder), load(folder).experiments
    if name is None and len(experiments) == 1:
        return next(iter(experiments.values()))
    if name is None and folder.name in experiments and (folder / reader.JOURNAL).is_file():
        return experiments[folder.name]
    if name is not None and name in experiments:
        return experiments[name]
    what = "there is no such experiment" if name is not None else "which experiment? the run has several"
    hint = did_you_mean(name or "", experiments, "give one of these")
    found = spelled(name) if name is not None else None
    raise ConfigError("--experiment", [Problem("", what, found, ", ".join(experiments), hint)])
