"""The example ``examples/http_service``: a live system that every machine can run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tunegym.testing.servers import check_gym_server

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "http_service"
QUICK: dict[str, Any] = {"window_s": 0.02, "settle_s": 0.0, "target_ms": 20, "episode_steps": 4}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def http_service() -> Iterator[Any]:
    """The example's class, importable while this module is tested."""
    before = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    from http_service import HttpService

    yield HttpService
    sys.path.remove(str(FOLDER))
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == FOLDER:
            del sys.modules[name]


@pytest.fixture
def service(http_service: Any) -> Iterator[Any]:
    made = http_service(load=200, **QUICK)
    yield made
    made.close()


@pytest.mark.filterwarnings("ignore:HttpService. two resets")  # a live system's latency is never the same twice
def test_is_a_gym_server(http_service: Any) -> None:
    check_gym_server(http_service, arguments=QUICK, env_params={"load": [50.0, 500.0], "skew": 0.5}, steps=6)


def test_settings(http_service: Any) -> None:
    service = http_service(tune="workers,batch_size", action="discrete", **QUICK)
    try:
        assert service.action_space.n == 12
        service.reset(seed=1)
        *_, info = service.step(11)
        assert (info["knobs"]["workers"], info["knobs"]["batch_size"]) == (8, 16)
    finally:
        service.close()
    with pytest.raises(ValueError, match="'wrkers' is no knob"):
        http_service(tune="wrkers")


@pytest.mark.parametrize("which", [0, 1], ids=["service", "load generator"])
def test_a_killed_process_fails_one_step(service: Any, which: int) -> None:
    service.reset(seed=1)
    os.kill(service.pids[which], signal.SIGKILL)
    os.waitid(os.P_PID, service.pids[which], os.WEXITED | os.WNOWAIT)
    with pytest.raises(RuntimeError, match="is gone"):
        service.step(service.default_action)
    service.reset(seed=2)
    assert 0.0 <= service.step(service.default_action)[1] <= 1.0


def test_processes_end_with_the_driver() -> None:
    code = "from http_service import HttpService as S; s = S(); s.reset(); print(*s.pids, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=FOLDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        children = [psutil.Process(int(pid)) for pid in driver.stdout.readline().split()]
        assert len(children) == 2
        driver.kill()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
