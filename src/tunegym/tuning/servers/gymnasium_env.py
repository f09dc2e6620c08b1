"""Any Gymnasium environment as a ``GymServer``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium import error, spaces
from gymnasium.envs.registration import load_env_creator

from tunegym.core.errors import TunegymError
from tunegym.core.spelling import closest
from tunegym.tuning.servers.attributes import Attributes, EnvParamError, one_line

__all__ = ["EnvParamError", "GymnasiumServer", "UnknownEnvError"]

_OF_MAKE = ("max_episode_steps", "disable_env_checker")


class UnknownEnvError(TunegymError):
    """An environment that Gymnasium can't make."""

    def __str__(self) -> str:
        return one_line(self)


class GymnasiumServer:
    """Any environment that ``gymnasium.make`` knows, with its time limit and without Gymnasium's checker around it.

    Numbers, texts and truth values that are attributes of the environment can be env_params: ``gravity``, or
    ``car.mass`` for an attribute of an attribute. They are set before the reset or the step that they are for. In
    Gymnasium's own environments what follows from them is computed again, and what couldn't have an effect is refused.
    An environment that isn't Gymnasium's must read its attributes when it steps or is reset: what it computes from
    them only once, when it is built, stays as it was.

    Args:
        env_id: such as ``CartPole-v1``; with ``module:`` before it that module is imported first.
        options: what ``gymnasium.make`` takes besides, such as ``max_episode_steps``.
    """

    action_space: spaces.Space[Any]
    observation_space: spaces.Space[Any]

    def __init__(self, env_id: str, **options: Any) -> None:
        env = _made(env_id, options)
        self._env = env
        self._attributes = Attributes(env.unwrapped)
        self.action_space = env.action_space
        self.observation_space = env.observation_space
        # Nothing stands between a caller and the environment: a step of CartPole takes 5 us. But for a subclass.
        if type(self).step is GymnasiumServer.step:
            vars(self)["step"] = env.step
        if type(self).reset is GymnasiumServer.reset:
            vars(self)["reset"] = env.reset

    def apply_env_params(self, params: Mapping[str, Any]) -> None:
        """Set attributes of the environment. Raises ``EnvParamError``, and then nothing is set."""
        self._attributes.apply(params)
        if type(self).reset is GymnasiumServer.reset:
            vars(self)["reset"] = self._reset

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Gymnasium's own."""
        return self._env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Gymnasium's own."""
        return self._env.step(action)  # type: ignore[return-value]  # a reward is any number there

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        answer = self._env.reset(seed=seed, options=options)
        self._attributes.check_kept()
        return answer


def _made(env_id: str, options: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    try:
        return gymnasium.make(env_id, **{"disable_env_checker": True, **options})
    except error.UnregisteredEnv as failure:
        names = [name for name in gymnasium.registry if not name.startswith(("phys2d/", "tabular/"))]
        near = closest(env_id, names)
        hint = f"did you mean {near!r}?" if near else 'for an environment of your own write "module:Name-v0"'
        raise UnknownEnvError(f"env_id: {failure}", hint=hint) from failure
    except ModuleNotFoundError as failure:
        module, colon, _ = env_id.partition(":")
        missing = getattr(failure.__cause__, "name", None)
        if not colon or missing is None or not f"{module}.".startswith(f"{missing}."):
            raise
        hint = f"put {module}.py beside the scenario, or install the package that has it"
        raise UnknownEnvError(f"env_id: there is no module {missing!r}", hint=hint) from failure
    except TypeError as failure:
        taken = _taken(env_id)
        unknown = [name for name in options if name not in taken]
        if not taken or not unknown:
            raise
        near = closest(unknown[0], taken)
        guess = f"did you mean {near!r}? " if near else ""
        what = f"{env_id} doesn't take {', '.join(unknown)}"
        raise UnknownEnvError(what, hint=f"{guess}it takes: {', '.join(taken)}") from failure


def _taken(env_id: str) -> list[str]:
    """What an environment may be made with; nothing if it doesn't say."""
    spec = gymnasium.registry.get(env_id.rpartition(":")[2])
    entry = spec.entry_point if spec is not None else None
    if entry is None:
        return []
    creator = load_env_creator(entry) if isinstance(entry, str) else entry
    try:
        parameters = inspect.signature(creator).parameters.values()
    except (TypeError, ValueError):
        return []
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return []
    return [*_OF_MAKE, *(p.name for p in parameters)]
