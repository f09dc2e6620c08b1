"""Hosts: one contract for servers in this process, in another, and behind a ``tunegym serve``; and who gets which."""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunegym.core.errors import TunegymError
from tunegym.core.references import resolve
from tunegym.testing.sample_servers import INFO, SPACES, Unruly
from tunegym.tuning.model.scenario import INJECTED, LiveSpec
from tunegym.tuning.servers.factory import build_host
from tunegym.tuning.servers.host import InProcess, ServerFailure, ServerHost, failure_of
from tunegym.tuning.servers.process import ProcessHost
from tunegym.tuning.servers.remote import TcpHost
from tunegym.tuning.spaces import differences

ECHO = "tunegym.testing.sample_servers:Echo"
UNRULY = "tunegym.testing.sample_servers:Unruly"
COUNT, RAISE, EXIT, HANG, UNFIT = (np.int64(place) for place in range(len(Unruly.DEEDS)))
TIMEOUT_S = 1.0


class HostSuite(ABC):
    """The contract of the ``ServerHost`` port, as tests."""

    @abstractmethod
    def make_host(
        self, folder: Path, reference: str, arguments: Mapping[str, Any], step_timeout_s: float | None = None
    ) -> ServerHost:
        """A host of the class that ``reference`` names, not started; ``close`` is called on it."""

    @pytest.fixture
    def make(self, tmp_path: Path) -> Iterator[Any]:
        """Makes hosts, and closes them in the end."""
        made: list[ServerHost] = []

        def make(reference: str, step_timeout_s: float | None = None, **arguments: Any) -> ServerHost:
            made.append(self.make_host(tmp_path, reference, arguments, step_timeout_s))
            return made[-1]

        yield make
        for host in made:
            host.close()

    @pytest.fixture
    def unruly(self, make: Any) -> ServerHost:
        """One that is started and reset."""
        host = make(UNRULY)
        host.start()
        host.reset(None, None)
        return host

    # what passes ----------------------------------------------------------------------------------------

    @pytest.mark.parametrize("kind", SPACES)
    def test_spaces_and_elements_pass_unchanged(self, make: Any, kind: str) -> None:
        host = make(ECHO, kind=kind)
        host.start()
        expected = SPACES[kind]
        assert not differences(expected, host.action_space, "action_space")
        assert not differences(expected, host.observation_space, "observation_space")
        expected.seed(5)
        drawn = expected.sample()
        observation, info = host.reset(5, None)
        _assert_same(drawn, observation)
        assert info == {"seed": 5, "options": None}
        for _ in range(3):
            action = expected.sample()
            observation, *_ = host.step(action)
            _assert_same(action, observation)

    def test_the_rest_of_an_answer(self, make: Any) -> None:
        host = make(ECHO, kind="discrete")
        host.start()
        host.reset(None, None)
        _, reward, terminated, truncated, info = host.step(np.int64(4))
        assert (reward, terminated, truncated) == (-0.1, False, True)
        assert type(reward) is float
        assert type(terminated) is type(truncated) is bool
        _assert_same(dict(INFO), info)

    def test_what_a_reset_is_given(self, make: Any) -> None:
        host = make(ECHO)
        host.start()
        options = {"bounds": [1, 2.5], "deep": {"a": None}, "array": np.arange(2)}
        _, info = host.reset(2**40, options)
        _assert_same({"seed": 2**40, "options": options}, info)
        assert host.reset(None, {})[1] == {"seed": None, "options": {}}

    def test_env_params(self, make: Any) -> None:
        host = make(UNRULY)
        host.start()
        assert host.applies_env_params is True
        host.apply_env_params({"load": 3})
        assert host.reset(None, None)[0].tolist() == [0, 3]
        host.apply_env_params({"load": 0.5})
        assert host.step(COUNT)[0].tolist() == [1, 0.5]
        host.apply_env_params({"load": 4.0})
        assert host.reset(None, None)[0].tolist() == [1, 4]

    def test_server_without_env_params(self, make: Any) -> None:
        host = make(ECHO)
        host.start()
        assert host.applies_env_params is False

    def test_send_and_receive(self, unruly: ServerHost) -> None:
        unruly.send(COUNT)
        observation, reward, terminated, truncated, _ = unruly.receive()
        assert (observation.tolist(), reward, terminated, truncated) == ([1, 1], 1.0, False, False)
        assert unruly.step(COUNT)[1] == 2.0

    @pytest.mark.parametrize("deed", [COUNT, RAISE])
    def test_how_long_a_step_took(self, unruly: ServerHost, deed: Any) -> None:
        began = time.perf_counter()
        if deed is COUNT:
            unruly.send(deed)
            unruly.receive()
        else:
            _failure(unruly, deed, halved=True)
        assert 0.0 < unruly.seconds <= time.perf_counter() - began

    def test_several_side_by_side(self, make: Any) -> None:
        hosts = [make(UNRULY, start=start) for start in (10, 20, 30)]
        for host in hosts:
            host.start()
            host.reset(None, None)
        for host in hosts:
            host.send(COUNT)
        assert [host.receive()[1] for host in hosts] == [11.0, 21.0, 31.0]

    # what fails -----------------------------------------------------------------------------------------

    @pytest.mark.parametrize("halved", [False, True])
    def test_step_that_raises(self, unruly: ServerHost, halved: bool) -> None:
        failure = _failure(unruly, RAISE, halved)
        assert str(failure) == "step: ValueError: boom in two lines"
        assert failure.lost is False
        assert unruly.step(COUNT)[1] == 2.0
        assert unruly.reset(None, None)[0].tolist() == [2, 1]

    def test_reset_that_raises(self, unruly: ServerHost) -> None:
        with pytest.raises(ServerFailure) as failed:
            unruly.reset(None, {"speed": 1})
        assert str(failed.value) == "reset: ValueError: no such options: ['speed']"
        assert failed.value.lost is False
        assert unruly.reset(None, None)[0].tolist() == [0, 1]

    def test_env_params_that_are_refused(self, unruly: ServerHost) -> None:
        with pytest.raises(ServerFailure) as failed:
            unruly.apply_env_params({"laod": 1})
        assert str(failed.value).startswith("apply_env_params: KeyError: ")
        assert failed.value.lost is False
        assert unruly.step(COUNT)[0].tolist() == [1, 1]

    def test_server_that_can_not_be_built(self, make: Any) -> None:
        host = make(UNRULY, build="raise")
        for _ in range(2):
            with pytest.raises(ServerFailure) as failed:
                host.start()
            assert str(failed.value) == "it could not be built: OSError: the port is taken"
            assert failed.value.lost is True

    def test_info_that_can_not_travel(self, unruly: ServerHost) -> None:
        _, reward, _, _, info = unruly.step(UNFIT)
        assert reward == 1.0
        assert info["fine"] == 1
        assert unruly.step(COUNT)[1] == 2.0

    # beginnings and ends --------------------------------------------------------------------------------

    def test_start_again(self, unruly: ServerHost) -> None:
        unruly.step(COUNT)
        unruly.start()
        assert unruly.reset(None, None)[0].tolist() == [0, 1]

    def test_close_twice(self, unruly: ServerHost) -> None:
        unruly.close()
        unruly.close()
        unruly.start()
        assert unruly.reset(None, None)[0].tolist() == [0, 1]

    def test_close_of_what_never_began(self, make: Any) -> None:
        make(UNRULY).close()

    def test_close_that_raises(self, make: Any, caplog: pytest.LogCaptureFixture) -> None:
        host = make(UNRULY, close="raise")
        host.start()
        with caplog.at_level(logging.WARNING):
            host.close()
        assert "the server's close() failed: " in caplog.text
        assert "RuntimeError: I stay" in caplog.text

    def test_kill(self, unruly: ServerHost) -> None:
        unruly.kill()
        unruly.close()


class IsolatedHostSuite(HostSuite):
    """The contract of a ``ServerHost`` whose server has a process of its own."""

    @pytest.mark.parametrize("halved", [False, True])
    def test_server_that_dies(self, unruly: ServerHost, halved: bool) -> None:
        failure = _failure(unruly, EXIT, halved)
        assert failure.lost is True
        assert "3" in str(failure)
        with pytest.raises(ServerFailure) as failed:
            unruly.reset(None, None)
        assert failed.value.lost is True
        unruly.start()
        assert unruly.reset(None, None)[0].tolist() == [0, 1]
        assert unruly.step(COUNT)[1] == 1.0

    def test_server_that_hangs(self, make: Any) -> None:
        host = make(UNRULY, TIMEOUT_S)
        host.start()
        host.reset(None, None)
        with pytest.raises(ServerFailure) as failed:
            host.step(HANG)
        assert failed.value.lost is True
        assert str(failed.value) == f"no answer within step_timeout_s = {TIMEOUT_S:g} s"
        host.start()
        assert host.reset(None, None)[0].tolist() == [0, 1]

    def test_an_answer_that_nobody_waits_for(self, unruly: ServerHost) -> None:
        unruly.send(COUNT)
        unruly.close()
        unruly.start()
        assert unruly.reset(None, None)[0].tolist() == [0, 1]

    def test_process_of_its_own(self, unruly: ServerHost) -> None:
        first = unruly.step(COUNT)[4]["pid"]
        unruly.start()
        unruly.reset(None, None)
        assert len({first, unruly.step(COUNT)[4]["pid"], os.getpid()}) == 3

    def test_kill_in_the_middle(self, unruly: ServerHost) -> None:
        unruly.send(HANG)
        unruly.kill()
        with pytest.raises(ServerFailure) as failed:
            unruly.receive()
        assert failed.value.lost is True


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


def _assert_same(expected: Any, found: Any) -> None:
    """Equal in kind, shape, dtype and value, NaN included."""
    if isinstance(expected, np.ndarray | np.generic):
        assert type(found) is type(expected)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(found, expected)
        return
    assert type(found) is type(expected), f"{found!r} for {expected!r}"
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            _assert_same(value, found[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(expected, found, strict=True):
            _assert_same(one, other)
    else:
        assert found == expected or (expected != expected and found != found)


class TestInProcess(HostSuite):
    def make_host(
        self, folder: Path, reference: str, arguments: Mapping[str, Any], step_timeout_s: float | None = None
    ) -> InProcess:
        return InProcess(lambda: resolve(reference)(**arguments))


def test_the_step_is_the_servers_own() -> None:
    """Not even a call is in between, and the answer is not copied."""
    server = resolve(UNRULY)()
    host = InProcess(lambda: server)
    host.start()
    assert host.step == server.step


def test_server_without_spaces() -> None:
    host = InProcess(object)  # type: ignore[arg-type]
    with pytest.raises(ServerFailure, match="it could not be built: AttributeError") as failed:
        host.start()
    assert failed.value.lost


@pytest.mark.parametrize("closed", [False, True])
def test_step_of_no_server(closed: bool) -> None:
    host = InProcess(Unruly)
    if closed:
        host.start()
        host.close()
    with pytest.raises(ServerFailure, match="it was not started") as failed:
        host.step(COUNT)
    assert failed.value.lost


@pytest.mark.slow
class TestProcessHost(IsolatedHostSuite):
    @pytest.fixture(autouse=True)
    def _own_token(self, token: str) -> None:
        self._token = token

    def make_host(
        self, folder: Path, reference: str, arguments: Mapping[str, Any], step_timeout_s: float | None = None
    ) -> ProcessHost:
        return ProcessHost(reference, arguments, folder=folder, token=self._token, step_timeout_s=step_timeout_s)


@pytest.mark.slow
class TestTcpHost(IsolatedHostSuite):
    @pytest.fixture(autouse=True)
    def _serving(self, serve: Callable[..., Any], secret: str) -> None:
        self._serve = serve
        self._secret = secret
        self._addresses: dict[str, tuple[str, int]] = {}

    def make_host(
        self, folder: Path, reference: str, arguments: Mapping[str, Any], step_timeout_s: float | None = None
    ) -> TcpHost:
        if reference not in self._addresses:
            self._addresses[reference] = self._serve(reference=reference).address
        address = self._addresses[reference]
        return TcpHost(address, self._secret, reference, arguments, step_timeout_s=step_timeout_s)


# which host a scenario gets ---------------------------------------------------------------------------

ELSEWHERE = "tcp://127.0.0.1:4000"


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNEGYM_SERVER_TOKEN", raising=False)


def build(folder: Path, injected: Any = None, env_class: str = UNRULY, **spec: Any) -> Any:
    return build_host(LiveSpec(env_class, **spec), folder, folder, token="t", injected=injected)


def test_where_the_server_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(build(tmp_path), InProcess)
    assert isinstance(build(tmp_path, server="process", step_timeout_s=3.0), ProcessHost)
    monkeypatch.setenv("TUNEGYM_SERVER_TOKEN", "a")
    assert isinstance(build(tmp_path, server=ELSEWHERE), TcpHost)
    assert isinstance(build(tmp_path, server=ELSEWHERE, env_class=""), TcpHost)


def test_in_process_by_reference(tmp_path: Path) -> None:
    host = build(tmp_path, arguments={"start": 4})
    host.start()
    assert host.reset(None, None)[0].tolist() == [4, 1]
    host.close()


def test_injected(tmp_path: Path) -> None:
    given = Unruly(start=7)
    for injected in (given, lambda: given):
        host = build(tmp_path, injected, INJECTED)
        host.start()
        assert host.reset(None, None)[0].tolist() == [7, 1]
        host.close()
    host = build(tmp_path, Unruly, INJECTED)
    host.start()
    assert host.reset(None, None)[0].tolist() == [0, 1]
    host.close()
    with pytest.raises(TunegymError, match="to be given in Python, and none is"):
        build(tmp_path, None, INJECTED)


class Closing(Unruly):
    closed = 0

    def close(self) -> None:
        type(self).closed += 1


def test_an_object_is_closed_by_whoever_gave_it(tmp_path: Path) -> None:
    """It is given out again: after a failure, and to the next experiment. What is made here is closed here."""
    given = Closing()
    host = build(tmp_path, given, INJECTED)
    for _ in range(2):
        host.start()
        host.start()
        host.reset(None, None)
        host.close()
    assert Closing.closed == 0
    host = build(tmp_path, Closing, INJECTED)
    host.start()
    host.start()
    host.close()
    host.close()
    assert Closing.closed == 2


def test_the_token_of_a_server_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TunegymError, match=f"the token of {ELSEWHERE} is not known") as error:
        build(tmp_path, server=ELSEWHERE)
    assert "export TUNEGYM_SERVER_TOKEN" in (error.value.hint or "")
    (tmp_path / "token.txt").write_text("secret\n")
    build(tmp_path, server=ELSEWHERE, token_file="token.txt")
    with pytest.raises(TunegymError, match="can't be read: No such file"):
        build(tmp_path, server=ELSEWHERE, token_file="missing.txt")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(TunegymError, match="can't be read: "):
        build(tmp_path, server=ELSEWHERE, token_file="binary")
    (tmp_path / "long").write_text("x" * 5000)
    with pytest.raises(TunegymError, match="holds more than 4096 characters"):
        build(tmp_path, server=ELSEWHERE, token_file="long")
