"""Runs written straight into their files, for reports to read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests import heads

from tunegym.core.files import dump_toml
from tunegym.tuning.model.trial import Measured, Outcome, Trial
from tunegym.tuning.model.values import exact_key
from tunegym.tuning.reports.results import RunResults, load
from tunegym.tuning.stores.records import ENCODER, CloseRecord, EndRecord, OpenRecord, Record, SessionRecord


def trial(number: int, x: Any, reward: float, outcome: Outcome | None = None, **more: Any) -> Trial:
    """A trial of the setting ``x``, measured unless told otherwise; its metric ``m`` is the reward."""
    context, took = more.pop("context", {}), more.pop("took", 1.0)
    return Trial(number, context, {"x": x}, outcome or Measured(({"m": reward},)), reward, took, **more)


def write_journal(
    folder: Path, trials: Iterable[Trial], *, ended: str | None = "the agent ended", code: int = 0, **head: Any
) -> None:
    """A journal of closed trials, each a tenth of a second after the one before; knobs are lists of what was tried."""
    at, trials = head.pop("at", 1.7e9), list(trials)
    tried: dict[str, dict[bytes, Any]] = {}
    for trial in trials:
        for name, value in trial.action.items():
            tried.setdefault(name, {})[exact_key({"": value})] = value
    knobs = {name: {"values": list(values.values())} for name, values in tried.items()}
    given: dict[str, Any] = {"agent": "random_search", "knobs": knobs, "env_params": {}, "metrics": ["m"], **head}
    lines: list[Record] = [
        heads.head(experiment=folder.name, at=at, **given),
        SessionRecord("f", at=1.7e9, host="host", boot="boot", pid=1),
    ]
    since = 0.0
    for trial in trials:
        context, action = dict(trial.context), dict(trial.action)
        opened = {"number": trial.number, "context": context, "action": action, "phase": trial.phase}
        lines.append(OpenRecord(at=1.7e9, since=since, **opened))
        since = round(since + 0.1, 6)
        lines.append(CloseRecord.of(trial, 1.7e9, since, opened=True))
    if ended is not None:
        lines.append(EndRecord(at=1.7e9, since=since, code=code, reason=ended))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "journal.jsonl").write_bytes(b"".join(ENCODER.encode(line) + b"\n" for line in lines))


def write_run(folder: Path, journals: Mapping[str, Mapping[str, Any]], *, name: str = "written") -> RunResults:
    """A run's folder with one journal per experiment; ``trials=None`` is one that was not started.

    ``declared`` is what the scenario says of an experiment beside its name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    experiments = [{"name": one, **keys.get("declared", {})} for one, keys in journals.items()]
    scenario = {"name": name, "scenario_dir": str(folder), "experiments": experiments}
    (folder / "scenario.toml").write_text(dump_toml(scenario), encoding="utf-8")
    for one, keys in journals.items():
        if keys["trials"] is not None:
            write_journal(folder / one, **{key: value for key, value in keys.items() if key != "declared"})
    return load(folder)


@pytest.fixture
def runs(tmp_path: Path) -> Callable[..., RunResults]:
    """Write a run of several experiments; see ``write_run``."""

    def write(folder: str, **journals: Mapping[str, Any]) -> RunResults:
        return write_run(tmp_path / folder, journals)

    return write


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., RunResults]:
    """Write a run of one experiment ``e`` from trials and what its journal's head says."""

    def write(trials: Iterable[Trial] | None, folder: str = "run", **keys: Any) -> RunResults:
        return write_run(tmp_path / folder, {"e": {"trials": trials, **keys}})

    return write
