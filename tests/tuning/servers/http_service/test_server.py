"""The whole of it: two processes, real requests. Counts and orders are compared, never times."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunegym.testing.servers import GymServerWarning, check_gym_server
from tunegym.tuning.servers.http_service import HttpService, observing
from tunegym.tuning.servers.http_service.knobs import CHOICES

pytestmark = pytest.mark.slow  # every test is a service under load

PATIENCE_S = 60.0
QUICK: dict[str, Any] = {"window_s": 0.05, "settle_s": 0.02, "target_ms": 50.0}
METRICS = {"throughput_rps", "p50_ms", "p99_ms", "error_share", "cpu_share", "hit_share", "offered_rps", "knobs"}


@pytest.fixture
def build() -> Iterator[Callable[..., HttpService]]:
    built: list[HttpService] = []

    def made(**arguments: Any) -> HttpService:
        built.append(HttpService(**{**QUICK, **arguments}))
        return built[-1]

    yield made
    for service in built:
        service.close()


def action(**knobs: int) -> np.ndarray:
    """The defaults but for these."""
    values = {"workers": 2, "batch_size": 4, "batch_wait_ms": 5, "queue_limit": 64, "cache_size": 64, **knobs}
    return np.array([CHOICES[name].index(values[name]) for name in CHOICES])


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.01)


# building it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"load": 0}, "load is 0; allowed: a number from 10 to 2000"),
        ({"load": 1e6}, "load is 1000000.0; allowed"),
        ({"load": "high"}, "load is 'high'; allowed"),
        ({"load": True}, "load is True; allowed"),
        ({"load": float("nan")}, "load is nan; allowed"),
        ({"skew": -1}, "skew is -1; allowed: a number from 0 to 3"),
        ({"keys": 1.5}, "keys is 1.5; allowed: an integer from 1 to 100000"),
        ({"target_ms": 0}, "target_ms is 0; allowed"),
        ({"window_s": 0}, "window_s is 0; allowed: a number from 0.02 to 10"),
        ({"settle_s": -1}, "settle_s is -1; allowed"),
        ({"episode_steps": 0}, "episode_steps is 0; allowed: an integer from 1"),
        ({"backend_ms": -1}, "backend_ms is -1; allowed"),
        ({"item_ms": -1}, "item_ms is -1; allowed"),
        ({"tune": "threads"}, "tune is 'threads': 'threads' is no knob"),
        ({"action": "box"}, 'action is \'box\'; allowed: "multi_discrete" or "discrete"'),
    ],
)
def test_what_it_cannot_be_built_with(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HttpService(**arguments)


def test_env_params_that_it_does_not_have() -> None:
    service = HttpService()
    with pytest.raises(ValueError, match="rain is no env_param of this service; allowed: load, skew"):
        service.apply_env_params({"load": 50, "rain": 3})
    with pytest.raises(ValueError, match="load is 5; allowed"):
        service.apply_env_params({"load": 5})
    assert service.pids == ()


def test_nothing_runs_before_the_first_reset() -> None:
    service = HttpService()
    assert service.pids == ()
    with pytest.raises(RuntimeError, match="after reset"):
        service.step(service.default_action)
    with pytest.raises(RuntimeError, match="after reset"):
        service.counts()
    service.close()


def test_discrete_actions_are_the_same_settings(build: Callable[..., HttpService]) -> None:
    service = build(action="discrete", tune="workers,cache_size", load=50.0)
    assert service.action_space.contains(service.default_action)
    assert int(service.action_space.n) == 12  # type: ignore[attr-defined]
    service.reset(seed=1)
    assert service.step(service.default_action)[4]["knobs"] == build().reset(seed=1)[1]["knobs"]
    assert service.step(np.int64(11))[4]["knobs"] == {
        "workers": 8,
        "batch_size": 4,
        "batch_wait_ms": 5,
        "queue_limit": 64,
        "cache_size": 512,
    }


# steps ----------------------------------------------------------------------------------------------------


def test_reset_and_steps_are_gymnasiums(build: Callable[..., HttpService]) -> None:
    service = build(episode_steps=2, load=200.0)
    observation, info = service.reset(seed=3)
    assert service.observation_space.contains(observation)
    assert info.keys() >= METRICS
    assert service.action_space.contains(service.default_action)
    assert service.step(service.default_action)[4]["knobs"] == info["knobs"]
    observation, reward, terminated, truncated, info = service.step(action(workers=8))
    assert service.observation_space.contains(observation)
    assert (type(reward), terminated, truncated) == (float, False, True)
    assert 0 <= reward <= 1
    assert info["knobs"]["workers"] == 8
    with pytest.raises(ValueError, match="is no action of MultiDiscrete"):
        service.step(np.array([9, 0, 0, 0, 0]))
    service.reset()
    assert service.step(service.default_action)[3] is False


def test_it_passes_the_checks_for_servers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GymServerWarning)  # no two windows of a live system are the same
        check_gym_server(
            HttpService,
            arguments={"window_s": 0.02, "settle_s": 0.0, "target_ms": 20.0, "episode_steps": 4},
            env_params={"load": [50, 1000]},
            steps=10,
        )


def test_no_request_is_lost_when_knobs_turn(build: Callable[..., HttpService]) -> None:
    service = build(load=800.0)
    service.reset(seed=1)
    pids = service.pids
    generator = np.random.default_rng(0)
    for _ in range(8):
        service.step(np.array([generator.integers(len(values)) for values in CHOICES.values()]))
        load = service.counts()["load"]
        assert load["due"] == load["answered"] + load["refused"] + load["failed"] + load["in_flight"]
    wait_until(lambda: service.counts(drain=True)["load"]["in_flight"] == 0)
    counts = service.counts()
    load, served = counts["load"], counts["service"]
    assert load["in_flight"] == load["failed"] == 0
    assert load["due"] == load["sent"] == served["received"] > 100
    assert load["answered"] == served["answered"]
    assert load["refused"] == served["refused"]
    assert service.pids == pids


def test_a_short_queue_refuses(build: Callable[..., HttpService]) -> None:
    service = build(load=1000.0, backend_ms=200.0)  # a worker takes far longer than the queue needs to fill
    service.reset(seed=1)
    tight = action(workers=1, batch_size=1, queue_limit=16, cache_size=0)
    wait_until(lambda: service.step(tight)[4]["error_share"] > 0)
    assert service.counts()["service"]["queued"] <= 64  # what the default limit had let in


def test_a_larger_cache_hits_more(build: Callable[..., HttpService]) -> None:
    service = build(load=1000.0, keys=300, backend_ms=0.0, item_ms=0.0)

    def hits(size: int) -> float:
        """Of some thousand requests: a window of a busy machine may have none at all."""
        service.reset(seed=1)
        service.step(action(batch_size=16, workers=4, cache_size=size))  # from here on it has that size
        before = now = service.counts()["service"]
        while now["received"] < before["received"] + 2000:
            service.step(action(batch_size=16, workers=4, cache_size=size))
            now = service.counts()["service"]
        return (now["hits"] - before["hits"]) / (now["received"] - before["received"])

    none, some, many = hits(0), hits(64), hits(512)
    assert none == 0.0
    assert some < many


def test_more_workers_have_more_batches_in_flight(build: Callable[..., HttpService]) -> None:
    service = build(load=1000.0, backend_ms=300.0)

    def busy(workers: int) -> int:
        service.step(action(workers=workers, batch_size=1, cache_size=0))
        return service.counts()["service"]["busy"]

    service.reset(seed=1)
    assert busy(1) <= 2  # those that the defaults had begun
    wait_until(lambda: busy(8) == 8)
    wait_until(lambda: busy(1) == 1)


def test_the_load_is_an_env_param(build: Callable[..., HttpService]) -> None:
    service = build(load=50.0, window_s=0.2)
    service.reset(seed=1)
    low = service.step(service.default_action)
    service.apply_env_params({"load": 1000, "skew": 1.5})
    high = service.step(service.default_action)
    assert (low[4]["offered_rps"], high[4]["offered_rps"]) == (50.0, 1000.0)
    assert low[0][0] < high[0][0]
    assert low[4]["requests"] < high[4]["requests"]


@pytest.mark.parametrize("for_s", [0.5, 2.5])
@pytest.mark.parametrize("after_s", [0.0, 0.1])
@pytest.mark.parametrize("which", [0, 1])
def test_a_window_that_was_missed_is_observed_again(
    build: Callable[..., HttpService], monkeypatch: pytest.MonkeyPatch, which: int, after_s: float, for_s: float
) -> None:
    """One without a request would look like one whose requests were all answered in time."""
    looks: list[bool] = []
    look = observing.missed
    monkeypatch.setattr(observing, "missed", lambda *given: looks.append(look(*given)) or looks[-1])
    service = build(load=1000.0, window_s=0.3, settle_s=0.2)
    service.reset(seed=1)
    looks.clear()
    pid = service.pids[which]
    stops = threading.Timer(after_s, os.kill, (pid, signal.SIGSTOP))
    goes_on = threading.Timer(after_s + for_s, os.kill, (pid, signal.SIGCONT))
    stops.start()
    goes_on.start()
    found = service.step(service.default_action)[4]
    goes_on.join()
    assert any(looks)
    assert found["requests"] > 0
    assert found["throughput_rps"] < 100_000


def test_a_machine_that_is_too_busy_fails_the_step(
    build: Callable[..., HttpService], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = build(load=1000.0)
    service.reset(seed=1)
    monkeypatch.setattr(observing, "missed", lambda *_: True)
    with pytest.raises(RuntimeError, match="in each of 8 windows a process was held up"):
        service.step(service.default_action)


def test_load_ends_when_nobody_looks(build: Callable[..., HttpService]) -> None:
    service = build(load=200.0)
    service.reset(seed=1)

    def still() -> bool:
        before = service.counts()["load"]["due"]
        time.sleep(0.3)
        return service.counts()["load"]["due"] == before

    wait_until(still)
    ended = service.counts()["load"]["due"]
    while service.counts()["load"]["due"] == ended:  # goes on with the next step
        service.step(service.default_action)


def test_it_is_http(build: Callable[..., HttpService]) -> None:
    service = build(load=10.0)
    service.reset(seed=1)
    port = service.port
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/work?key=mine", timeout=PATIENCE_S) as answer:
        first = answer.read()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/work?key=mine", timeout=PATIENCE_S) as answer:
        assert answer.read() == first
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=PATIENCE_S)
    assert refused.value.code == 404
    refused.value.close()


# the end --------------------------------------------------------------------------------------------------


def test_close_leaves_no_process(build: Callable[..., HttpService]) -> None:
    service = build(load=1000.0)
    service.reset(seed=1)
    pids = service.pids
    assert len(pids) == 2
    service.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert service.pids == ()
    service.close()


@pytest.mark.parametrize("which", [0, 1])
def test_a_process_that_dies_fails_the_step_and_is_started_again(build: Callable[..., HttpService], which: int) -> None:
    service = build(load=300.0)
    service.reset(seed=1)
    pids = service.pids
    os.kill(pids[which], signal.SIGKILL)
    with pytest.raises(RuntimeError, match="has ended with code -9"):
        service.step(service.default_action)
    assert all(gone(pid) for pid in pids)
    service.reset()
    assert not set(service.pids) & set(pids)
    assert service.step(service.default_action)[4]["requests"] >= 0


_PARENT = """
import os, sys, time
from tunegym.tuning.servers.http_service import HttpService
service = HttpService(load=500.0)
service.reset(seed=1)
if sys.argv[1] == "forked" and os.fork() == 0:  # it holds the other end of the control channels, too
    time.sleep(60)
    os._exit(0)
print(*service.pids, flush=True)
while True:
    service.step(service.default_action)
"""


@pytest.mark.parametrize("how", ["alone", "forked"])
def test_a_parent_that_is_killed_leaves_no_process(how: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, how], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        parent.kill()
        parent.wait(PATIENCE_S)
        wait_until(lambda: all(gone(pid) for pid in pids))
    finally:
        os.killpg(parent.pid, signal.SIGKILL) if how == "forked" else parent.kill()
        parent.wait()
        if parent.stdout is not None:
            parent.stdout.close()
