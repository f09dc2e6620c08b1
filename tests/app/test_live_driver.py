"""Live experiments whose driver is killed, stopped, or loses its journal: a resume continues at the next number."""

from __future__ import annotations

import itertools
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.app.conftest import Start, left_of
from tests.conftest import Cli
from tests.soundness import assert_sound, read_rows

import tunegym as package
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.columns import MOST_ROWS
from tunegym.tuning.stores.records import Lost, ReserveRecord, SessionRecord, Steps
from tunegym.tuning.stores.steps import FLUSH_S
from tunegym.tuning.stores.views import ENV, EPISODES, TRAJECTORY

Storm = Callable[..., Any]

LOST = re.compile(r"at most (\d+) steps? (?:was|were) lost \(numbers (\d+) to (\d+)\)")
CONTEXT: dict[str, Any] = {"load": [1, 2, 5], "level": {"low": 0.0, "high": 1.0}}
DRAWN: dict[str, Any] = {"load": {}, "level": {"draw": "step"}}


def _journal(live: Any) -> Path:
    return live.run / "e" / reader.JOURNAL


def _sessions(live: Any) -> list[list[reader.Entry]]:
    """The records of each session."""
    found: list[list[reader.Entry]] = []
    for journal in live.output.glob(f"live/*/e/{reader.JOURNAL}"):
        for record in reader.entries(journal):
            if isinstance(record, SessionRecord):
                found.append([])
            if found:
                found[-1].append(record)
    return found


def _begun(live: Any) -> int:
    """How many sessions have taken steps."""
    return sum(any(isinstance(record, ReserveRecord) for record in session) for session in _sessions(live))


@pytest.fixture
def await_steps(live: Any, wait_until: Callable[..., None]) -> Callable[..., None]:
    """Wait until a process takes steps, given how many sessions did before it; or until it is over."""

    def wait(process: subprocess.Popen[str], before: int = 0) -> None:
        wait_until(lambda: process.poll() is not None or _begun(live) > before, "steps")

    return wait


# killed -----------------------------------------------------------------------------------------------------


@pytest.fixture
def storm(live: Any, start_tunegym: Start, tunegym: Cli, await_steps: Callable[..., None]) -> Storm:
    """Start a run and resume it again and again, each time killed somewhere; then let it end. Gives its messages.

    After each kill every recorded step has an episode. In the end no view lacks a row that it ever had.
    """

    def rage(path: Path, kills: int, seed: int, pause_s: float = 0.6) -> str:
        rng = random.Random(seed)
        log = live.folder / "log.txt"
        seen: dict[str, list[Any]] = {}
        process = start_tunegym("run", path, "--output", live.output, log=log)
        for kill in range(kills):
            begun = _begun(live)
            if kill == 0 or rng.random() < 0.7:  # the others die wherever they are by then
                await_steps(process, begun)
            time.sleep(rng.uniform(0.0, pause_s))
            assert process.poll() is None, f"it ended before the storm did: {log.read_text()}"
            process.kill()
            process.wait()
            assert_sound(live.run, complete=False)
            seen |= {view: rows for view, rows in _views(live).items() if len(rows) > len(seen.get(view, ""))}
            if kill + 1 < kills:
                process = start_tunegym("resume", live.output, log=log)
        used = reader.scan(_journal(live)).reserved
        done = tunegym("resume", live.output, "--agent-steps", used + 50, code=0)
        assert {view: rows[: len(seen[view])] for view, rows in _views(live).items()} == seen
        return log.read_text() + done.stderr

    return rage


def _views(live: Any) -> dict[str, list[str]]:
    """The whole rows of each view."""
    found = {view: live.run / "e" / view for view in (TRAJECTORY, ENV, EPISODES)}
    return {view: path.read_text().split("\n")[:-1] for view, path in found.items() if path.exists()}


def _check_storm(live: Any, said: str) -> None:
    """Everything holds; the next session says how much each lost, and it is little."""
    (results,) = assert_sound(live.run).values()
    sessions = _sessions(live)
    lost = [record for session in sessions for record in session if isinstance(record, Lost)]
    assert lost, "no kill cost anything: the storm was none"
    told = [tuple(map(int, found)) for found in LOST.findall(said)]
    for record in lost:
        assert (record.last - record.first + 1, record.first, record.last) in told, record
    assert results.statuses["cancelled"] == sum(record.last - record.first + 1 for record in lost)
    assert results.statuses["measured"] == results.steps - results.statuses["cancelled"]
    for session in sessions[:-1]:
        _check_loss(session)


def _check_loss(session: list[reader.Entry]) -> None:
    """A session that was cut off loses waiting steps, and numbers reserved for the next moment."""
    reserved = [record.upto for record in session if isinstance(record, ReserveRecord)]
    steps = [record for record in session if isinstance(record, Steps)]
    if len(reserved) < 2 or len(steps) < 3:
        return
    block = reserved[-1] - reserved[-2]
    assert reserved[-1] - steps[-1].upto <= block + MOST_ROWS
    paces = [(two.upto - one.upto) / (two.since - one.since) for one, two in itertools.pairwise(steps)]
    assert block <= max(10.0, *paces), "more than a second's worth is reserved"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kills", "slots"),
    [
        pytest.param(20, 2, marks=pytest.mark.slow),
        pytest.param(60, 1, marks=pytest.mark.chaos),
        pytest.param(60, 3, marks=pytest.mark.chaos),
    ],
)
@pytest.mark.parametrize("place", ["in_process", "process"])
@pytest.mark.invariant
def test_kills_of_the_driver(live: Any, storm: Storm, place: str, kills: int, slots: int) -> None:
    arguments = {**CONTEXT, "sleep_s": 0.0005}
    path = live.write(args=arguments, env_params=DRAWN, server=place, agent_steps=10**8, slots=slots)
    _check_storm(live, storm(path, kills=kills, seed=7 + slots))
    live.assert_nothing_left()
    assert left_of(live.run / "e") == []


@pytest.mark.slow
@pytest.mark.parametrize("record", ["every:10", "episodes"])
@pytest.mark.invariant
def test_killed_driver_that_records_a_part(live: Any, storm: Storm, record: str) -> None:
    arguments = {**CONTEXT, "sleep_s": 0.0001, "faults": "step@20*=raise"}
    keys: dict[str, Any] = {"env_params": DRAWN, "record": record, "agent_steps": 10**8}
    said = storm(live.write(args=arguments, **keys), kills=3, seed=3)
    (results,) = assert_sound(live.run).values()
    lost = sum(int(count) for count, *_ in LOST.findall(said))
    assert results.statuses["cancelled"] == lost
    calls = (live.folder / "step.count").stat().st_size
    reasons = live.reasons()
    assert results.statuses["failed"] == len(reasons)
    missing = {f"step: RuntimeError: step {n} was to fail" for n in range(20, calls + 1, 20)} - {*reasons.values()}
    assert len(missing) <= lost, "one without a measurement is on record, unless a kill took it"
    rows = [row for row in read_rows(live.run / "e" / "trajectory.csv") if row["status"] == "measured"]
    assert 0 < len(rows) < results.statuses["measured"] / 5
    if record == "episodes":
        assert {int(row["step"]) for row in rows} == {one.last for one in results.episodes if one.end == "terminated"}
        assert {row["terminated"] for row in rows} == {"true"}


@pytest.mark.slow
@pytest.mark.invariant
def test_images_of_a_killed_driver_belong_to_their_rows(live: Any, storm: Storm) -> None:
    """Nor is a process left that its servers started, also where it left their process group."""
    arguments = {"size": 84, "length": 250, "sleep_s": 0.0005, "forks": True}
    _check_storm(live, storm(live.write(args=arguments, server="process", agent_steps=10**8), kills=4, seed=4))
    with (live.run / "e" / "observations.bin").open("ab") as file:
        file.write(bytes(10_000))  # as a kill leaves between the images and the record that names them
    used = reader.scan(_journal(live)).upto
    assert package.resume(live.run, agent_steps=used + 10) == 0
    (results,) = assert_sound(live.run).values()
    assert results.steps == used + 10
    images = results.observations()["value"]
    rows = [row for row in read_rows(live.run / "e" / "trajectory.csv") if row["status"] == "measured"]
    assert images.shape == (len(rows), 84, 84)
    firsts: dict[str, int] = {}
    for image, row in zip(images, rows, strict=True):  # each image shows how far its episode was
        at = int(row["step"]) - firsts.setdefault(row["episode"], int(row["step"])) + 1
        assert image[0, 0] == image[-1, -1] == at, row["step"]
    assert (live.run / "e" / "observations.bin").stat().st_size == len(rows) * 84 * 84
    live.assert_nothing_left()


# stopped ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("place", "slots"), [("in_process", 1), ("process", 3), ("tcp", 2)])
def test_ctrl_c_closes_servers_and_loses_nothing(
    live: Any,
    start_tunegym: Start,
    tunegym: Cli,
    serve: Callable[[], str],
    wait_until: Callable[..., None],
    await_steps: Callable[..., None],
    place: str,
    slots: int,
) -> None:
    where = serve() if place == "tcp" else place
    path = live.write(
        args={**CONTEXT, "sleep_s": 0.001}, env_params=DRAWN, server=where, agent_steps=10**6, slots=slots
    )
    log = live.folder / "log.txt"
    process = start_tunegym("run", path, "--output", live.output, log=log)
    for session in range(2):
        await_steps(process, session)
        time.sleep(0.7)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130, log.read_text()
        wait_until(lambda: sorted(live.notes("built")) == sorted(live.notes("closed")), "servers to be closed", 20)
        (results,) = assert_sound(live.run).values()
        assert set(results.statuses) == {"measured"}
        assert results.journal.ended is None
        if not session:
            process = start_tunegym("resume", live.output, log=log)
    used = reader.scan(_journal(live)).upto
    done = tunegym("resume", live.output, "--agent-steps", used + 20, code=0)
    (results,) = assert_sound(live.run).values()
    assert results.statuses == {"measured": used + 20}
    text = log.read_text() + done.stderr
    assert "lost" not in text
    assert "Traceback" not in text


@pytest.mark.slow
@pytest.mark.parametrize("place", ["process", "tcp"])
def test_ctrl_c_twice_ends_a_step_that_hangs(
    live: Any,
    start_tunegym: Start,
    tunegym: Cli,
    serve: Callable[[], str],
    wait_until: Callable[..., None],
    place: str,
) -> None:
    where = serve() if place == "tcp" else place
    path = live.write(args={"faults": "step@10=hang"}, server=where)
    log = live.folder / "log.txt"
    process = start_tunegym("run", path, "--output", live.output, log=log)
    count = live.folder / "step.count"
    wait_until(lambda: count.exists() and count.stat().st_size == 10, "the step that hangs")
    time.sleep(2 * FLUSH_S)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130, log.read_text()
    live.assert_nothing_left()
    (live.folder / "mended").touch()
    tunegym("resume", live.output, code=0)
    (results,) = assert_sound(live.run).values()
    assert results.steps == 40
    assert results.statuses["measured"] + results.statuses["cancelled"] == 40
    assert results.statuses["cancelled"] >= 1


def test_ctrl_c_in_a_python_program(live: Any) -> None:
    """It may cost the step in progress, and nothing else."""
    with pytest.raises(KeyboardInterrupt):
        package.run(live.document(args={"faults": "step@10=interrupt"}), output=live.output)
    assert package.resume(live.output) == 0
    (results,) = assert_sound(live.run).values()
    assert results.steps == 40
    assert results.statuses["measured"] >= 39
    assert len(live.notes("built")) == len(live.notes("closed")) == 2


# the journal ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_deleted_results_folder_is_an_error(live: Any, start_tunegym: Start, await_steps: Callable[..., None]) -> None:
    path = live.write(args={"sleep_s": 0.001}, server="process", agent_steps=10**6)
    log = live.folder / "log.txt"
    process = start_tunegym("run", path, "--output", live.output, log=log)
    await_steps(process)
    shutil.rmtree(live.output, ignore_errors=True)
    assert process.wait(60) == 1, log.read_text()
    text = log.read_text()
    assert "error: " in text
    assert "was deleted" in text
    assert "Traceback" not in text
    live.assert_nothing_left()
