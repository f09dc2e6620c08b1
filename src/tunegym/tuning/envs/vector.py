"""Several sub-environments over one experiment: trials side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from tunegym.core.errors import BudgetError, TunegymError
from tunegym.tuning.envs.engine import TrialEngine
from tunegym.tuning.envs.face import Face, stopped
from tunegym.tuning.envs.tune import ENV_ID
from tunegym.tuning.model.space import Space
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import Action, Scalar

_Five = tuple[Any, float, bool, bool, dict[str, Any]]


class TuneVectorEnv(VectorEnv[Any, Any, Any]):
    """``num_envs`` sub-environments that share one journal, one counter and the runner's slots.

    A vector step is one trial in each, run side by side as far as the slots allow. An episode that ends is followed
    by the next one in the same step, so that every step of a sub-environment is a trial: the observation is the new
    episode's first, the old one's last is in ``infos["final_obs"]``.

    Args:
        engine: drives the trials; shared with nobody else.
        num_envs: how many; must divide the experiment's ``agent_steps``.
        on_close: called once, after the engine was closed.

    Raises:
        TunegymError: the budget can't be shared evenly.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, engine: TrialEngine, num_envs: int, on_close: Callable[[], None] = lambda: None) -> None:
        check_share(engine.experiment.budget.agent_steps, num_envs)
        self._engine = engine
        self._on_close: Callable[[], None] | None = on_close
        self._face = Face(engine)
        self.num_envs = num_envs
        self.single_action_space = self._face.action_space
        self.single_observation_space = self._face.observation_space
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.spec = EnvSpec(id=ENV_ID, nondeterministic=True)

    @property
    def space(self) -> Space:
        """The knobs, in native values."""
        return self._engine.space

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every sub-environment. Moves no counter and no context, whatever the seed."""
        del options
        if isinstance(seed, int):
            super().reset(seed=seed)
        firsts = [self._face.reset(lane) for lane in range(self.num_envs)]
        infos: dict[str, Any] = {}
        for lane, (_, info) in enumerate(firsts):
            infos = self._add_info(infos, info, lane)
        return self._batched([observation for observation, _ in firsts]), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Run one trial in every sub-environment with an element of ``action_space``."""
        return self.step_raw([self.decode_action(one) for one in iterate(self.action_space, actions)])

    def step_raw(self, actions: Sequence[Action]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Run one trial in every sub-environment with native values.

        Raises:
            ActionError: an action doesn't fit the knobs; no number is used.
            BudgetError: the budget is used up; trials that had begun are recorded.
        """
        accepted = [self._engine.space.accept(action) for action in actions]
        if len(accepted) != self.num_envs:
            raise TunegymError(f"{len(accepted)} actions for {self.num_envs} sub-environments")
        trials = self._run(accepted)
        fives = [self._face.shown(lane, trials[lane]) for lane in range(self.num_envs)]
        return self._shown(fives)

    def decode_action(self, encoded: Any) -> dict[str, Scalar]:
        """Native values for an element of ``single_action_space``."""
        return self._face.codec.decode(encoded)

    def encode_action(self, action: Action) -> dict[str, Any]:
        """The element of ``single_action_space`` for native values."""
        return self._face.codec.encode(action)

    def close_extras(self, **kwargs: Any) -> None:
        """Leave the journal complete."""
        del kwargs
        if self._on_close is None:
            return
        on_close, self._on_close = self._on_close, None
        try:
            self._engine.close()
        finally:
            on_close()

    def _run(self, actions: Sequence[Action]) -> dict[int, Trial]:
        """One trial per lane, numbered in the order of the lanes, whichever ends first."""
        for lane in range(self.num_envs):
            self._engine.observe(lane)
        ended: BudgetError | None = None
        for lane, action in enumerate(actions):
            try:
                self._engine.begin(action, lane)
            except BudgetError as error:
                ended = error
                break
        trials: dict[int, Trial] = {}
        while self._engine.in_flight:
            finished = self._engine.next_finished()
            if finished is None:
                raise stopped()
            trials[finished[0]] = finished[1]
        if ended is not None:
            raise ended
        return trials

    def _shown(self, fives: Sequence[_Five]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        infos: dict[str, Any] = {}
        observations = []
        for lane, (observation, _, terminated, truncated, info) in enumerate(fives):
            if terminated or truncated:
                info = {**info, "final_obs": observation, "final_info": dict(info)}
                observation, _ = self._face.reset(lane)
            observations.append(observation)
            infos = self._add_info(infos, info, lane)
        rewards, terminations, truncations = (
            np.array([five[index] for five in fives], dtype=dtype)
            for index, dtype in ((1, np.float64), (2, np.bool_), (3, np.bool_))
        )
        return self._batched(observations), rewards, terminations, truncations, infos

    def _batched(self, observations: Sequence[Any]) -> Any:
        out = create_empty_array(self.single_observation_space, self.num_envs)
        return concatenate(self.single_observation_space, observations, out)


def check_share(agent_steps: int | None, num_envs: int) -> None:
    """Refuse a number of sub-environments that would leave some without a trial in the last step."""
    if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
        raise TunegymError(f"num_envs must be an integer of at least 1, not {num_envs!r}")
    if agent_steps is None or agent_steps % num_envs == 0:
        return
    fitting = [count for count in range(1, agent_steps + 1) if agent_steps % count == 0]
    nearest = min(fitting, key=lambda count: abs(count - num_envs))
    more = -(-agent_steps // num_envs) * num_envs
    raise TunegymError(
        f"agent_steps = {agent_steps} can't be shared evenly by {num_envs} sub-environments",
        hint=f"num_envs = {nearest}, or agent_steps = {more}",
    )
