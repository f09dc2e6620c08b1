"""Journals for trackers to follow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.heads import head

from tunegym.tuning.model.trial import Measured, Outcome, Trial
from tunegym.tuning.stores.records import SessionRecord
from tunegym.tuning.stores.trials import JournalStore

TOKEN = "a-token"


@pytest.fixture
def store(tmp_path: Path) -> Callable[[], JournalStore]:
    """A session of the journal in ``tmp_path / "e"``; each call is another one."""
    return lambda: JournalStore(
        tmp_path / "e",
        head(
            run=TOKEN,
            knobs={"x": {"values": [1, 2, 3]}},
            env_params={"load": {"values": [0.1, 0.2]}},
            metrics=["v"],
        ),
        SessionRecord("print"),
    )


@pytest.fixture
def add() -> Callable[..., Trial]:
    """Open and close one trial."""

    def add_trial(store: JournalStore, outcome: Outcome | float, **keys: Any) -> Trial:
        opened = store.open(0, {"load": 0.1}, {"x": 1}) if store.hold(0) else None
        assert opened is not None
        reward = keys.pop("reward", outcome if isinstance(outcome, float) else -9.0)
        outcome = Measured(({"v": outcome},)) if isinstance(outcome, float) else outcome
        trial = Trial(opened.number, opened.context, opened.action, outcome, reward, 0.5, **keys)
        store.close_trial(trial)
        return trial

    return add_trial
