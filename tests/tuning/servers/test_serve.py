"""The answers of the side where the server is."""

from __future__ import annotations

from typing import Any

import pytest

from tunegym.core.wire import WireError, decode
from tunegym.tuning.servers import serve


class Chatty:
    """Has something else in its info at every step that can't be sent."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self, action: Any) -> Any:
        if action:
            raise ValueError("no")
        self.steps += 1
        return 0, 0.0, False, False, {f"thing {self.steps}": object(), "steps": self.steps}


def session() -> Any:
    server: Any = Chatty()
    return serve._Session(server)


def test_what_is_left_out_is_said_so_often_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "MOST_LEFT_OUT", 3)
    held = session()
    for at in range(1, 21):
        kind, five, _ = decode(held.answer(["step", 0]))
        assert (kind, five[-1]) == ("ok", {"steps": at})
    said = capsys.readouterr().err.splitlines()
    assert len(held._left_out) == 3
    assert said[0] == "tunegym: info['thing 1'] is left out: a object can't be sent"
    assert said[3:] == ["tunegym: 3 keys of info can't be sent; further ones are not named"]


@pytest.mark.parametrize(("action", "kind"), [(0, "ok"), (1, "raised")])
def test_an_answer_says_how_long_the_call_took(monkeypatch: pytest.MonkeyPatch, action: int, kind: str) -> None:
    now = iter([10.0, 12.5])
    monkeypatch.setattr(serve, "perf_counter", lambda: next(now))
    reply = decode(session().answer(["step", action]))
    assert (reply[0], reply[2]) == (kind, 2.5)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((0, 0.0, False, {}), "step: it gave back a tuple of 4, and not (observation, reward"),
        (None, "step: it gave back a NoneType"),
        ((0, 0.0, False, False, [1]), "step: its info is a list of 1, and not a dict"),
        ((object(), 0.0, False, False, {}), "step: its answer can't be sent: a object can't be sent"),
        ((0, "much", False, False, {}), "step: ValueError: could not convert string to float"),
        (ValueError("caf\udce9 is closed"), "step: ValueError: caf\\udce9 is closed"),
    ],
)
def test_what_is_no_answer(answer: Any, reason: str) -> None:
    class Odd(Chatty):
        def step(self, action: Any) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

    kind, text, _ = decode(serve._Session(Odd()).answer(["step", 0]))  # type: ignore[arg-type]
    assert kind == "raised"
    assert text.startswith(reason)


@pytest.mark.parametrize("request_", [None, [], ["fly"], [["step"], 1], {"step": 1}, "step"])
def test_what_is_no_request(request_: Any) -> None:
    with pytest.raises(WireError, match="is no request"):
        session().answer(request_)
