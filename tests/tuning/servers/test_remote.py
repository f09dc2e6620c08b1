"""What a host makes of what the other end says."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from gymnasium import spaces

from tunegym.core.wire import Connection, encode
from tunegym.tuning.servers.host import ServerFailure
from tunegym.tuning.servers.remote import RemoteHost
from tunegym.tuning.spaces import describe

WELCOME = {
    "action_space": describe(spaces.Discrete(2)),
    "observation_space": describe(spaces.Discrete(2)),
    "applies_env_params": False,
}
FIVE = [1, 0.5, False, False, {}]


class Scripted(RemoteHost):
    """Its other end has said everything already."""

    def __init__(self, *said: Any) -> None:
        super().__init__(10.0)
        self._said = said

    def _connect(self) -> Connection:
        ours, self.theirs = socket.socketpair()
        for one in (WELCOME, *self._said):
            self.theirs.sendall(encode(one))
        return Connection(ours)


@pytest.fixture
def hear() -> Iterator[Callable[..., Scripted]]:
    made: list[Scripted] = []

    def make(*said: Any) -> Scripted:
        made.append(Scripted(*said))
        made[-1].start()
        return made[-1]

    yield make
    for host in made:
        host.theirs.close()
        host.close()


def test_how_long_a_step_took_is_what_the_server_says(hear: Callable[..., Scripted]) -> None:
    host = hear(["ok", [0, {}], 7.0], ["ok", FIVE, 0.25], ["raised", "step: no", 0.5])
    host.reset(None, None)
    assert host.seconds == 0.0
    host.send(0)
    assert host.receive()[1] == 0.5
    assert host.seconds == 0.25
    host.send(0)
    with pytest.raises(ServerFailure, match="step: no"):
        host.receive()
    assert host.seconds == 0.5


def test_nobody_says_how_long_a_step_took_in_which_the_server_was_lost(hear: Callable[..., Scripted]) -> None:
    host = hear(["ok", FIVE, 100.0], ["lost", "it was killed"])
    host.step(0)
    host.send(0)
    with pytest.raises(ServerFailure, match="it was killed"):
        host.receive()
    assert 0.0 <= host.seconds < 100.0


@pytest.mark.parametrize(
    "reply",
    [["ok", FIVE], ["ok", FIVE, "long"], ["ok", FIVE, float("nan")], ["ok", FIVE, -1.0], ["maybe", FIVE, 0.1], 3],
    ids=repr,
)
def test_what_is_no_answer(hear: Callable[..., Scripted], reply: Any) -> None:
    host = hear(reply)
    with pytest.raises(ServerFailure, match="no answer") as failed:
        host.step(0)
    assert failed.value.lost


def test_an_answer_that_was_not_waited_for_is_never_taken_for_another(hear: Callable[..., Scripted]) -> None:
    host = hear(["ok", FIVE, 0.1], ["ok", FIVE, 0.1])
    host.send(0)
    with pytest.raises(ServerFailure, match="never waited for") as failed:
        host.step(0)
    assert failed.value.lost


def test_an_action_that_can_not_be_sent_loses_nothing(hear: Callable[..., Scripted]) -> None:
    host = hear(["ok", FIVE, 0.1])
    with pytest.raises(ServerFailure, match="step: what it is given can't be sent: a object") as failed:
        host.step(object())
    assert not failed.value.lost
    assert host.step(0)[1] == 0.5
