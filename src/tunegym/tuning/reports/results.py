"""Results as a user reads them back: from the journal, never from a view."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tunegym.core.errors import StoreError, TunegymError
from tunegym.tuning.model.objective import Objective, from_dict
from tunegym.tuning.model.outcome import Measured
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.reports.best import Best, Setting, best_of
from tunegym.tuning.stores import reader

if TYPE_CHECKING:
    import pandas as pd

SCENARIO = "scenario.toml"
_EDITED = "it was changed after the run had started: undo that"


@dataclass(frozen=True)
class ExperimentResults:
    """One experiment's trials. Reading while a run writes is fine: one sees what was written so far.

    Attributes:
        live: whether it has steps and episodes instead; then it is a ``LiveResults``.
    """

    live: ClassVar[bool] = False
    name: str
    folder: Path

    @property
    def path(self) -> Path:
        """The journal."""
        return self.folder / reader.JOURNAL

    @cached_property
    def journal(self) -> reader.Journal:
        """The journal's bookkeeping, as of the first look at it."""
        return reader.scan(self.path) if self.path.exists() else reader.Journal()

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """Every closed trial by number, as of the first look at it."""
        return tuple(sorted(self, key=lambda trial: trial.number))

    def __iter__(self) -> Iterator[Trial]:
        """Every closed trial in the order of closing, without holding them all."""
        if self.path.exists():
            yield from (trial for _, trial in reader.trials(self.path))

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

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """What is better, by metric; empty where the reward alone says so."""
        return tuple(from_dict(document) for document in (self.journal.head or {}).get("objectives", ()))

    @cached_property
    def _best(self) -> Best:
        return best_of(self, self.objectives)

    def to_pandas(self) -> pd.DataFrame:
        """One row per trial: the columns of ``trajectory.csv``, then every other metric, the spreads and the reason."""
        try:
            import pandas as pd
        except ModuleNotFoundError as error:
            raise TunegymError("to_pandas needs pandas", hint="pip install 'tunegym[pandas]'") from error
        rows = [row(trial) for trial in self.trials]
        found = (name for cells in rows for name in cells)
        return pd.DataFrame(rows, columns=list(dict.fromkeys([*self._columns(), *found])))

    def _columns(self) -> list[str]:
        """Those of ``trajectory.csv``, which are there whatever became of the trials."""
        head = self.journal.head or {"knobs": {}, "env_params": {}, "metrics": []}
        named = {"action": head["knobs"], "context": head["env_params"], "observation": head["metrics"]}
        columns = [f"{kind}.{name}" for kind, names in named.items() for name in names]
        return ["step", "status", "cached", "reward", *columns, "duration_s"]


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


@dataclass(frozen=True)
class Results:
    """One run's results folder; a live experiment's results are ``LiveResults``."""

    folder: Path
    scenario: Mapping[str, Any]
    experiments: Mapping[str, ExperimentResults]

    def declared(self, name: str) -> Mapping[str, Any]:
        """What the scenario says of an experiment."""
        return next(one for one in self.scenario["experiments"] if str(one["name"]) == name)


def load(folder: str | Path) -> Results:
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
    return Results(run, scenario, {name: _experiment(name, run / name, one) for name, one in declared.items()})


def _experiment(name: str, folder: Path, declared: Mapping[str, Any]) -> ExperimentResults:
    """Live or not: the journal knows, and before there is one the scenario does."""
    head = None
    with contextlib.suppress(OSError, StoreError):  # a broken one is told of by whoever reads it
        head = reader.head_of(folder / reader.JOURNAL)
    live = _declared_live(declared) if head is None else bool(head.get("live"))
    if not live:
        return ExperimentResults(name, folder)
    from tunegym.tuning.reports.live_results import LiveResults  # which is made of ours

    return LiveResults(name, folder)


def _declared_live(declared: Mapping[str, Any]) -> bool:
    arguments = declared.get("cmd_args")
    mode = arguments.get("live_rl_mode") if isinstance(arguments, Mapping) else None
    return declared.get("workload") == "live" or mode is True


def _is_run(folder: Path) -> bool:
    """Whether ``folder`` holds a resolved scenario, which names its ``scenario_dir``, and not just a user's own."""
    try:
        return "scenario_dir" in tomllib.loads((folder / SCENARIO).read_text(encoding="utf-8"))
    except OSError:
        return False
    except ValueError:  # whoever reads it says what is wrong
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
