"""Wrappers around ``TuneEnv`` (and, with ``Vector`` in front, ``TuneVectorEnv``) for algorithms that need other spaces.

::

    env = MultiDiscreteActions(NormalizedObservations(tunegym.make("scenario.toml")))

``FlatObservations`` is the same flattening for agents that see an ``Env``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.spaces.utils import flatten, flatten_space
from gymnasium.vector import VectorActionWrapper, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from tunegym.core.errors import TunegymError
from tunegym.tuning.envs.actions import ActionView, BoxView, DiscreteView, MultiDiscreteView
from tunegym.tuning.envs.face import TuneEnv, TuneVectorEnv, check_rows
from tunegym.tuning.envs.structure import structure_of
from tunegym.tuning.model.trial import Observation
from tunegym.tuning.model.values import Action, Context, Scalar
from tunegym.tuning.ports import Env

_Env = TypeVar("_Env", TuneEnv, TuneVectorEnv)

# actions --------------------------------------------------------------------------------------------------


class _View:
    """The way from an element of a wrapper's action space (of one environment) to native values, and back."""

    view_class: Callable[..., ActionView]
    _view: ActionView

    def decode_action(self, chosen: Any) -> dict[str, Scalar]:
        """Native values for an element."""
        return self._view.decode(chosen)

    def encode_action(self, action: Action) -> Any:
        """The element that is nearest to native values."""
        return self._view.encode(action)


class _Actions(_View, gymnasium.ActionWrapper[Any, Any, Any]):
    """Actions of a view, with its options."""

    def __init__(self, env: gymnasium.Env[Any, Any], *options: int, **named: int) -> None:
        super().__init__(env)
        below = _below(env, TuneEnv, "tunegym.make()")
        self._encode = below.encode_action
        self._view = type(self).view_class(below.space, *options, **named)
        self.action_space = self._view.space

    def action(self, action: Any) -> dict[str, Any]:
        """The action that the environment below takes."""
        return self._encode(self._view.decode(action))


class _VectorActions(_View, VectorActionWrapper):
    """Actions of a view in every sub-environment."""

    def __init__(self, env: VectorEnv[Any, Any, Any], *options: int, **named: int) -> None:
        super().__init__(env)
        self._below = _below(env, TuneVectorEnv, "tunegym.make_vec()")
        self._view = type(self).view_class(self._below.space, *options, **named)
        self.single_action_space = self._view.space
        self.action_space = batch_space(self._view.space, self.num_envs)

    def actions(self, actions: Any) -> Any:
        """The actions that the environment below takes."""
        below = self._below
        check_rows(actions, below.num_envs)
        encoded = [below.encode_action(self._view.decode(one)) for one in actions]
        out = create_empty_array(below.single_action_space, below.num_envs)
        return concatenate(below.single_action_space, encoded, out)


class MultiDiscreteActions(_Actions):
    """One index per knob: ``MultiDiscrete``. Ranges have ``bins`` values (default 10), evenly on their own scale."""

    view_class = MultiDiscreteView


class BoxActions(_Actions):
    """One number from -1 to 1 per knob: ``Box``. Knobs must be ranges."""

    view_class = BoxView


class DiscreteActions(_Actions):
    """Every combination has a number: ``Discrete``. Refused above ``limit`` combinations (default 4096)."""

    view_class = DiscreteView


class VectorMultiDiscreteActions(_VectorActions):
    """As ``MultiDiscreteActions``."""

    view_class = MultiDiscreteView


class VectorBoxActions(_VectorActions):
    """As ``BoxActions``."""

    view_class = BoxView


class VectorDiscreteActions(_VectorActions):
    """As ``DiscreteActions``."""

    view_class = DiscreteView


# flat observations ----------------------------------------------------------------------------------------

CLIP = 10.0
"""A metric is shown at most this many standard deviations from its mean."""
_LARGEST = float(np.finfo(np.float32).max)
"""A larger metric counts as this one: its square is still a number."""

HINT = 0.1
"""A policy sees this part of the last trial's metrics. They say little about the next trial, whose context differs."""


class MetricScale:
    """The mean and spread of each metric so far, so that seconds and bytes weigh the same."""

    def __init__(self, count: int) -> None:
        self._seen = 0
        self._mean = np.zeros(count)
        self._square = np.zeros(count)

    def learn(self, metrics: np.ndarray) -> None:
        """Take in one measurement."""
        metrics = np.clip(metrics, -_LARGEST, _LARGEST)
        self._seen += 1
        away = metrics - self._mean
        self._mean += away / self._seen
        self._square += away * (metrics - self._mean)

    def scaled(self, metrics: np.ndarray) -> np.ndarray:
        """The metrics in standard deviations from their mean, clipped."""
        if self._seen < 2:
            return np.zeros_like(metrics)
        spread = np.sqrt(self._square / self._seen)
        away = np.clip(metrics, -_LARGEST, _LARGEST) - self._mean
        scaled = np.divide(away, spread, out=np.zeros_like(away), where=spread > 1e-12 * np.abs(self._mean))
        return np.clip(scaled, -CLIP, CLIP)


class _Flattener:
    """Scaled metrics, ``measured`` and a context's leaves (discrete ones one-hot) as one float32 vector."""

    def __init__(self, metrics: int, leaves: spaces.Dict | None) -> None:
        self.scale = MetricScale(metrics)
        self._leaves = leaves if leaves is not None and leaves.spaces else None
        low, high = [-CLIP] * metrics + [0.0], [CLIP] * metrics + [1.0]
        if self._leaves is not None:
            flat = cast("spaces.Box", flatten_space(self._leaves))
            low, high = [*low, *flat.low], [*high, *flat.high]
        self.space = spaces.Box(np.array(low, dtype=np.float32), np.array(high, dtype=np.float32), dtype=np.float32)

    def vector(self, slots: np.ndarray, context: Mapping[str, Any]) -> np.ndarray:
        """Metric slots, then the leaves."""
        leaves = [] if self._leaves is None else [cast("np.ndarray", flatten(self._leaves, cast("Any", context)))]
        return np.concatenate([slots, *leaves]).astype(np.float32)


class FlatObservations(_Flattener):
    """A lane's observation as one vector, for agents. Only ``learn`` takes in a measurement."""

    def __init__(self, env: Env) -> None:
        self._metrics: Sequence[str] = env.experiment.agent_metrics
        self._structure = structure_of(env)
        super().__init__(len(self._metrics), None if self._structure is None else self._structure.space)

    def learn(self, metrics: Mapping[str, float]) -> None:
        """Take in one measurement."""
        self.scale.learn(self._slots(metrics))

    def encode(self, shown: Observation) -> np.ndarray:
        """The vector for a lane's observation."""
        slots = np.zeros(len(self._metrics) + 1)
        if shown.measured:
            slots[:-1] = HINT * self.scale.scaled(self._slots(shown.metrics))
            slots[-1] = 1.0
        return self.vector(slots, {} if self._structure is None else self._structure.encode(shown))

    def usual(self, context: Context) -> np.ndarray:
        """The vector for a lane whose last trial measured the mean."""
        slots = np.zeros(len(self._metrics) + 1)
        slots[-1] = 1.0
        return self.vector(slots, {} if self._structure is None else self._structure.encode(Observation(0, context)))

    def _slots(self, metrics: Mapping[str, float]) -> np.ndarray:
        return np.array([metrics[name] for name in self._metrics], dtype=np.float64)


class _FaceFlattener(_Flattener):
    """Observations of ``TuneEnv`` as one vector; learns the metrics' scale from measured ones."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._nested = isinstance(space, spaces.Dict) and space.keys() == {"observation", "context"}
        box = cast("spaces.Dict", space)["observation"] if self._nested else space
        if not isinstance(box, spaces.Box) or len(box.shape) != 1:
            raise TunegymError(f"this wraps an environment of tunegym.make(), not one with {space}")
        super().__init__(box.shape[0] - 1, cast("Any", space)["context"] if self._nested else None)

    def __call__(self, observation: Any) -> np.ndarray:
        """The vector."""
        slots = np.array(observation["observation"] if self._nested else observation, dtype=np.float64)
        if slots[-1]:
            self.scale.learn(slots[:-1])
            slots[:-1] = self.scale.scaled(slots[:-1])
        return self.vector(slots, observation["context"] if self._nested else {})


class NormalizedObservations(gymnasium.ObservationWrapper[Any, Any, Any]):
    """One flat float32 ``Box``: metrics in standard deviations from their mean so far, discrete leaves one-hot."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._flatten = _FaceFlattener(env.observation_space)
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
        self._flatten = _FaceFlattener(env.single_observation_space)
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


def _below(env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any], wanted: type[_Env], maker: str) -> _Env:
    if not isinstance(env.unwrapped, wanted):
        raise TunegymError(f"this wraps an environment of {maker}, not {type(env.unwrapped).__name__}")
    return env.unwrapped
