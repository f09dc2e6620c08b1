"""Several lanes of a live experiment as a Gymnasium vector environment: a server in each, one journal."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import Any

from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from tunegym.core.errors import ActionError, TunegymError
from tunegym.core.registration import ENV_ID
from tunegym.tuning.envs.closing import closes
from tunegym.tuning.envs.live.engine import LiveEngine
from tunegym.tuning.envs.vector import batched_infos, batched_observations, batched_outcomes, check_rows, check_share

_OF_STEP = ("step", "episode_number", "status", "metrics", "env_params")
"""What is told of the step that was taken, also where the rest is the next episode's."""


class LiveVectorEnv(VectorEnv[Any, Any, Any]):
    """Servers side by side that share one journal and one counter; ``LiveEnv`` says what steps and resets do.

    A vector step is one step in each. An episode that ends is followed by the next one in the same step: the
    observation and the server's info are the new episode's first, the old one's last are in ``infos["final_obs"]`` and
    ``infos["final_info"]``. What we tell of a step (its number, status, ...) is of the step that was taken. A step that
    failed ends no episode.

    Args:
        engine: drives the servers, which have been started, and are as many as there are sub-environments; shared with
            nobody else.
        on_close: called once, after the engine was closed.

    Raises:
        TunegymError: the budget can't be shared evenly.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    closed = True  # until it is open: Gymnasium closes whatever is thrown away

    def __init__(self, engine: LiveEngine, on_close: Callable[[], None] = lambda: None) -> None:
        check_share(engine.experiment.budget.agent_steps, engine.slots)
        self._engine = engine
        # A program that ends without a word closes it too: its last steps are in memory only.
        self._finish = weakref.finalize(self, closes(engine, on_close))
        self.num_envs = engine.slots
        self.single_action_space = engine.action_space
        self.single_observation_space = engine.observation_space
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.spec = EnvSpec(id=ENV_ID, nondeterministic=True)
        self.closed = False

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every sub-environment. Numbers and contexts don't depend on seed and options.

        Args:
            seed: for the first server, the next ones get the numbers that follow; or one for each.
            options: for each server.
        """
        if isinstance(seed, int):
            super().reset(seed=seed)
        seeds = self._seeds(seed)
        firsts = [self._engine.reset(lane, seeds[lane], options) for lane in range(self.num_envs)]
        seen = batched_observations(self.single_observation_space, [observation for observation, _ in firsts])
        return seen, batched_infos([info for _, info in firsts])

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take one step in every sub-environment with an element of ``action_space``.

        Raises:
            ActionError: an action is none; no number is used.
            BudgetError: the experiment's budget is used up.
            ServerLostError: a server failed too often in a row.
            TunegymError: the environment is closed, or has not been reset.
        """
        rows = [_row(self.single_action_space, actions, lane, self.num_envs) for lane in range(self.num_envs)]
        fives = self._engine.step_all(rows)
        observations, infos = [], []
        for lane, (observation, _, terminated, truncated, info) in enumerate(fives):
            if terminated or truncated:
                last = info.pop("final_observation") if self._engine.shows_contexts else observation
                observation, begun = self._engine.reset(lane)
                info = {**begun, **{name: info[name] for name in _OF_STEP}, "final_obs": last, "final_info": info}
            observations.append(observation)
            infos.append(info)
        seen = batched_observations(self.single_observation_space, observations)
        return seen, *batched_outcomes(fives), batched_infos(infos)

    def close_extras(self, **kwargs: Any) -> None:
        """Let go of the servers, and leave the journal complete."""
        del kwargs
        self._finish()

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        try:
            if isinstance(seed, Sequence):
                seeds = [None if one is None else index(one) for one in seed]
            else:
                seeds = [index(seed) + lane for lane in range(self.num_envs)]
        except TypeError:
            raise TunegymError(f"seed is {seed!r:.60}; it is an integer, or one for each sub-environment") from None
        if len(seeds) != self.num_envs:
            raise TunegymError(f"{len(seeds)} seeds for {self.num_envs} sub-environments")
        return seeds


def _row(space: spaces.Space[Any], rows: Any, lane: int, count: int, what: str = "") -> Any:
    """One lane's action of a batch. What the space doesn't know is passed on: the engine says what is wrong."""
    if isinstance(space, spaces.Dict):
        if not isinstance(rows, Mapping):
            raise ActionError(f"{what}{rows!r:.60} is no mapping", hint="take actions from action_space.sample()")
        known = space.spaces
        return {
            name: _row(known[name], part, lane, count, f"{what}{name}: ") if name in known else part
            for name, part in rows.items()
        }
    if isinstance(space, spaces.Tuple):
        if not isinstance(rows, tuple | list) or len(rows) != len(space.spaces):
            raise ActionError(f"{what}{rows!r:.60} is no tuple of {len(space.spaces)} parts")
        return tuple(_row(one, rows[at], lane, count, f"{what}{at}: ") for at, one in enumerate(space.spaces))
    check_rows(rows, count, what)
    try:
        return rows[lane]
    except (KeyError, TypeError, IndexError):
        raise ActionError(f"{what}{rows!r:.60} has no row {lane}") from None
