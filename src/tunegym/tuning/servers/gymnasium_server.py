"""Any Gymnasium environment as a ``GymServer``; its attributes can be env_params."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tunegym.core.errors import TunegymError
from tunegym.core.text import closest


class EnvParamError(TunegymError):
    """An env_param that can't be applied. Shown in one line, as it becomes the reason of a failed step."""

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class GymnasiumServer:
    """Any environment that ``gymnasium.make`` knows, with its time limit and without Gymnasium's checker.

    An env_param is an attribute of the unwrapped environment (``gravity``), or of one of its attributes (``car.mass``):
    a number, a string or a boolean. It is set before the reset or step that it applies to. An environment that computes
    something from the attribute only once, when it is built, doesn't compute it again: then write your own
    ``GymServer``, or override ``apply_env_params``.

    Args:
        env_id: such as ``CartPole-v1``; with ``module:`` before it that module is imported first.
        options: further arguments of ``gymnasium.make``, such as ``max_episode_steps``.
    """

    action_space: spaces.Space[Any]
    observation_space: spaces.Space[Any]

    def __init__(self, env_id: str, **options: Any) -> None:
        self._env: gymnasium.Env[Any, Any] = gymnasium.make(env_id, **{"disable_env_checker": True, **options})
        self._applied: dict[str, Any] = {}
        self.action_space = self._env.action_space
        self.observation_space = self._env.observation_space

    def apply_env_params(self, params: Mapping[str, Any]) -> None:
        """Set attributes of the environment. Raises ``EnvParamError`` before anything is set."""
        env = self._env.unwrapped
        found = {name: _attribute(env, name, value) for name, value in params.items()}
        for name, (owner, attribute, value) in found.items():
            try:
                setattr(owner, attribute, value)
            except Exception as failure:  # a property without a setter, or one that refuses the value
                text = f"{type(failure).__name__}: {failure}"
                raise EnvParamError(f"{name} can't be set to {value!r}: {text}") from failure
        self._applied = {name: value for name, (_, _, value) in found.items()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment, and make sure that the env_params are still set."""
        answer = self._env.reset(seed=seed, options=options)
        for name, value in self._applied.items():
            owner, attribute = _owner(self._env.unwrapped, name)
            found = getattr(owner, attribute)
            if found != value:
                what = f"the environment's reset() set {name} to {found!r}, after it was set to {value!r}"
                hint = f"the environment chooses {name} itself, so {name} can't be an env_param"
                raise EnvParamError(what, hint=hint)
        return answer

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step of the environment."""
        return self._env.step(action)  # type: ignore[return-value]  # a reward is any number there

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def _owner(env: Any, name: str) -> tuple[Any, str]:
    """Return the object that has the attribute, and the attribute's own name. Raises ``EnvParamError``."""
    *path, attribute = name.split(".")
    owner = env
    for part in path:
        if not hasattr(owner, part):
            raise _missing(owner, part, name)
        owner = getattr(owner, part)
    return owner, attribute


def _attribute(env: Any, name: str, value: Any) -> tuple[Any, str, Any]:
    """Return where an env_param goes, and the value to set. Raises ``EnvParamError``."""
    owner, attribute = _owner(env, name)
    if not hasattr(owner, attribute):
        raise _missing(owner, attribute, name)
    present = getattr(owner, attribute)
    if isinstance(present, bool | np.bool_ | str):
        kind = "a string" if isinstance(present, str) else "a boolean"
        if isinstance(value, str) != isinstance(present, str) or not isinstance(value, bool | str):
            raise EnvParamError(f"{name} is {kind} ({present!r}), and {value!r} is not")
        return owner, attribute, value
    if not isinstance(present, Real):
        hint = f"name a number in it, as in {name}.x, or one of: {_listed(owner)}"
        raise EnvParamError(f"{name} is of type {type(present).__name__}, and can't be an env_param", hint=hint)
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise EnvParamError(f"{name} is a number ({present!r}), and {value!r} is no finite number")
    return owner, attribute, float(value) if isinstance(present, float) else value


def _missing(owner: Any, part: str, name: str) -> EnvParamError:
    near = closest(part, _numbers(owner))
    guess = f'did you mean "{near}"? ' if near else ""
    what = f"{type(owner).__name__} has no attribute {part!r}, which the env_param {name} would set"
    return EnvParamError(what, hint=f"{guess}it has: {_listed(owner)}")


def _numbers(owner: Any) -> list[str]:
    names = [name for name in dir(owner) if not name.startswith("_")]
    values = {name: inspect.getattr_static(owner, name, None) for name in names}  # runs no property
    return [name for name, value in values.items() if isinstance(value, Real) and not isinstance(value, bool)]


def _listed(owner: Any) -> str:
    return ", ".join(_numbers(owner)) or "no number"
