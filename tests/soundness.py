"""Is a results folder sound? What must hold of every run of either kind, whatever was killed meanwhile."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tunegym.app.catalog import Catalog
from tunegym.config.load import load as load_scenario
from tunegym.tuning.model.scenario import Experiment, Recording
from tunegym.tuning.model.trial import Episode
from tunegym.tuning.reports.live import LiveResults
from tunegym.tuning.reports.results import SCENARIO, Results, find_run
from tunegym.tuning.reports.trials import TrialResults
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.reader import ClosedTrial
from tunegym.tuning.stores.records import Lost, OpenRecord, ReserveRecord, Steps
from tunegym.tuning.stores.views import ENV, EPISODES, TRAJECTORY

_Row = tuple[int, str, Mapping[str, Any], int | None]
"""Number, status, context and episode of a step; a lost one has no episode."""


def assert_sound(folder: str | Path, *, complete: bool = True) -> dict[str, Results]:
    """Check every experiment of a run that is not being written; returns their results.

    Every number once and none missing, the contexts that the seed gives, the views row by row as the journal
    says. ``complete`` also asks that nothing is open.
    """
    run = find_run(Path(folder))
    scenario = load_scenario(run / SCENARIO, Catalog())
    checked: dict[str, Results] = {}
    for experiment in scenario.experiments:
        if experiment.live is not None:
            live = LiveResults(experiment.name, run / experiment.name)
            check_live(live, experiment, complete=complete)
            checked[experiment.name] = live
            continue
        results = TrialResults(experiment.name, run / experiment.name)
        _check_numbers(results, complete=complete)
        _check_contexts(results, experiment)
        if complete:
            _check_views(results)
        checked[experiment.name] = results
    return checked


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a journal that is not being written, as they stand in it; without a torn last one."""
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield json.loads(line)


def _check_numbers(results: TrialResults, *, complete: bool) -> None:
    opened, ended = Counter[int](), Counter[int]()
    for entry in reader.entries(results.path):
        if isinstance(entry, OpenRecord):
            opened[entry.number] += 1
        elif isinstance(entry, ClosedTrial):
            ended[entry.trial.number] += 1
    for kind, numbers in {"open": opened, "close": ended}.items():
        twice = sorted(number for number, count in numbers.items() if count > 1)
        assert not twice, f"{results.name}: numbers with more than one {kind} record: {twice}"
    if complete:
        assert not results.journal.open, f"{results.name}: still open: {sorted(results.journal.open)}"
        closed = sorted(ended)
        assert closed == list(range(1, len(closed) + 1)), f"{results.name}: numbers are missing: {closed}"


def _check_contexts(results: TrialResults, experiment: Experiment) -> None:
    planned = [context for context, _ in experiment.env_params.represented()]
    for trial in results:
        drawn = [experiment.env_params.context(trial.number)]
        searches = trial.phase in ("search", "repeat") and experiment.agent != "grid_search"
        expected = drawn if searches or trial.status == "cancelled" else planned
        assert trial.context in expected, f"{results.name}: trial {trial.number} ran under {trial.context}"


def _check_views(results: TrialResults) -> None:
    trajectory, env = (read_rows(results.folder / name) for name in (TRAJECTORY, ENV))
    steps = [row["step"] for row in trajectory]
    assert steps == [str(trial.number) for trial in results.trials], f"{results.name}: {TRAJECTORY} differs"
    assert steps == [row["step"] for row in env], f"{results.name}: {TRAJECTORY} and {ENV} are not aligned"
    for trial, row, drawn in zip(results.trials, trajectory, env, strict=True):
        assert row["status"] == trial.status, f"{results.name}: trial {trial.number} has status {row['status']}"
        assert row["cached"] == ("false" if trial.cached_from is None else "true")
        assert float(row["reward"]) == trial.reward
        assert row["phase"] == drawn["phase"] == trial.phase
        for name in trial.context:
            assert row[f"context.{name}"] == drawn[name], f"{results.name}: trial {trial.number}, {name}"


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a CSV view."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# live ---------------------------------------------------------------------------------------------


def check_live(results: LiveResults, experiment: Experiment, *, complete: bool) -> None:
    """Check a live experiment that is not being written.

    Numbers are used once, and only after they were reserved. None is missing where all are recorded. Contexts are those
    that the seed gives, and every view is row by row what the journal says. ``complete`` also asks that no number is
    reserved and unaccounted for, which a resume sees to.
    """
    assert experiment.live is not None
    recording = experiment.live.recording
    rows = _step_rows(results, recording)
    _check_reserved(results, complete=complete)
    _check_live_numbers(results, rows, recording)
    firsts = _check_episodes(results, rows, recording)
    _check_live_contexts(results, rows, experiment, firsts)
    _check_sides(results)
    if complete:
        _check_live_views(results, rows, experiment)


def _step_rows(results: LiveResults, recording: Recording) -> list[_Row]:
    """What the journal says, in the order of writing."""
    found: list[_Row] = []
    for one in reader.steps(results.path):
        if isinstance(one, Lost):
            numbers = range(one.first, one.last + 1)
            every = {"all": 1, "every": recording.every}.get(recording.kind)
            found += [(number, "cancelled", {}, None) for number in numbers if every and number % every == 0]
        else:
            found += _steps(one)
    return found


def _steps(one: Steps) -> list[_Row]:
    statuses = [one.unmeasured.get(at, ("measured", ""))[0] for at in range(len(one.numbers))]
    return list(zip(one.numbers, statuses, one.context_of(), one.episodes, strict=True))


def _check_reserved(results: LiveResults, *, complete: bool) -> None:
    """Numbers follow one another: none on record that wasn't reserved before, or that was on record already."""
    name, reserved, upto = results.name, 0, 0
    for entry in reader.entries(results.path):
        match entry:
            case ReserveRecord():
                assert entry.upto >= upto, f"{name}: {entry.upto} is reserved, and {upto} is used"
                reserved = entry.upto
            case Lost():
                assert entry.first == upto + 1 <= entry.last <= reserved, f"{name}: lost, but {upto}, {reserved}"
                upto = entry.last
            case Steps():
                counted = sum(entry.statuses.values())
                assert entry.upto - upto == counted, f"{name}: steps up to {entry.upto} from {upto}, not {counted}"
                assert entry.upto <= reserved, f"{name}: {entry.upto} is used, and {reserved} is reserved"
                upto = entry.upto
    if complete:
        assert reserved == upto, f"{name}: numbers {upto + 1} to {reserved} are unaccounted for"


def _check_live_numbers(results: LiveResults, rows: list[_Row], recording: Recording) -> None:
    numbers = [number for number, *_ in rows]
    twice = sorted(number for number, count in Counter(numbers).items() if count > 1)
    assert not twice, f"{results.name}: numbers that are on record twice: {twice}"
    assert numbers == sorted(numbers), f"{results.name}: numbers are out of order"
    upto = results.journal.upto
    expected: set[int] = set()
    if recording.kind != "episodes":
        every = recording.every if recording.kind == "every" else 1
        expected = set(range(every, upto + 1, every))
    missing = sorted(expected - set(numbers))
    assert not missing, f"{results.name}: numbers are missing: {missing}"
    extra = [(number, status) for number, status, *_ in rows if number not in expected and status == "measured"]
    if recording.kind != "episodes":
        assert not extra, f"{results.name}: recorded, and not asked for: {extra}"


def _check_episodes(results: LiveResults, rows: list[_Row], recording: Recording) -> dict[int, int]:
    """Every episode's steps are those that it says it has, and every step has one; by its number, its first step.

    An interrupt may lose the last step of the episode that it cuts.
    """
    name, firsts = results.name, {}
    steps: dict[int, list[int]] = {}
    for number, _, _, episode in rows:
        if episode is not None:
            steps.setdefault(episode, []).append(number)
    lost = {number for number, _, _, episode in rows if episode is None}
    over: list[Episode] = list(results.stream_episodes())
    assert len({one.number for one in over}) == len(over), f"{name}: an episode is on record twice"
    for one in over:
        found = steps.get(one.number, [])
        firsts[one.number] = one.first
        if one.end == "cut" and one.last in lost:
            found.append(one.last)
        assert all(one.first <= number <= one.last for number in found), f"{name}: steps outside of {one}: {found}"
        if recording.kind == "all":
            assert (found[0], found[-1], len(found)) == (one.first, one.last, one.length), f"{name}: {one} has {found}"
    if recording.kind == "all":
        assert steps.keys() == {one.number for one in over}, f"{name}: recorded steps belong to no episode"
    return firsts


def _check_live_contexts(
    results: LiveResults, rows: list[_Row], experiment: Experiment, firsts: dict[int, int]
) -> None:
    for number, _, context, episode in rows:
        if episode in firsts:
            expected = experiment.env_params.step_context(firsts[episode], number)
            assert context == expected, f"{results.name}: step {number} of episode {episode} ran under {context}"
    for one in results.stream_episodes():
        assert one.context == experiment.env_params.context(one.first), f"{results.name}: {one}"


def _check_sides(results: LiveResults) -> None:
    """Every recorded step has its element, in the journal or in a file of its own."""
    if results.journal.spaces is None:
        return
    count = sum(len(one.numbers) for one in reader.steps(results.path) if isinstance(one, Steps))
    for kind in ("observations", "actions"):
        found = len(getattr(results, kind)())
        assert found == count, f"{results.name}: {count} steps are recorded, and {found} {kind}"


def _check_live_views(results: LiveResults, rows: list[_Row], experiment: Experiment) -> None:
    name = results.name
    if results.journal.spaces is None and not (results.folder / TRAJECTORY).exists():
        return
    trajectory, env, episodes = (read_rows(results.folder / view) for view in (TRAJECTORY, ENV, EPISODES))
    steps = [int(row["step"]) for row in trajectory]
    assert steps == [number for number, *_ in rows], f"{name}: {TRAJECTORY} differs from the journal"
    assert steps == [int(row["step"]) for row in env], f"{name}: {TRAJECTORY} and {ENV} are not aligned"
    for (number, status, context, episode), row, drawn in zip(rows, trajectory, env, strict=True):
        assert row["status"] == status, f"{name}: step {number} has status {row['status']}"
        assert row["episode"] == ("" if episode is None else str(episode)), f"{name}: step {number}"
        for param in experiment.env_params.params:
            told = "" if episode is None else _spelled(context[param])
            assert row[f"context.{param}"] == drawn[param] == told, f"{name}: step {number}, {param}"
    told = [(str(one.number), str(one.first), str(one.last), one.end) for one in results.stream_episodes()]
    found = [(row["episode"], row["first_step"], row["last_step"], row["end"]) for row in episodes]
    assert found == told, f"{name}: {EPISODES} differs from the journal"


def _spelled(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
