"""Wrappers around ``TuneEnv`` (and, with ``Vector`` in front, ``TuneVectorEnv``) for algorithms that are choosy.

::

    env = MultiDiscreteActions(NormalizedObservations(tunegym.make("scenario.toml")))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorActionWrapper, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from tunegym.core.errors import TunegymError
from tunegym.tuning.envs.actions import BINS, LIMIT, ActionView, BoxView, DiscreteView, MultiDiscreteView
from tunegym.tuning.envs.flattening import MetricScale, flat, flat_space
from tunegym.tuning.envs.tune import TuneEnv
from tunegym.tuning.envs.vector import TuneVectorEnv, check_rows
from tunegym.tuning.model.values import Action, Scalar

# actions --------------------------------------------------------------------------------------------------


class _Actions(gymnasium.ActionWrapper[Any, Any, Any]):
    """Actions of a view; ``decode_action`` and ``encode_action`` are the way to native values and back."""

    def __init__(self, env: gymnasium.Env[Any, Any], view: ActionView) -> None:
        super().__init__(env)
        self._encode = _tune(env).encode_action
        self._view = view
        self.action_space = view.space

    def action(self, action: Any) -> dict[str, Any]:
        """The action that the environment below takes."""
        return self._encode(self._view.decode(action))

    def decode_action(self, chosen: Any) -> dict[str, Scalar]:
        """Native values for an element of ``action_space``."""
        return self._view.decode(chosen)

    def encode_action(self, action: Action) -> Any:
        """The element of ``action_space`` that is nearest to native values."""
        return self._view.encode(action)


class MultiDiscreteActions(_Actions):
    """One index per knob: ``MultiDiscrete``. Ranges are binned, evenly on their own scale."""

    def __init__(self, env: gymnasium.Env[Any, Any], bins: int = BINS) -> None:
        super().__init__(env, MultiDiscreteView(_tune(env).space, bins))


class BoxActions(_Actions):
    """One number from -1 to 1 per knob: ``Box``. Knobs must be ranges."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env, BoxView(_tune(env).space))


class DiscreteActions(_Actions):
    """Every combination has a number: ``Discrete``. Refused above ``limit`` combinations."""

    def __init__(self, env: gymnasium.Env[Any, Any], bins: int = BINS, limit: int = LIMIT) -> None:
        super().__init__(env, DiscreteView(_tune(env).space, bins, limit))


class _VectorActions(VectorActionWrapper):
    """As ``_Actions``, for every sub-environment."""

    def __init__(self, env: VectorEnv[Any, Any, Any], view: ActionView) -> None:
        super().__init__(env)
        self._view = view
        self.single_action_space = view.space
        self.action_space = batch_space(view.space, self.num_envs)

    def actions(self, actions: Any) -> Any:
        """The actions that the environment below takes."""
        below = _tune_vector(self.env)
        check_rows(actions, below.num_envs)
        encoded = [below.encode_action(self._view.decode(one)) for one in actions]
        out = create_empty_array(below.single_action_space, below.num_envs)
        return concatenate(below.single_action_space, encoded, out)

    def decode_action(self, chosen: Any) -> dict[str, Scalar]:
        """Native values for an element of ``single_action_space``."""
        return self._view.decode(chosen)

    def encode_action(self, action: Action) -> Any:
        """The element of ``single_action_space`` that is nearest to native values."""
        return self._view.encode(action)


class VectorMultiDiscreteActions(_VectorActions):
    """As ``MultiDiscreteActions``."""

    def __init__(self, env: VectorEnv[Any, Any, Any], bins: int = BINS) -> None:
        super().__init__(env, MultiDiscreteView(_tune_vector(env).space, bins))


class VectorBoxActions(_VectorActions):
    """As ``BoxActions``."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env, BoxView(_tune_vector(env).space))


class VectorDiscreteActions(_VectorActions):
    """As ``DiscreteActions``."""

    def __init__(self, env: VectorEnv[Any, Any, Any], bins: int = BINS, limit: int = LIMIT) -> None:
        super().__init__(env, DiscreteView(_tune_vector(env).space, bins, limit))


# observations ---------------------------------------------------------------------------------------------


class _Flattener:
    """Observations of ``TuneEnv`` as one vector; learns the metrics' scale from those that are measured."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        nested = isinstance(space, spaces.Dict) and space.keys() == {"observation", "context"}
        box = cast("spaces.Dict", space)["observation"] if nested else space
        if not isinstance(box, spaces.Box) or len(box.shape) != 1:
            raise TunegymError(f"this wraps an environment of tunegym.make(), and one with {space} is none")
        self._leaves = dict(cast("Any", space)["context"].items()) if nested else {}
        self._scale = MetricScale(box.shape[0] - 1)
        self.space = flat_space(box.shape[0] - 1, self._leaves)

    def __call__(self, observation: Any) -> np.ndarray:
        context = observation["context"] if self._leaves else {}
        slots = np.array(observation["observation"] if self._leaves else observation, dtype=np.float64)
        if slots[-1]:
            self._scale.learn(slots[:-1])
            slots[:-1] = self._scale.scaled(slots[:-1])
        return flat(slots, self._leaves, context)


class NormalizedObservations(gymnasium.ObservationWrapper[Any, Any, Any]):
    """One flat float32 ``Box``: metrics in standard deviations from their mean so far, discrete leaves one-hot."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._flatten = _Flattener(env.observation_space)
        self.observation_space = self._flatten.space

    def observation(self, observation: Any) -> np.ndarray:
        """The vector."""
        return self._flatten(observation)


class VectorNormalizedObservations(VectorWrapper):
    """As ``NormalizedObservations``, with one scale for all sub-environments.

    Not on ``VectorObservationWrapper``, which takes no environment that begins an episode in the step which ends one.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self._flatten = _Flattener(env.single_observation_space)
        self.single_observation_space = self._flatten.space
        self.observation_space = batch_space(self._flatten.space, self.num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """As below."""
        observations, infos = self.env.reset(seed=cast("Any", seed), options=options)
        return self._rows(observations), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """As below; an episode's last observation, in ``final_obs``, is normalised too."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        if "final_obs" in infos:
            last = np.full(self.num_envs, None, dtype=object)
            for lane, observation in enumerate(infos["final_obs"]):
                last[lane] = None if observation is None else self._flatten(observation)
            infos["final_obs"] = last
        return self._rows(observations), rewards, terminations, truncations, infos

    def _rows(self, observations: Any) -> np.ndarray:
        return np.stack([self._flatten(one) for one in iterate(self.env.observation_space, observations)])


# what is wrapped ------------------------------------------------------------------------------------------


def _tune(env: gymnasium.Env[Any, Any]) -> TuneEnv:
    return cast("TuneEnv", _below(env.unwrapped, TuneEnv, "tunegym.make()"))


def _tune_vector(env: VectorEnv[Any, Any, Any]) -> TuneVectorEnv:
    return cast("TuneVectorEnv", _below(env.unwrapped, TuneVectorEnv, "tunegym.make_vec()"))


def _below(env: object, wanted: type[Any], maker: str) -> object:
    if not isinstance(env, wanted):
        raise TunegymError(f"this wraps an environment of {maker}, not {type(env).__name__}")
    return env
