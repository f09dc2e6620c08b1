"""What every ``ServerHost`` must do. Subclass ``HostSuite``, say how to make yours, and let pytest collect it.

One that keeps its server in a process of its own subclasses ``IsolatedHostSuite``, which asks for more.
"""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunegym.testing.sample_servers import INFO, SPACES, Unruly
from tunegym.tuning.servers.host import ServerFailure, ServerHost, failure_of
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
        """An action is at the server what it was here, and an observation here what it was there."""
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
        """Reward, ends, and all that ``info`` may hold."""
        host = make(ECHO, kind="discrete")
        host.start()
        host.reset(None, None)
        _, reward, terminated, truncated, info = host.step(np.int64(4))
        assert (reward, terminated, truncated) == (-0.1, False, True)
        assert type(reward) is float
        assert type(terminated) is type(truncated) is bool
        _assert_same(dict(INFO), info)

    def test_what_a_reset_is_given(self, make: Any) -> None:
        """Seed and options arrive."""
        host = make(ECHO)
        host.start()
        options = {"bounds": [1, 2.5], "deep": {"a": None}, "array": np.arange(2)}
        _, info = host.reset(2**40, options)
        _assert_same({"seed": 2**40, "options": options}, info)
        assert host.reset(None, {})[1] == {"seed": None, "options": {}}

    def test_env_params(self, make: Any) -> None:
        """Before the first reset, between resets, between steps."""
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
        """It is known of it."""
        host = make(ECHO)
        host.start()
        assert host.applies_env_params is False

    def test_send_and_receive(self, unruly: ServerHost) -> None:
        """Are a step in two parts."""
        unruly.send(COUNT)
        observation, reward, terminated, truncated, _ = unruly.receive()
        assert (observation.tolist(), reward, terminated, truncated) == ([1, 1], 1.0, False, False)
        assert unruly.step(COUNT)[1] == 2.0

    @pytest.mark.parametrize("deed", [COUNT, RAISE])
    def test_how_long_a_step_took(self, unruly: ServerHost, deed: Any) -> None:
        """Is known of one that failed, too."""
        began = time.perf_counter()
        if deed is COUNT:
            unruly.send(deed)
            unruly.receive()
        else:
            _failure(unruly, deed, halved=True)
        assert 0.0 < unruly.seconds <= time.perf_counter() - began

    def test_several_side_by_side(self, make: Any) -> None:
        """Each has a server of its own."""
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
        """Is a failure in one line; the server is still there, and answers."""
        failure = _failure(unruly, RAISE, halved)
        assert str(failure) == "step: ValueError: boom in two lines"
        assert failure.lost is False
        assert unruly.step(COUNT)[1] == 2.0
        assert unruly.reset(None, None)[0].tolist() == [2, 1]

    def test_reset_that_raises(self, unruly: ServerHost) -> None:
        """As a step."""
        with pytest.raises(ServerFailure) as failed:
            unruly.reset(None, {"speed": 1})
        assert str(failed.value) == "reset: ValueError: no such options: ['speed']"
        assert failed.value.lost is False
        assert unruly.reset(None, None)[0].tolist() == [0, 1]

    def test_env_params_that_are_refused(self, unruly: ServerHost) -> None:
        """As a step."""
        with pytest.raises(ServerFailure) as failed:
            unruly.apply_env_params({"laod": 1})
        assert str(failed.value).startswith("apply_env_params: KeyError: ")
        assert failed.value.lost is False
        assert unruly.step(COUNT)[0].tolist() == [1, 1]

    def test_server_that_can_not_be_built(self, make: Any) -> None:
        """There is none: the failure says so."""
        host = make(UNRULY, build="raise")
        for _ in range(2):
            with pytest.raises(ServerFailure) as failed:
                host.start()
            assert str(failed.value) == "it could not be built: OSError: the port is taken"
            assert failed.value.lost is True

    def test_info_that_can_not_travel(self, unruly: ServerHost) -> None:
        """Costs no step: what can travel arrives."""
        _, reward, _, _, info = unruly.step(UNFIT)
        assert reward == 1.0
        assert info["fine"] == 1
        assert unruly.step(COUNT)[1] == 2.0

    # beginnings and ends --------------------------------------------------------------------------------

    def test_start_again(self, unruly: ServerHost) -> None:
        """Is a server that was just built."""
        unruly.step(COUNT)
        unruly.start()
        assert unruly.reset(None, None)[0].tolist() == [0, 1]

    def test_close_twice(self, unruly: ServerHost) -> None:
        """Is fine, and so is starting after it."""
        unruly.close()
        unruly.close()
        unruly.start()
        assert unruly.reset(None, None)[0].tolist() == [0, 1]

    def test_close_of_what_never_began(self, make: Any) -> None:
        """Is fine."""
        make(UNRULY).close()

    def test_close_that_raises(self, make: Any, caplog: pytest.LogCaptureFixture) -> None:
        """Is only logged."""
        host = make(UNRULY, close="raise")
        host.start()
        with caplog.at_level(logging.WARNING):
            host.close()
        assert "the server's close() failed: " in caplog.text
        assert "RuntimeError: I stay" in caplog.text

    def test_kill(self, unruly: ServerHost) -> None:
        """May be called at any time, and closing is still fine."""
        unruly.kill()
        unruly.close()


class IsolatedHostSuite(HostSuite):
    """The contract of a ``ServerHost`` whose server has a process of its own."""

    @pytest.mark.parametrize("halved", [False, True])
    def test_server_that_dies(self, unruly: ServerHost, halved: bool) -> None:
        """Is lost; nothing works until it is started again, and then everything does."""
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
        """Is lost, too."""
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
        """Closing is fine all the same."""
        unruly.send(COUNT)
        unruly.close()
        unruly.start()
        assert unruly.reset(None, None)[0].tolist() == [0, 1]

    def test_process_of_its_own(self, unruly: ServerHost) -> None:
        """Another at each start."""
        first = unruly.step(COUNT)[4]["pid"]
        unruly.start()
        unruly.reset(None, None)
        assert len({first, unruly.step(COUNT)[4]["pid"], os.getpid()}) == 3

    def test_kill_in_the_middle(self, unruly: ServerHost) -> None:
        """Whoever waits for an answer is told."""
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
