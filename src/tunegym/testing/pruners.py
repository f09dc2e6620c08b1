"""What every pruner must do, as tests. Subclass ``PrunerSuite`` and say how yours is made."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, ClassVar

from tunegym.tuning.ports import Pruner

Curve = Sequence[tuple[int, float]]


class PrunerSuite:
    """The contract of a pruner, as tests over learning curves that rise towards different ends.

    Attributes:
        pruner: the class, which is called with its config and a seed.
        settings: of its ``Config``; such that some of 60 trials with 30 steps each are pruned.
    """

    pruner: ClassVar[Any]
    settings: ClassVar[dict[str, Any]] = {}
    trials: ClassVar[int] = 60
    steps: ClassVar[int] = 30

    def made(self, seed: int = 0) -> Pruner:
        """A fresh one."""
        return self.pruner(self.pruner.Config(**self.settings), seed)

    def curves(self, seed: int = 1) -> list[list[tuple[int, float]]]:
        """One learning curve per trial."""
        generator = random.Random(seed)
        curves = []
        for _ in range(self.trials):
            end, pace = generator.random(), generator.uniform(0.1, 0.5)
            curves.append([(step, end * (1 - (1 - pace) ** step)) for step in range(1, self.steps + 1)])
        return curves

    def walked(self, pruner: Pruner, number: int, curve: Curve) -> tuple[Curve, str | None]:
        """Report a curve step by step as a trial does, until it is pruned or over."""
        for length in range(1, len(curve) + 1):
            reason = pruner.judge(number, curve[:length])
            if reason is not None:
                return curve[:length], reason
        return curve, None

    def run(self, pruner: Pruner, curves: Sequence[Curve], first: int = 1) -> list[tuple[Curve, str | None]]:
        """One trial after the other; ``first`` is the number of the first."""
        ended = []
        for number, curve in enumerate(curves, start=first):
            seen, reason = self.walked(pruner, number, curve)
            pruner.closed(number, seen, "measured" if reason is None else "pruned")
            ended.append((seen, reason))
        return ended

    # the contract -------------------------------------------------------------------------------------

    def test_the_first_trial_is_never_pruned(self) -> None:
        """There is nothing to compare it with."""
        assert self.walked(self.made(), 1, self.curves()[0])[1] is None

    def test_hopeless_trials_are_pruned_with_a_reason(self) -> None:
        """Some are, not all, and each says why in a line."""
        reasons = [reason for _, reason in self.run(self.made(), self.curves()) if reason is not None]
        assert 0 < len(reasons) < self.trials
        assert all(isinstance(reason, str) and reason.strip() and "\n" not in reason for reason in reasons)

    def test_the_best_of_all_is_never_pruned(self) -> None:
        """A trial that is ahead of everything before it, at every step, goes to its end."""
        pruner = self.made()
        self.run(pruner, self.curves())
        ahead = [(step, 2.0 + step) for step in range(1, self.steps + 1)]
        assert self.walked(pruner, self.trials + 1, ahead)[1] is None

    def test_the_same_history_gives_the_same_answers(self) -> None:
        """No clock, no global randomness."""
        state = random.getstate()
        assert self.run(self.made(3), self.curves()) == self.run(self.made(3), self.curves())
        assert random.getstate() == state

    def test_a_resumed_run_is_judged_as_an_uninterrupted_one(self) -> None:
        """A pruner learns from ``closed`` alone: a resumed run tells it the recorded trials."""
        curves = self.curves()
        whole = self.run(self.made(), curves)
        for cut in (1, self.trials // 3, self.trials - 5):
            pruner = self.made()
            for number, (seen, reason) in enumerate(whole[:cut], start=1):
                pruner.closed(number, seen, "measured" if reason is None else "pruned")
            assert self.run(pruner, curves[cut:], cut + 1) == whole[cut:]

    def test_trials_without_a_curve_are_fine(self) -> None:
        """One that failed at once has reported nothing."""
        pruner = self.made()
        for number, status in enumerate(("failed", "timed_out", "measured", "cancelled"), start=1):
            pruner.closed(number, (), status)
        assert self.walked(pruner, 5, self.curves()[0])[1] is None

    def test_steps_may_come_in_any_way(self) -> None:
        """Few, far apart, equal, or backwards: an answer, never an exception."""
        pruner = self.made()
        self.run(pruner, self.curves())
        for number, curve in enumerate(([(10**9, 0.1)], [(5, 0.1), (5, 0.2)], [(9, 0.1), (3, 0.3), (-1, 0.2)]), 100):
            self.walked(pruner, number, curve)
            pruner.closed(number, curve, "measured")
