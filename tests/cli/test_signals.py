"""What a signal does, and what is said then."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from tunegym.cli import signals
from tunegym.cli.progress import Progress
from tunegym.core.stopping import Stop


@pytest.mark.parametrize(
    ("live", "says"),
    [
        (False, "stopping: running trials are ended and stay open for a resume; once more to stop at once"),
        (True, "stopping: the step in progress is finished; once more to stop at once"),
    ],
)
def test_once_asks_to_stop_and_says_what_that_means(capfd: pytest.CaptureFixture[str], live: bool, says: str) -> None:
    stop = Stop()
    before = signal.getsignal(signal.SIGTERM)
    with signals.caught(stop, lambda: live):
        signal.raise_signal(signal.SIGTERM)
    assert stop.requested
    assert capfd.readouterr().err == f"\n{says}\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_twice_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(signals.os, "_exit", codes.append)
    stop, forced = Stop(), []
    stop.subscribe(lambda: None, lambda: forced.append(True))
    with signals.caught(stop, lambda: True):
        signal.raise_signal(signal.SIGTERM)
        assert (codes, forced) == ([], [])
        monkeypatch.setattr(stop, "request", lambda: None)
        signal.raise_signal(signal.SIGTERM)
    assert (codes, forced) == ([130], [True])


def test_nohup_stays_as_it_is() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.heard(lambda: None):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_progress_knows_whether_steps_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    from tunegym.cli import progress as module

    class Engine(SimpleNamespace):
        """Stands for a live one."""

    monkeypatch.setattr(module, "LiveEngine", Engine)
    monkeypatch.setattr(module, "LiveLine", lambda experiment, engine: (experiment, engine))
    monkeypatch.setattr(module, "Ticker", lambda *_: SimpleNamespace(stop=lambda: None))
    watch = Progress()
    watch._terminal = False
    assert not watch.live
    experiment: Any = SimpleNamespace(name="e")
    tally = SimpleNamespace(done=0)
    live: Any = Engine(tally=tally)
    plain: Any = SimpleNamespace(tally=tally)
    watch.experiment_started(experiment, live)
    assert watch.live
    watch.experiment_started(experiment, plain)
    assert not watch.live
