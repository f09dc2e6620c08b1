"""Numbers in random order: whatever happens, each is used once and none is lost."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.soundness import read_rows
from tests.tuning.stores.conftest import head

from tunegym.core.errors import StoreError
from tunegym.tuning.model.trial import Failed, Infeasible, Measured, OpenTrial, Outcome, TimedOut, Trial
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.records import SessionRecord
from tunegym.tuning.stores.trials import JournalStore

LANES = st.integers(0, 3)
OUTCOMES: list[Outcome] = [Measured(({"score": 1.0},)), Failed("f"), TimedOut(), Infeasible("i")]


def context_of(number: int) -> dict[str, int]:
    return {"load": number * 7}


class JournalMachine(RuleBasedStateMachine):
    """A driver that holds, decides, closes, crashes and ends in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="tunegym-machine-"))
        self.sessions = 0
        self.opened: dict[int, OpenTrial] = {}
        self.closed: list[int] = []
        self.held: dict[int, int] = {}
        self.start()

    def start(self) -> None:
        self.folder = self.root / str(self.sessions)
        self.store = JournalStore(self.folder, head(env_params=("load",)), SessionRecord("f"))
        self.sessions += 1
        self.held.clear()

    @property
    def used(self) -> set[int]:
        return {*self.opened, *self.closed}

    @rule(lane=LANES)
    def hold(self, lane: int) -> None:
        taken = self.used | set(self.held.values())
        lowest = next(number for number in range(1, 1000) if number not in taken)
        assert self.store.hold(lane) == self.held.setdefault(lane, lowest)

    @rule(lane=LANES)
    def open(self, lane: int) -> None:
        number = self.store.hold(lane)
        assert number not in self.used
        trial = self.store.open(lane, context_of(number), {"x": len(self.used)})
        assert trial.number == number
        self.held.pop(lane, None)
        self.opened[number] = trial

    @precondition(lambda self: self.opened)
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES))
    def close(self, data: st.DataObject, outcome: Outcome) -> None:
        trial = self.opened.pop(data.draw(st.sampled_from(sorted(self.opened))))
        self.store.close_trial(Trial(trial.number, trial.context, trial.action, outcome, 0.0, 0.0))
        self.closed.append(trial.number)

    @rule(data=st.data())
    def close_what_is_not_open(self, data: st.DataObject) -> None:
        """It is closed or cancelled already, only held, or unknown."""
        number = data.draw(st.sampled_from([*self.closed, *self.held.values(), 9999]))
        with pytest.raises(StoreError, match=f"{number} is not open"):
            self.store.close_trial(Trial(number, {}, {}, Failed("twice"), 0.0, 0.0))

    @rule()
    def cancel(self) -> None:
        used = self.used
        expected = [number for number in range(1, max(used, default=0)) if number not in used]
        cancelled = self.store.cancel_held(context_of, lambda: -1.0)
        assert [trial.number for trial in cancelled] == expected
        assert {(trial.status, trial.reward, *trial.action) for trial in cancelled} <= {("cancelled", -1.0)}
        self.closed.extend(expected)
        self.held.clear()

    @rule(torn=st.integers(0, 30))
    def crash(self, torn: int) -> None:
        """The driver dies with what the system has been given, and half a record perhaps."""
        data = (self.folder / reader.JOURNAL).read_bytes()
        self.store.close()
        self.start_from(data + b'{"record":"open","number":12345,"at"'[:torn])

    def start_from(self, data: bytes) -> None:
        following = self.root / str(self.sessions)
        following.mkdir()
        (following / reader.JOURNAL).write_bytes(data)
        shutil.rmtree(self.folder)
        self.start()

    @rule()
    def reopen(self) -> None:
        """A driver that ended in good order."""
        self.store.end(0, "ended")
        self.store.close()
        self.check_views()
        self.start_from((self.folder / reader.JOURNAL).read_bytes())

    @invariant()
    def every_number_is_used_once(self) -> None:
        recorded = [trial for _, trial in self.store.recorded()]
        assert [trial.number for trial in recorded] == self.closed
        assert max(Counter(self.closed).values(), default=1) == 1
        assert self.store.open_trials() == [self.opened[number] for number in sorted(self.opened)]
        assert self.store.highest == max(self.used, default=0)
        assert all(dict(trial.context) == context_of(trial.number) for trial in recorded)

    def check_views(self) -> None:
        """The same steps in the same order, and every closed trial among them."""
        trajectory, env = (read_rows(self.folder / name) for name in ("trajectory.csv", "env.csv"))
        assert [int(row["step"]) for row in trajectory] == sorted(self.closed)
        assert [row["step"] for row in env] == [row["step"] for row in trajectory]
        assert [row["load"] for row in env] == [row["context.load"] for row in trajectory]
        assert all(int(row["load"]) == context_of(int(row["step"]))["load"] for row in env)

    def teardown(self) -> None:
        """The experiment ends: no gaps, and everything in both views."""
        try:
            for number in sorted(self.opened):
                trial = self.opened[number]
                self.store.close_trial(Trial(number, trial.context, trial.action, TimedOut(), 0.0, 0.0))
                self.closed.append(number)
            self.opened.clear()
            self.closed.extend(trial.number for trial in self.store.cancel_held(context_of, lambda: 0.0))
            self.store.close()
            assert sorted(self.closed) == list(range(1, len(self.closed) + 1))
            self.check_views()
        finally:
            with contextlib.suppress(StoreError):
                self.store.close()
            shutil.rmtree(self.root)


JournalMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestJournalMachine = pytest.mark.slow(JournalMachine.TestCase)
