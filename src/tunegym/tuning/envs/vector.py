"""Several sub-environments over one experiment: trials side by side."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from tunegym.core.errors import ActionError, TunegymError
from tunegym.core.registration import ENV_ID
from tunegym.tuning.envs.closing import closes
from tunegym.tuning.envs.face import Face
from tunegym.tuning.envs.trials.engine import TrialEngine
from tunegym.tuning.model.space import Space
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
    closed = True  # until it is open: Gymnasium closes whatever is thrown away

    def __init__(self, engine: TrialEngine, num_envs: int, on_close: Callable[[], None] = lambda: None) -> None:
        check_share(engine.experiment.budget.agent_steps, num_envs)
        self._engine = engine
        self._face = Face(engine, closes(engine, on_close))
        self.num_envs = num_envs
        self.single_action_space = self._face.action_space
        self.single_observation_space = self._face.observation_space
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.spec = EnvSpec(id=ENV_ID, nondeterministic=True)
        self.closed = False

    @property
    def space(self) -> Space:
        """The knobs, in native values."""
        return self._engine.space

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every sub-environment. Moves no counter and no context, whatever the seed.

        Raises:
            TunegymError: the environment is closed.
        """
        del options
        if isinstance(seed, int):
            super().reset(seed=seed)
        firsts = [self._face.reset(lane) for lane in range(self.num_envs)]
        seen = batched_observations(self.single_observation_space, [observation for observation, _ in firsts])
        return seen, batched_infos([info for _, info in firsts])

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Run one trial in every sub-environment with an element of ``action_space``."""
        return self.step_raw([self.decode_action(one) for one in self._split(actions)])

    def step_raw(self, actions: Sequence[Action]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Run one trial in every sub-environment with native values.

        Raises:
            ActionError: an action doesn't fit the knobs; no number is used.
            BudgetError: the budget is used up; trials that had begun are recorded.
            TunegymError: the environment is closed.
        """
        if len(actions) != self.num_envs:
            raise ActionError(f"{len(actions)} actions for {self.num_envs} sub-environments")
        trials = self._face.run(actions)
        return self._shown([self._face.shown(lane, trial) for lane, trial in enumerate(trials)])

    def decode_action(self, encoded: Any) -> dict[str, Scalar]:
        """Native values for an element of ``single_action_space``."""
        return self._face.decode_action(encoded)

    def encode_action(self, action: Action) -> dict[str, Any]:
        """The element of ``single_action_space`` for native values."""
        return self._face.encode_action(action)

    def close_extras(self, **kwargs: Any) -> None:
        """Leave the journal complete."""
        del kwargs
        # While Python itself ends nothing works any more. The journal is then left as by a killed run.
        if not sys.is_finalizing():
            self._face.close()

    def _split(self, actions: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The actions of each sub-environment. Their keys are checked by the codec, one by one."""
        if not isinstance(actions, Mapping):
            hint = "take some from action_space.sample()"
            raise ActionError(f"actions are a mapping with a row for each sub-environment, not {actions!r}", hint=hint)
        for name, rows in actions.items():
            check_rows(rows, self.num_envs, f"{name}: ")
        return [{name: rows[lane] for name, rows in actions.items()} for lane in range(self.num_envs)]

    def _shown(self, fives: Sequence[_Five]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        infos: list[dict[str, Any]] = []
        observations = []
        for lane, (observation, _, terminated, truncated, info) in enumerate(fives):
            if terminated or truncated:
                info = {**info, "final_obs": observation, "final_info": info}
                observation, _ = self._face.reset(lane)
            observations.append(observation)
            infos.append(info)
        seen = batched_observations(self.single_observation_space, observations)
        return seen, *batched_outcomes(fives), batched_infos(infos)


def batched_observations(space: spaces.Space[Any], observations: Sequence[Any]) -> Any:
    """An element of the batched ``space``, of one of each sub-environment."""
    return concatenate(space, observations, create_empty_array(space, len(observations)))


def batched_outcomes(fives: Sequence[_Five]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rewards, terminations and truncations of what a step gave in each sub-environment."""
    _, rewards, terminations, truncations, _ = zip(*fives, strict=True)
    return np.array(rewards, np.float64), np.array(terminations, np.bool_), np.array(truncations, np.bool_)


def batched_infos(infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One dictionary of arrays by Gymnasium's convention: ``_key`` says which sub-environments gave ``key``.

    Gymnasium's own takes an array's type from the first value, which bends the others: candidates of one knob may
    be of several types.
    """
    batch: dict[str, Any] = {}
    for key in dict.fromkeys(key for info in infos for key in info):
        given = [info[key] for info in infos if key in info]
        if key != "final_obs" and all(isinstance(value, dict) for value in given):
            batch[key] = batched_infos([info.get(key, {}) for info in infos])
        else:
            rows = _empty_rows(given, len(infos)) if key != "final_obs" else np.full(len(infos), None, dtype=object)
            for lane, info in enumerate(infos):
                if key in info:
                    rows[lane] = info[key]
            batch[key] = rows
        batch[f"_{key}"] = np.array([key in info for info in infos], dtype=np.bool_)
    return batch


def _empty_rows(given: Sequence[Any], count: int) -> np.ndarray:
    """An array for values of one type, or arrays of one shape and type; else one of objects."""
    first = given[0]
    same = all(type(value) is type(first) for value in given)
    if same and isinstance(first, np.ndarray | np.generic) and first.dtype != object:
        if all(value.shape == first.shape and value.dtype == first.dtype for value in given):
            return np.zeros((count, *first.shape), dtype=first.dtype)
    elif same and (type(first) in (bool, float) or (type(first) is int and all(map(_fits, given)))):
        return np.zeros(count, dtype=type(first))
    return np.full(count, None, dtype=object)


def _fits(value: int) -> bool:
    return -(2**63) <= value < 2**63


def check_rows(rows: Any, count: int, what: str = "") -> None:
    """Refuse what hasn't a row for each sub-environment."""
    try:
        found = len(rows)
    except TypeError:
        raise ActionError(f"{what}{rows!r} has no rows, one for each of {count} sub-environments") from None
    if found != count:
        raise ActionError(f"{what}{found} rows for {count} sub-environments")


def check_share(agent_steps: int | None, num_envs: int) -> None:
    """Refuse a number of sub-environments that would leave some without a trial in the last step."""
    if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
        raise TunegymError(f"num_envs must be an integer of at least 1, not {num_envs!r}")
    if agent_steps is None or agent_steps % num_envs == 0:
        return
    around = (count for away in range(num_envs) for count in (num_envs - away, num_envs + away))
    nearest = next(count for count in around if agent_steps % count == 0)
    more = -(-agent_steps // num_envs) * num_envs
    raise TunegymError(
        f"agent_steps = {agent_steps} can't be shared evenly by {num_envs} sub-environments",
        hint=f"num_envs = {nearest}, or agent_steps = {more}",
    )
