"""Live experiments whose servers are killed, hang, or come back as something else: the budget is still met."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from tests.soundness import assert_sound

import tunegym
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.records import ReserveRecord

Killing = Callable[..., contextlib.AbstractContextManager[list[int]]]


@pytest.fixture
def killing(live: Any) -> Killing:
    """While it lasts, the newest server is killed again and again at random moments; gives the pids of the killed."""

    @contextlib.contextmanager
    def kill(times: int, seed: int, pause_s: float = 0.05) -> Iterator[list[int]]:
        killed: list[int] = []
        over = threading.Event()
        rng = random.Random(seed)

        def work() -> None:
            while not _stepping(live) and not over.wait(0.01):
                pass  # a server that dies before it has ever worked is another story
            while len(killed) < times and not over.wait(rng.uniform(0.0, pause_s)):
                living = [pid for pid in live.notes("built") if pid not in killed and _serves(pid)]
                if living:
                    victim = rng.choice(living)
                    os.kill(victim, signal.SIGKILL)
                    killed.append(victim)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield killed
        finally:
            over.set()
            thread.join()

    return kill


def _serves(pid: int) -> bool:
    """Whether it is a living process of a server."""
    try:
        return "TUNEGYM_MARK" in psutil.Process(pid).environ()
    except psutil.Error:
        return False


def _stepping(live: Any) -> bool:
    journals = live.output.glob(f"live/*/e/{reader.JOURNAL}")
    return any(isinstance(record, ReserveRecord) for journal in journals for record in reader.entries(journal))


@pytest.fixture(params=["process", "tcp"])
def server(request: pytest.FixtureRequest, serve: Callable[[], str]) -> str:
    """The ``server`` key of a scenario: a process, or a ``tunegym serve`` that was started."""
    return serve() if request.param == "tcp" else "process"


@pytest.mark.parametrize(
    ("kills", "slots"),
    [
        pytest.param(8, 1, marks=pytest.mark.slow),
        pytest.param(8, 3, marks=pytest.mark.slow),
        pytest.param(100, 1, marks=[pytest.mark.chaos, pytest.mark.timeout(1800)]),
        pytest.param(100, 3, marks=[pytest.mark.chaos, pytest.mark.timeout(1800)]),
    ],
)
def test_servers_that_are_killed_again_and_again(
    live: Any, killing: Killing, server: str, wait_until: Callable[..., None], kills: int, slots: int
) -> None:
    """Steps take 2 ms, so that the storm is over well before the budget is."""
    before, steps = psutil.Process().children(), 150 * kills
    arguments = {"sleep_s": 0.002, "load": [1, 2, 3]}
    keys: dict[str, Any] = {"server": server, "agent_steps": steps, "server_restarts": 1000, "step_timeout_s": 20}
    document = live.document(args=arguments, env_params={"load": {}}, slots=slots, **keys)
    with killing(kills, kills + slots) as killed:
        assert tunegym.run(document) == 0
    assert len(killed) == kills, "the budget was used up before the storm was over"
    (results,) = assert_sound(live.run).values()
    assert results.steps == steps
    assert set(results.statuses) <= {"measured", "failed"}
    reasons = live.reasons()
    assert 0 < results.statuses["failed"] == len(reasons) <= kills, "some die between two steps' answers, or at a reset"
    assert all("SIGKILL" in why or "broke" in why or "hung up" in why for why in reasons.values()), reasons
    assert psutil.Process().children() == before, "a zombie"
    after = [one.end for one in results.episodes if one.first > max(reasons)]
    assert "terminated" in after, "episodes continue"
    assert set(after[:-slots]) <= {"terminated"}
    assert {one.last for one in results.episodes if one.end == "failed"} == set(reasons), "a failed step ends its own"
    wait_until(lambda: not any(map(_serves, live.notes("built"))), "servers to be gone", 20)


# one fault at a time ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "failed", "reason", "built"),
    [
        ("step@10=hang", 1, "no answer within step_timeout_s = 4 s", 2),
        ("step@10=die", 1, "killed by SIGKILL", 2),
        ("step@10=raise", 1, "step: RuntimeError: step 10 was to fail", 1),
        ("reset@3=die", 0, "", 2),
        ("reset@3=raise", 0, "", 2),
        ("apply@3=hang", 0, "", 2),
        ("apply@3=raise", 0, "", 2),
        ("step@10=die,build@2=raise,build@3=die", 1, "killed by SIGKILL", 2),
        ("step@10=die,reset@3=die,apply@4=raise", 1, "killed by SIGKILL", 4),
    ],
)
def test_a_fault_costs_its_step_and_nothing_else(
    live: Any, server: str, faults: str, failed: int, reason: str, built: int
) -> None:
    arguments = {"faults": faults, "load": [1, 2, 3]}
    keys: dict[str, Any] = {"server": server, "step_timeout_s": 4, "env_params": {"load": {}}}
    assert tunegym.run(live.document(args=arguments, **keys)) == 0
    (results,) = assert_sound(live.run).values()
    assert results.steps == 40
    assert (results.statuses["failed"], results.statuses["measured"]) == (failed, 40 - failed)
    reasons = live.reasons()
    assert list(reasons) == [10] * failed
    assert all(reason in why for why in reasons.values()), reasons
    assert len(live.notes("built")) == built
    through = next(one for one in results.episodes if one.first <= 10 <= one.last)
    assert (through.length, through.end) == ((3, "failed") if failed else (7, "terminated"))


def test_a_server_that_always_fails_ends_its_experiment(live: Any) -> None:
    """It answers no step and is never lost; the next experiment runs."""
    doomed = live.experiment("doomed", args={"faults": "step@1+=raise"}, stop_after_failures=6)
    assert tunegym.run(live.document(doomed, live.experiment("fine"))) == 1
    results = assert_sound(live.run)
    assert (results["doomed"].steps, results["fine"].steps) == (6, 40)
    told = "all of the first 6 failed: step: RuntimeError: step 6 was to fail"
    assert results["doomed"].journal.ended.reason == told
    assert "doomed: latest failure: step: RuntimeError: step 6 was to fail" in results["doomed"].counts().notes
    (live.folder / "mended").touch()
    assert tunegym.resume(live.run) == 0
    assert assert_sound(live.run)["doomed"].steps == 40


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "steps", "said"),
    [
        ("step@10+=die", 13, "the server failed 4 times in a row, at last with: the server died: killed by SIGKILL"),
        ("step@10=die,build@2+=raise", 10, "at last with: it could not be built: RuntimeError: build 4 was to fail"),
        ("apply@2+=raise", 7, "at last with: apply_env_params: RuntimeError: apply 5 was to fail"),
        ("apply@1+=raise", 0, "begin an episode: apply_env_params: RuntimeError: apply 1 was to fail"),
        ("build@1+=raise", 0, "the server can't be started: it could not be built: RuntimeError: build 1 was to fail"),
        ("build@1+=die", 0, "the server can't be started: the server died: killed by SIGKILL"),
    ],
)
def test_a_server_that_always_dies(
    live: Any, server: str, caplog: pytest.LogCaptureFixture, faults: str, steps: int, said: str
) -> None:
    arguments = {"faults": faults, "load": [1, 2, 3]}
    keys: dict[str, Any] = {"server": server, "server_restarts": 3, "env_params": {"load": {}}}
    doomed = live.experiment("doomed", args=arguments, **keys)
    assert tunegym.run(live.document(doomed, live.experiment("fine"))) == 1
    results = assert_sound(live.run)
    assert results["doomed"].steps == steps
    assert list(live.reasons("doomed")) == list(range(10, steps + 1))
    assert results["doomed"].journal.ended.code == 1
    assert said in results["doomed"].journal.ended.reason
    assert said in caplog.text
    assert results["fine"].steps == 40
    (live.folder / "mended").touch()
    assert tunegym.resume(live.run) == 0
    results = assert_sound(live.run)
    assert results["doomed"].steps == 40
    assert list(live.reasons("doomed")) == list(range(10, steps + 1))
