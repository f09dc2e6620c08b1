"""The answers of the side where the server is."""

from __future__ import annotations

from typing import Any

import pytest

from tunegym.core.wire import decode
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
