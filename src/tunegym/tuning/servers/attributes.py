"""A context as attributes of an object: found by name, checked, and set together or not at all."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np

from tunegym.core.errors import TunegymError
from tunegym.core.spelling import closest
from tunegym.tuning.servers.library import known_of


class EnvParamError(TunegymError):
    """An env_param that can't be applied; nothing was changed."""

    def __str__(self) -> str:
        return one_line(self)


def one_line(error: TunegymError) -> str:
    """As a server's errors are shown: they become the reason of a failed step."""
    return f"{error.message}; {error.hint}" if error.hint else error.message


@dataclass(frozen=True)
class _Target:
    """Where an env_param goes: the objects on the way, the attribute, and what makes a value fit for it."""

    way: tuple[str, ...]
    attribute: str
    fitted: Callable[[Any], Any]

    def owner(self, top: Any) -> Any:
        for part in self.way:
            top = getattr(top, part)
        return top


class Attributes:
    """The attributes of ``env`` that env_params name; dots reach into attributes (``car.mass``).

    Args:
        env: an unwrapped environment that has just been built.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._known = known_of(env)
        self._built = {name: getattr(env, name) for name in self._known.bounded if hasattr(env, name)}
        self._targets: dict[str, _Target] = {}
        self._applied: dict[str, Any] = {}

    def apply(self, params: Mapping[str, Any]) -> None:
        """Set them all, and what follows from them. Raises ``EnvParamError``, and then nothing is set."""
        targets = self._targets
        if not targets.keys() >= params.keys():
            targets |= {name: self._target(name) for name in params if name not in targets}
        fitted = {name: targets[name].fitted(value) for name, value in params.items()}
        self._set(fitted)
        self._applied = fitted

    def _set(self, fitted: Mapping[str, Any]) -> None:
        env = self._env
        before: list[tuple[Any, str, Any]] = []
        name = ""
        try:
            for name, value in fitted.items():
                target = self._targets[name]
                owner = target.owner(env)
                before.append((owner, target.attribute, getattr(owner, target.attribute)))
                setattr(owner, target.attribute, value)
            for name, (_, compute) in self._known.derived.items():
                before.append((env, name, getattr(env, name)))
                setattr(env, name, compute(env))
        except Exception as error:
            for owner, attribute, old in reversed(before):  # one that was refused may be half done, so it is among them
                with contextlib.suppress(Exception):
                    setattr(owner, attribute, old)
            done = f"set to {fitted[name]!r}" if name in fitted else "computed again"
            raise EnvParamError(f"{name} can't be {done}: {type(error).__name__}: {error}") from error

    def check_kept(self) -> None:
        """Raise ``EnvParamError`` if what was applied is there no more: then it had no effect."""
        for name, value in self._applied.items():
            target = self._targets[name]
            found = getattr(target.owner(self._env), target.attribute, None)
            if found is not value and found != value:
                raise EnvParamError(
                    f"the environment's reset() made {name} {found!r} again, after it was set to {value!r}",
                    hint=f"it draws or fixes {name} itself, so that {name} can't be an env_param",
                )

    def _target(self, name: str) -> _Target:
        *way, attribute = name.split(".")
        owner = self._env
        for depth, part in enumerate(way, start=1):
            owner = self._reached(owner, part, name, ".".join(way[: depth - 1]))
        found = self._reached(owner, attribute, name, ".".join(way))
        self._refuse_what_is_known(name)
        declared = getattr(type(owner), attribute, None)
        if isinstance(declared, property) and declared.fset is None:
            others = _listed(_numeric(owner, self._hidden if not way else ()))
            raise EnvParamError(f"{name} can't be set: it is computed from others", hint=f"there is: {others}")
        kind = type(found)
        check = partial(self._fitted, name, kind, found)
        if kind not in (bool, str) and not (isinstance(found, Real | np.number) and not isinstance(found, np.bool_)):
            others = _listed(_numeric(owner, self._hidden if not way else ()))
            what = f"{name} is no single number or text, but of type {kind.__name__}"
            raise EnvParamError(what, hint=f"name what is in it, as in {name}.x, or one of: {others}")
        return _Target(tuple(way), attribute, check)

    def _reached(self, owner: Any, part: str, name: str, above: str) -> Any:
        try:
            return getattr(owner, part)
        except AttributeError:
            names = _numeric(owner, () if above else self._hidden)
            near = closest(part, names)
            where = f"{type(self._env).__name__}.{above}" if above else type(self._env).__name__
            guess = f"did you mean {f'{above}.{near}' if above else near!r}? " if near else ""
            raise EnvParamError(
                f"{where} has no attribute {part!r}, which the env_param {name} would set",
                hint=f"{guess}there is: {_listed(names)}",
            ) from None

    @property
    def _hidden(self) -> tuple[str, ...]:
        return (*self._known.idle, *self._known.derived)

    def _refuse_what_is_known(self, name: str) -> None:
        known, env = self._known, type(self._env).__name__
        if name in known.idle:
            others = _listed(_numeric(self._env, self._hidden))
            what = f"{name} changes nothing that {env} does: {known.idle[name]}"
            raise EnvParamError(what, hint=f"there is: {others}")
        if name in known.derived:
            sources = " and ".join(known.derived[name][0])
            raise EnvParamError(f"{name} follows from {sources}", hint=f"make {sources} env_params")

    def _fitted(self, name: str, kind: Any, example: Any, value: Any) -> Any:
        """``value`` as the attribute's own kind."""
        if kind is float and type(value) is float and math.isfinite(value):  # most are, and a step may be waiting
            self._check_bound(name, value)
            return value
        if kind in (bool, str):
            if type(value) is not kind:
                raise _other_kind(name, example, value)
            allowed = self._known.words.get(name)
            if allowed and value not in allowed:
                raise EnvParamError(f"{name} can't be {value!r}", hint=f"it may be: {', '.join(allowed)}")
            return value
        if isinstance(value, bool | np.bool_ | str) or not isinstance(value, Real | np.number):
            raise _other_kind(name, example, value)
        if not math.isfinite(value):
            raise EnvParamError(f"{name} can't be {value}: it must be finite")
        fitted = _as_number(name, kind, example, value, real=name in self._known.real)
        self._check_bound(name, fitted)
        return fitted

    def _check_bound(self, name: str, value: Any) -> None:
        side = self._known.bounded.get(name)
        if side is None or name not in self._built:
            return
        built = self._built[name]
        if value > built if side == "above" else value < built:
            bound = "most" if side == "above" else "least"
            raise EnvParamError(
                f"{name} = {value} is beyond the environment's spaces, which were made for {built}",
                hint=f"spaces stay as they are while an experiment runs: {name} may be at {bound} {built}",
            )


def _as_number(name: str, kind: Any, example: Any, value: Any, *, real: bool) -> Any:
    if not isinstance(example, Integral):
        return kind(value)  # an integer for a float is a float
    if float(value).is_integer():
        return kind(int(value))
    if real:
        return float(value)
    raise EnvParamError(
        f"{name} is an integer ({example}), and {value} is none",
        hint=f"if any number will do, let the environment begin with {name} = {float(example)}",
    )


def _other_kind(name: str, example: Any, value: Any) -> EnvParamError:
    kind = {bool: "true or false", str: "a text"}.get(type(example), "a number")
    return EnvParamError(f"{name} is {kind} ({example!r}), and {value!r} is not", hint=f"give {kind}")


def _numeric(owner: Any, hidden: tuple[str, ...]) -> list[str]:
    """The names of single numbers that can be set, and of objects that hold some."""
    names = []
    for name in dir(owner):
        declared = getattr(type(owner), name, None)
        if name.startswith("_") or name in hidden or (isinstance(declared, property) and declared.fset is None):
            continue
        try:
            found = getattr(owner, name)
        except Exception:  # out of a property of the user's, of which nothing is wanted
            continue
        if isinstance(found, Real | np.number) and not isinstance(found, bool | np.bool_):
            names.append(name)
    return names


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "nothing that is a number"
