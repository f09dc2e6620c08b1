"""Hosts: one contract for servers in this process, in another, and behind a ``tunegym serve``; and who gets which."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import SECRET, TESTS
from tests.sample_servers import INFO, SPACES, Trouble, deed
from tests.strategies import same

from tunegym.app.server import build_host
from tunegym.core.errors import TunegymError
from tunegym.core.references import resolve
from tunegym.tuning.model.scenario import INJECTED, LiveSpec
from tunegym.tuning.servers.host import InProcess, ServerFailure, ServerHost, failure_of
from tunegym.tuning.servers.process import ProcessHost
from tunegym.tuning.servers.remote import TcpHost
from tunegym.tuning.spaces import differences

ECHO = "sample_servers:Echo"
TROUBLE = "sample_servers:Trouble"
FINE, RAISE, EXIT, HANG, UNFIT = map(deed, ("fine", "raise", "exit", "hang", "unfit"))


class HostSuite(ABC):
    """The contract of the ``ServerHost`` port, as tests."""

    @abstractmethod
    def make_host(self, reference: str, arguments: dict[str, Any]) -> ServerHost:
        """A host of the class that ``reference`` names, not started."""

    @pytest.fixture
    def make(self) -> Iterator[Any]:
        """Make hosts, and close them in the end."""
        made: list[ServerHost] = []

        def make(reference: str = TROUBLE, **arguments: Any) -> ServerHost:
            made.append(self.make_host(reference, arguments))
            return made[-1]

        yield make
        for host in made:
            host.close()
            host.close()

    @pytest.fixture
    def host(self, started: Callable[..., ServerHost]) -> ServerHost:
        """A host of ``Trouble``, started and reset."""
        return started()

    @pytest.mark.parametrize("kind", SPACES)
    def test_spaces_and_elements_pass_unchanged(self, make: Any, kind: str) -> None:
        host = make(ECHO, kind=kind)
        host.start()
        expected = SPACES[kind]
        assert not differences(expected, host.action_space, "action_space")
        assert not differences(expected, host.observation_space, "observation_space")
        expected.seed(5)
        drawn = expected.sample()
        assert same(drawn, host.reset(5, None)[0])
        for _ in range(3):
            action = expected.sample()
            assert same(action, host.step(action)[0])

    def test_everything_else_passes_unchanged(self, make: Any) -> None:
        host = make(ECHO, kind="discrete")
        host.start()
        assert host.applies_env_params is False
        options = {"bounds": [1, 2.5], "deep": {"a": None}, "array": np.arange(2)}
        assert same({"seed": 2**40, "options": options}, host.reset(2**40, options)[1])
        assert host.reset(None, {})[1] == {"seed": None, "options": {}}
        assert same((-0.1, False, True, dict(INFO)), tuple(host.step(np.int64(4))[1:]))

    def test_env_params(self, make: Any) -> None:
        host = make()
        host.start()
        assert host.applies_env_params is True
        host.apply_env_params({"load": 3})
        assert host.reset(None, None)[0].tolist() == [0, 3]
        host.apply_env_params({"load": 0.5})
        assert host.step(FINE)[0].tolist() == [1, 0.5]
        host.apply_env_params({"load": 4.0})
        assert host.reset(None, None)[0].tolist() == [1, 4]

    def test_hosts_work_side_by_side(self, started: Callable[..., ServerHost]) -> None:
        hosts = [started(start=start) for start in (10, 20, 30)]
        for host in hosts:
            host.send(FINE)
        assert [host.receive()[1] for host in hosts] == [11.0, 21.0, 31.0]

    @pytest.mark.parametrize("halved", [False, True])
    def test_step_that_raises(self, host: ServerHost, halved: bool) -> None:
        began = time.perf_counter()
        failure = _failure(host, RAISE, halved)
        assert (str(failure), failure.lost) == ("step: ValueError: boom in two lines", False)
        if halved:
            assert 0.0 < host.seconds <= time.perf_counter() - began
        assert host.step(FINE)[1] == 2.0
        assert host.reset(None, None)[0].tolist() == [2, 1]

    def test_other_calls_that_raise(self, host: ServerHost) -> None:
        with pytest.raises(ServerFailure) as failed:
            host.reset(None, {"speed": 1})
        assert (str(failed.value), failed.value.lost) == ("reset: ValueError: no such options: ['speed']", False)
        with pytest.raises(ServerFailure, match="apply_env_params: KeyError: ") as failed:
            host.apply_env_params({"laod": 1})
        assert failed.value.lost is False
        assert host.step(FINE)[0].tolist() == [1, 1]

    def test_server_that_can_not_be_built(self, make: Any) -> None:
        host = make(build="the port is taken")
        for _ in range(2):
            with pytest.raises(ServerFailure, match=r"^it could not be built: OSError: the port is taken$") as failed:
                host.start()
            assert failed.value.lost is True

    def test_info_that_can_not_be_sent(self, host: ServerHost) -> None:
        assert host.step(UNFIT)[4]["fine"] == 1
        assert host.step(FINE)[1] == 2.0

    def test_start_again(self, host: ServerHost) -> None:
        host.step(FINE)
        host.start()
        assert host.reset(None, None)[0].tolist() == [0, 1]
        host.kill()
        host.close()

    def test_close_that_raises(self, make: Any, caplog: pytest.LogCaptureFixture) -> None:
        host = make(close="raise")
        host.start()
        with caplog.at_level(logging.WARNING):
            host.close()
        assert "the server's close() failed: RuntimeError: I stay" in caplog.text


class IsolatedHostSuite(HostSuite):
    """The contract of a ``ServerHost`` whose server runs in another process."""

    @pytest.mark.parametrize("halved", [False, True])
    def test_server_that_dies(self, host: ServerHost, halved: bool) -> None:
        failure = _failure(host, EXIT, halved)
        assert failure.lost is True
        assert "3" in str(failure)
        with pytest.raises(ServerFailure, match="there is no server") as failed:
            host.reset(None, None)
        assert failed.value.lost is True
        host.start()
        assert host.reset(None, None)[0].tolist() == [0, 1]

    def test_answer_that_is_not_waited_for(self, host: ServerHost) -> None:
        host.send(FINE)
        host.close()
        host.start()
        assert host.reset(None, None)[0].tolist() == [0, 1]

    def test_kill_in_the_middle(self, host: ServerHost) -> None:
        host.send(HANG)
        host.kill()
        with pytest.raises(ServerFailure, match="told to stop at once") as failed:
            host.receive()
        assert failed.value.lost is True
        with pytest.raises(ServerFailure, match="told to stop"):
            host.start()


def _failure(host: ServerHost, action: Any, halved: bool) -> ServerFailure:
    """Why a step fails. Only a whole step may raise what the server itself raised."""
    if not halved:
        with pytest.raises(Exception) as raised:  # noqa: PT011
            host.step(action)
        return failure_of(raised.value)
    with pytest.raises(ServerFailure) as failed:  # noqa: PT012 - either of them
        host.send(action)
        host.receive()
    return failed.value


class TestInProcess(HostSuite):
    def make_host(self, reference: str, arguments: dict[str, Any]) -> InProcess:
        return InProcess(lambda: resolve(reference, (str(TESTS),))(**arguments))

    def test_the_step_is_the_servers_own(self) -> None:
        """Not even a call is in between, and the answer is not copied."""
        server = Trouble()
        host = InProcess(lambda: server)
        with pytest.raises(ServerFailure, match="it was not started"):
            host.step(FINE)
        host.start()
        assert host.step == server.step
        host.close()
        with pytest.raises(ServerFailure, match="it was not started") as failed:
            host.step(FINE)
        assert failed.value.lost

    def test_server_without_spaces(self) -> None:
        with pytest.raises(ServerFailure, match="it could not be built: AttributeError"):
            InProcess(object).start()  # type: ignore[arg-type]


@pytest.mark.slow
class TestProcessHost(IsolatedHostSuite):
    @pytest.fixture(autouse=True)
    def _own_token(self, token: str, tmp_path: Path) -> None:
        self._token, self._folder = token, tmp_path

    def make_host(self, reference: str, arguments: dict[str, Any]) -> ProcessHost:
        return ProcessHost(reference, arguments, (str(TESTS),), folder=self._folder, token=self._token)


@pytest.mark.slow
class TestTcpHost(IsolatedHostSuite):
    @pytest.fixture(autouse=True)
    def _serving(self, serve: Callable[..., Any]) -> None:
        self._serve = serve
        self._addresses: dict[str, tuple[str, int]] = {}

    def make_host(self, reference: str, arguments: dict[str, Any]) -> TcpHost:
        if reference not in self._addresses:
            self._addresses[reference] = self._serve(reference=reference).address
        return TcpHost(self._addresses[reference], SECRET, reference, arguments)


# which host a scenario gets ---------------------------------------------------------------------------

ELSEWHERE = "tcp://127.0.0.1:4000"


def build(folder: Path, injected: Any = None, env_class: str = TROUBLE, **spec: Any) -> Any:
    return build_host(LiveSpec(env_class, **spec), folder, folder, token="t", server=injected)


def test_where_the_server_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNEGYM_SERVER_TOKEN", raising=False)
    assert isinstance(build(tmp_path), InProcess)
    assert isinstance(build(tmp_path, Trouble, INJECTED), InProcess)
    assert isinstance(build(tmp_path, server="process", step_timeout_s=3.0), ProcessHost)
    (tmp_path / "token.txt").write_text("secret\n")
    assert isinstance(build(tmp_path, server=ELSEWHERE, token_file="token.txt", env_class=""), TcpHost)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "long").write_text("x" * 5000)
    for name, why in {"missing": "read: No such file", "binary": "can't be read", "long": "than 4096 char"}.items():
        with pytest.raises(TunegymError, match=why):
            build(tmp_path, server=ELSEWHERE, token_file=name)
