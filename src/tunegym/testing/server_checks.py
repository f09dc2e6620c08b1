"""The checks of a ``GymServer``, one by one: what ``check_gym_server`` and ``GymServerSuite`` are made of."""

from __future__ import annotations

import contextlib
import copy
import inspect
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from tunegym.testing.elements import corner, same
from tunegym.testing.examination import Examination, Unfit
from tunegym.tuning.servers.host import RAISED, error_text
from tunegym.tuning.spaces import SpaceError, build, describe, differences

_METHODS = {
    "reset": ("def reset(self, *, seed=None, options=None)", (), {"seed": 0, "options": {}}),
    "step": ("def step(self, action)", (0,), {}),
    "close": ("def close(self)", (), {}),
}
_APPLY = "def apply_env_params(self, params)"
_SHORT = 20
_UNKNOWN = "tunegym_no_such_param"


def examine(examined: Examination, *which: Callable[[Examination], None]) -> None:
    """Do some checks, after ``is_complete``: without that there is nothing to drive."""
    examined.examine(is_complete)
    if not examined.problems:
        examined.examine(*which)


def is_complete(examined: Examination) -> None:
    """It can be built, and has the spaces and the methods of a server."""
    with examined.built() as server:
        for name in ("action_space", "observation_space"):
            try:
                describe(getattr(server, name))
            except SpaceError as error:
                examined.problem(name, f"{name}: {error}")
            except RAISED as error:
                if isinstance(error, AttributeError) and not hasattr(type(server), name):
                    what = f"it has no {name}: set self.{name} in __init__ to a space of gymnasium.spaces"
                else:
                    what = f"{name} raised {error_text(error)}: set self.{name} in __init__"
                examined.problem(name, what)
        for name, (signature, positional, named) in _METHODS.items():
            method = getattr(server, name, None)
            if not callable(method):
                examined.problem(name, f"it has no {name}(): write {signature}")
            elif (reason := _refusal(method, *positional, **named)) is not None:
                examined.problem(name, f"{name}() can't be called as tunegym does ({reason}): write {signature}")
        _has_apply(examined, getattr(server, "apply_env_params", None))


def _has_apply(examined: Examination, method: Any) -> None:
    if method is None:
        if examined.env_params:
            names = ", ".join(examined.env_params)
            examined.problem(
                "apply", f"it has no apply_env_params(), and there are env_params ({names}): write {_APPLY}"
            )
        return
    reason = _refusal(method, {}) if callable(method) else "it is no method"
    if reason is not None:
        examined.problem("apply", f"apply_env_params can't be called as tunegym does ({reason}): write {_APPLY}")


def _refusal(method: Callable[..., Any], *positional: Any, **named: Any) -> str | None:
    try:
        inspect.signature(method).bind(*positional, **named)
    except TypeError as error:
        return str(error)
    except ValueError:  # it doesn't say what it takes
        return None
    return None


def walks(examined: Examination) -> None:
    """Many steps with drawn actions, over the ends of episodes."""
    before = random.getstate(), repr(np.random.get_state())
    with examined.built() as server:
        examined.walk(server, examined.steps)
    if (random.getstate(), repr(np.random.get_state())) != before:
        examined.doubt(
            "global",
            "it draws from, or seeds, a random generator that everybody shares (random or np.random): what else "
            "runs in the process changes what it does; make one of its own, np.random.default_rng(seed)",
        )


def takes_corners(examined: Examination) -> None:
    """The smallest and the largest of every action."""
    with examined.built() as server:
        for upper in (False, True):
            action = corner(build(describe(examined.space(server, "action_space"))), upper=upper)
            examined.reset(server, seed=examined.seed)
            with contextlib.suppress(Unfit):
                examined.step(server, action, f", the {'largest' if upper else 'smallest'} action of its space,")


def resets_anywhere(examined: Examination) -> None:
    """Twice in a row, in the middle of an episode, and after a step that came too late."""
    with examined.built() as server:
        examined.reset(server, seed=examined.seed)
        examined.reset(server, " right after another reset")
        if not examined.ends(server, 3):
            examined.reset(server, " in the middle of an episode")
            examined.step(server, examined.actions(server)(), " after a reset in the middle of an episode")
        examined.reset(server)
        if examined.ends(server, examined.steps):
            with contextlib.suppress(*RAISED):  # it may refuse, as long as a reset helps
                server.step(examined.actions(server)())
            examined.reset(server, " after a step past the end of an episode")


def keeps_its_seed(examined: Examination) -> None:
    """The same seed, the same beginning."""
    with examined.built() as server:
        first = copy.deepcopy(examined.reset(server, seed=examined.seed))
        if not same(first, examined.reset(server, seed=examined.seed)):
            examined.doubt(
                "seed",
                f"two resets with seed={examined.seed} give different observations: fine for a live system, but what "
                "could be repeated should be; make its random generator anew from the seed",
            )


def closes(examined: Examination) -> None:
    """Right after it was built, in the middle of an episode, and twice."""
    for begin in (False, True):
        with examined.built() as server:
            when = " in the middle of an episode" if begin else " before the first reset"
            if begin:
                examined.reset(server, seed=examined.seed)
            for again in (when, " a second time"):
                try:
                    server.close()
                except RAISED as error:
                    what = "let it do nothing then" if again != when else "let go of what there is"
                    examined.problem(f"close{again}", f"close(){again} raised {error_text(error)}: {what}")
                    return


def has_company(examined: Examination) -> None:
    """A second one beside it: with the same spaces, and without a trace in the first."""
    steps = min(examined.steps, _SHORT)
    with examined.built() as first:
        alone = examined.walk(first, steps)
        repeats = same(alone, examined.walk(first, steps))
        try:
            second = examined.make(**examined.arguments)
        except RAISED as error:
            examined.doubt(
                "second", f"a second one can't be built beside the first ({error_text(error)}): slots must stay 1"
            )
            return
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.suppress(*RAISED))
            stack.callback(second.close)
            _is_alike(examined, first, second)
            walking = examined.walking(second)
            together = examined.walk(first, steps, lambda: next(walking))
            if repeats and not same(alone, together):
                examined.problem(
                    "shared",
                    "what a second one does changes what the first one gives: keep state in self, not in the class or "
                    "the module",
                )


def _is_alike(examined: Examination, first: Any, second: Any) -> None:
    for name in ("action_space", "observation_space"):
        for line in differences(getattr(first, name), getattr(second, name), name):
            examined.problem(f"other {name}", f"built twice alike, it has other spaces ({line}): make them equal")
            raise Unfit


def takes_env_params(examined: Examination) -> None:
    """Before the first reset, between resets and between steps; and each of them makes a difference."""
    if not examined.env_params:
        return
    first = {name: _values(value)[0] for name, value in examined.env_params.items()}
    last = {name: _values(value)[-1] for name, value in examined.env_params.items()}
    with examined.built() as server:
        _apply(examined, server, first, "before the first reset")
        examined.reset(server, " after apply_env_params", examined.seed)
        if not examined.ends(server, 1):
            _apply(examined, server, last, "in the middle of an episode")
            examined.step(server, examined.actions(server)(), " after apply_env_params in the middle of an episode")
        _apply(examined, server, last, "between two episodes")
        examined.reset(server, " after apply_env_params between two episodes", examined.seed)
        _refuses_unknown(examined, server, last)
    _make_a_difference(examined, first)


def _refuses_unknown(examined: Examination, server: Any, params: dict[str, Any]) -> None:
    try:
        server.apply_env_params({**params, _UNKNOWN: 1})
    except RAISED:  # as it should
        return
    examined.doubt(
        "unknown",
        "apply_env_params() takes a name that it can't know without a word: raise, or a misspelt env_param goes "
        "unnoticed",
    )


def _apply(examined: Examination, server: Any, params: dict[str, Any], when: str) -> None:
    given = dict(params)
    try:
        server.apply_env_params(given)
    except RAISED as error:
        examined.problem(
            f"apply raises {error_text(error)}", f"apply_env_params({params}) {when} raised {error_text(error)}"
        )
        raise Unfit from error


def _make_a_difference(examined: Examination, first: dict[str, Any]) -> None:
    for name, value in examined.env_params.items():
        values = _values(value)
        if len(values) < 2:
            continue
        seen = []
        for one in (values[0], values[-1]):
            with examined.built() as server:
                _apply(examined, server, {**first, name: one}, "before the first reset")
                seen.append(examined.walk(server, examined.steps))
        if same(*seen):
            examined.doubt(
                f"no effect of {name}",
                f"{name} = {values[0]!r} and {name} = {values[-1]!r} give the very same {examined.steps} steps: "
                "is it used?",
            )


def _values(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


CHECKS = (walks, resets_anywhere, takes_corners, keeps_its_seed, takes_env_params, closes, has_company)
"""All but ``is_complete``, which comes before any."""
