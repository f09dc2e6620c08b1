"""The two ends of a conversation with a server: requests, answers, and anything else that may arrive."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from gymnasium import spaces

from tunegym.core.wire import Connection, WireError, decode, encode
from tunegym.tuning.servers import serve
from tunegym.tuning.servers.host import InProcess, ServerFailure
from tunegym.tuning.servers.remote import RemoteHost
from tunegym.tuning.spaces import describe

SPACE = describe(spaces.Discrete(2))
WELCOME = {"action_space": SPACE, "observation_space": SPACE, "applies_env_params": False}
FIVE = [1, 0.5, False, False, {}]


class Scripted(RemoteHost):
    """A host whose other end has said everything already."""

    def __init__(self, *said: Any) -> None:
        super().__init__(10.0)
        self._said = said

    def _connect(self) -> Connection:
        ours, self.theirs = socket.socketpair()
        for one in self._said:
            self.theirs.sendall(encode(one))
        return Connection(ours)


@pytest.fixture
def hear() -> Iterator[Callable[..., Scripted]]:
    made: list[Scripted] = []

    def make(*said: Any) -> Scripted:
        made.append(Scripted(WELCOME, *said))
        made[-1].start()
        return made[-1]

    yield make
    for host in made:
        host.theirs.close()
        host.close()


def test_the_server_says_how_long_a_step_took(hear: Callable[..., Scripted]) -> None:
    replies = ["ok", [0, {}], 7.0], ["ok", FIVE, 0.25], ["raised", "step: no", 0.5], ["lost", "it was killed"]
    host = hear(*replies)
    host.reset(None, None)
    assert host.seconds == 0.0
    assert host.step(0)[1] == 0.5
    assert host.seconds == 0.25
    with pytest.raises(ServerFailure, match="step: no") as failed:
        host.step(0)
    assert (host.seconds, failed.value.lost) == (0.5, False)
    with pytest.raises(ServerFailure, match="it was killed") as failed:
        host.step(0)
    assert host.seconds != 0.5
    assert failed.value.lost


@pytest.mark.parametrize("welcome", [3, {}, {**WELCOME, "applies_env_params": 1}, {**WELCOME, "action_space": 1}])
def test_malformed_welcome(welcome: Any) -> None:
    with pytest.raises(ServerFailure, match=r"no welcome|spaces can't be used") as failed:
        Scripted(welcome).start()
    assert failed.value.lost


@pytest.mark.parametrize(
    "reply",
    [
        ["ok", FIVE], ["ok", FIVE, "long"], ["ok", FIVE, float("nan")], ["ok", FIVE, -1.0], ["ok", FIVE[:4], 0.1],
        ["ok", [*FIVE[:4], 1], 0.1], ["maybe", FIVE, 0.1], 3,
    ],
    ids=repr,
)  # fmt: skip
def test_malformed_answer(hear: Callable[..., Scripted], reply: Any) -> None:
    with pytest.raises(ServerFailure, match="no answer") as failed:
        hear(reply).step(0)
    assert failed.value.lost


def test_an_answer_is_never_taken_for_another(hear: Callable[..., Scripted]) -> None:
    host = hear(["ok", FIVE, 0.1], ["ok", FIVE, 0.1])
    host.send(0)
    with pytest.raises(ServerFailure, match="never waited for") as failed:
        host.step(0)
    assert failed.value.lost


def test_an_action_that_can_not_be_sent_loses_nothing(hear: Callable[..., Scripted]) -> None:
    host = hear(["ok", FIVE, 0.1])
    with pytest.raises(ServerFailure, match="step: its arguments can't be sent: a object") as failed:
        host.step(object())
    assert not failed.value.lost
    assert host.step(0)[1] == 0.5


# the server's end -------------------------------------------------------------------------------------


class Answering:
    """A server that answers each step with its action, or raises it."""

    action_space = observation_space = spaces.Discrete(2)

    def step(self, action: Any) -> Any:
        if isinstance(action, Exception):
            raise action
        return action

    reset = close = step


@pytest.fixture
def session() -> serve.RequestHandler:
    host = InProcess(Answering)
    host.start()
    return serve.RequestHandler(host)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((0, 0.0, False, {}), "step: it did not return five values"),
        (None, "step: it did not return five values"),
        ((0, 0.0, False, False, [1]), "step: its info is list, not a dict"),
        ((object(), 0.0, False, False, {}), "step: its answer can't be sent: a object can't be sent"),
        (ValueError("caf\udce9 is closed"), "step: ValueError: caf\\udce9 is closed"),
    ],
)
def test_servers_that_give_no_answer(session: serve.RequestHandler, answer: Any, reason: str) -> None:
    assert decode(session.answer(["step", answer]))[:2] == ["raised", reason]


def test_info_that_can_not_be_sent_is_named_only_so_often(
    session: serve.RequestHandler, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "MOST_LEFT_OUT", 3)
    for at in (1, 1, 2, 3, 4, 5):
        answer = (0, 0.0, False, False, {f"thing {at}": object(), "steps": at})
        kind, five, seconds = decode(session.answer(["step", answer]))
        assert (kind, five[-1]) == ("ok", {"steps": at})
        assert 0.0 < seconds < 10.0
    said = capsys.readouterr().err.splitlines()
    assert said == [f"tunegym: info['thing {at}'] is left out: a object can't be sent" for at in (1, 2, 3)]


@pytest.mark.parametrize("request_", [None, [], ["fly"], [["step"], 1], {"step": 1}, "step", ["step"]])
def test_malformed_request(session: serve.RequestHandler, request_: Any) -> None:
    with pytest.raises(WireError, match="is no request"):
        session.answer(request_)
