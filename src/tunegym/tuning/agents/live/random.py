"""Random search over a live system's own action space."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, ClassVar

from tunegym.tuning.agents.live.base import LiveAgent

if TYPE_CHECKING:
    from tunegym.tuning.agents.live.drawing import ActionDraws


class LiveRandom(LiveAgent):
    """Draws every action at random, for any step by its number, whatever episode and lane that is in."""

    name: ClassVar[str] = "random_search"

    def _drive(self) -> None:
        from tunegym.tuning.agents.live.drawing import ActionDraws

        draws = ActionDraws(self.env.action_space, self.seed, self.name)
        if self.env.slots == 1:
            self._drive_one(draws)
        else:
            self._drive_all(draws)

    def _drive_one(self, draws: ActionDraws) -> None:
        env, step = self.env, self.env.step
        env.reset()
        while env.exhausted() is None:
            for action in draws.after(env.taken):
                _, _, terminated, truncated, _ = step(action)
                if terminated or truncated:
                    if env.exhausted() is not None:
                        return
                    env.reset()

    def _drive_all(self, draws: ActionDraws) -> None:
        env = self.env
        fresh = set(range(env.slots))
        actions = draws.since(env.taken)
        while env.exhausted() is None:
            left = self.left()
            width = env.slots if left is None else min(env.slots, left)
            for lane in range(width):
                if lane in fresh:
                    env.reset(lane)
            results = env.step_all(list(islice(actions, width)))
            fresh = {lane for lane, result in enumerate(results) if result[2] or result[3]}
