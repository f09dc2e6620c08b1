"""How a running trial stands among measured ones, without looking at all of them at every step."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush


class Course:
    """The best that a measured trial had until each step: only the steps at which it got better are kept."""

    __slots__ = ("_bests", "_steps")

    def __init__(self, curve: Sequence[tuple[int, float]]) -> None:
        self._steps, self._bests = array("q"), array("d")
        for step, reward in sorted(curve):
            if not self._bests or reward > self._bests[-1]:
                self._steps.append(step)
                self._bests.append(reward)

    @property
    def first(self) -> int:
        """Its first step."""
        return self._steps[0]

    def until(self, step: int) -> float | None:
        """Its best up to a step; None if it had reported nothing by then."""
        index = bisect_right(self._steps, step)
        return self._bests[index - 1] if index else None

    def beats(self, reward: float) -> int | None:
        """The first step at which it had more than ``reward``; None if it never had."""
        index = bisect_right(self._bests, reward)
        return self._steps[index] if index < len(self._steps) else None


class Standing:
    """How many measured trials are ahead of one that runs.

    A trial that is ahead is looked at again only when the running one has got better than it was; one that is
    behind, only at the step at which it had more than the running one has. As the best of a trial never falls, nothing
    is missed.

    Args:
        courses: of the measured trials; may grow.
    """

    def __init__(self, courses: Sequence[Course]) -> None:
        self._courses = courses
        self._start_over()

    def ahead(self, step: int, best: float) -> int:
        """How many had more than ``best`` at ``step``. From call to call ``best`` never falls."""
        if self._step is not None and step < self._step:
            self._start_over()
        self._step = step
        for index in range(self._placed, len(self._courses)):
            self._place(index, step, best)
        self._placed = len(self._courses)
        while self._ahead and self._ahead[0][0] <= best:
            self._place(heappop(self._ahead)[1], step, best)
        while self._behind and self._behind[0][0] <= step:
            self._place(heappop(self._behind)[1], step, best)
        return len(self._ahead)

    def _start_over(self) -> None:
        self._step: int | None = None
        self._placed = 0
        self._ahead: list[tuple[float, int]] = []
        self._behind: list[tuple[int, int]] = []

    def _place(self, index: int, step: int, best: float) -> None:
        course = self._courses[index]
        reward = course.until(step)
        if reward is not None and reward > best:
            heappush(self._ahead, (reward, index))
            return
        beats_at = course.beats(best)
        if beats_at is not None:
            heappush(self._behind, (beats_at, index))
