"""A ``GymServer`` under examination: driven as an experiment does, with a look at all that it gives."""

from __future__ import annotations

import contextlib
import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np

from tunegym.core.wire import WireError, encode
from tunegym.testing.elements import arrays, flaws, same, shown
from tunegym.tuning.servers.host import RAISED, error_text
from tunegym.tuning.spaces import build, describe

_FIVE = "observation, reward, terminated, truncated, info"


class Unfit(Exception):  # noqa: N818 - raised and caught here: it ends a check that can't go on
    """The check can't go on; the problem has been written down."""


@dataclass
class Examination:
    """A server under examination, and what was found.

    Attributes:
        make: the class, or what else makes one.
        arguments: what it is made with.
        env_params: values, or lists of values that must make a difference.
        steps: of the longest walk.
        seed: of the resets and the actions.
        problems: what must be mended, in order; one of each kind.
        doubts: what may be as it is, but is worth a look.
    """

    make: Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    env_params: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 200
    seed: int = 0
    problems: dict[str, str] = field(default_factory=dict)
    doubts: dict[str, str] = field(default_factory=dict)

    def problem(self, kind: str, text: str) -> None:
        """Write down what must be mended, unless there is one of its kind already."""
        self.problems.setdefault(kind, text)

    def doubt(self, kind: str, text: str) -> None:
        """Write down what is worth a look."""
        self.doubts.setdefault(kind, text)

    def examine(self, *checks: Callable[[Examination], None]) -> None:
        """Do these checks, each to its end or to where it can't go on."""
        for check in checks:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # such as Gymnasium's, of a step after the end
                try:
                    check(self)
                except Unfit:
                    pass
                except RAISED as error:  # out of what it gave: an array, a dict or a number of its own kind
                    part = check.__name__.replace("_", " ")
                    self.problem("raises", f"what it gave could not be looked at ({part}): {error_text(error)}")

    # what a check does with a server ------------------------------------------------------------------

    @contextlib.contextmanager
    def built(self) -> Iterator[Any]:
        """A server, which is closed in the end."""
        try:
            server = self.make(**self.arguments)
        except RAISED as error:
            self.problem("build", f"it could not be built: {error_text(error)}")
            raise Unfit from error
        try:
            yield server
        finally:
            with contextlib.suppress(*RAISED):
                server.close()

    def space(self, server: Any, name: str) -> Any:
        """One of its spaces, which may be a property that does anything."""
        try:
            return getattr(server, name)
        except RAISED as error:
            self.problem(name, f"{name} raised {error_text(error)}: set self.{name} in __init__")
            raise Unfit from error

    def reset(self, server: Any, when: str = "", seed: int | None = None) -> Any:
        """Begin an episode, and look at what is given; the observation."""
        try:
            answer = server.reset(seed=seed, options=None)
        except RAISED as error:
            self.problem(f"reset raises {error_text(error)}", f"reset(seed={seed}){when} raised {error_text(error)}")
            raise Unfit from error
        if not isinstance(answer, tuple) or len(answer) != 2:
            what = "no tuple" if not isinstance(answer, tuple) else f"{len(answer)} values"
            self.problem("reset gives", f"reset() returned {what}, not two: return observation, info")
            raise Unfit
        observation, info = answer
        self._look("reset", observation, info, server)
        return observation

    def step(self, server: Any, action: Any, when: str = "") -> tuple[Any, Any, Any, Any, Any]:
        """Take one action, and look at what is given."""
        try:
            answer = server.step(action)
        except RAISED as error:
            self.problem(f"step raises {error_text(error)}", f"step({shown(action)}){when} raised {error_text(error)}")
            raise Unfit from error
        if not isinstance(answer, tuple) or len(answer) != 5:
            what = "no tuple" if not isinstance(answer, tuple) else f"{len(answer)} values"
            old = " (done has become terminated and truncated)" if what.startswith("4") else ""
            self.problem("step gives", f"step() returned {what}, not five{old}: return {_FIVE}")
            raise Unfit
        observation, reward, terminated, truncated, info = answer
        self._look("step", observation, info, server)
        self._look_at_reward(reward)
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool | np.bool_):
                self.problem(name, f"{name} of step() is {shown(flag)}, not True or False: return bool({name})")
        return observation, reward, terminated, truncated, info

    def _look(self, method: str, observation: Any, info: Any, server: Any) -> None:
        for flaw in flaws(self.space(server, "observation_space"), observation)[:5]:
            kind = "".join(letter for letter in flaw if not letter.isdigit())  # the same at another step, or by reset
            self.problem(kind, f"the observation of {method}() is none of observation_space: {flaw}")
        if any(array.dtype.kind == "f" and np.isinf(array).any() for array in arrays(observation)):
            self.doubt(
                "infinite", f"an observation of {method}() is infinite somewhere: most agents can't learn from it"
            )
        if not isinstance(info, dict):
            self.problem(f"info of {method}", f"info of {method}() is {shown(info)}, not a dict: return {{}} at least")
            return
        for key, value in info.items():
            try:
                encode({key: value})
            except WireError as error:
                self.doubt(
                    f"info {key}",
                    f"info[{key!r}] of {method}() can't go to another process ({error}): "
                    "give numbers, texts, arrays, and lists and dicts of them",
                )

    def _look_at_reward(self, reward: Any) -> None:
        if isinstance(reward, bool | np.bool_) or not isinstance(reward, Real | np.number):
            self.problem("reward", f"the reward of step() is {shown(reward)}, not a number: return float(reward)")
            return
        try:
            number = float(reward)
        except (TypeError, ValueError, OverflowError) as error:
            self.problem(
                "reward", f"the reward of step() is {shown(reward)}, and float() of it raises {error_text(error)}"
            )
            return
        if not math.isfinite(number):
            self.problem(
                "reward", f"the reward of step() is {number}: it must be finite; raise if there is none to give"
            )

    def actions(self, server: Any) -> Callable[[], Any]:
        """Draws actions from a generator of their own."""
        space = build(describe(self.space(server, "action_space")))
        space.seed(self.seed)
        return space.sample

    def ends(self, server: Any, steps: int) -> bool:
        """Whether the episode ends within so many further steps."""
        draw = self.actions(server)
        for _ in range(steps):
            _, _, terminated, truncated, _ = self.step(server, draw())
            if terminated or truncated:
                return True
        return False

    def walk(self, server: Any, steps: int, between: Callable[[], Any] = lambda: None) -> list[Any]:
        """So many steps from a seeded reset on, with a reset after every end; observations and rewards.

        ``between`` is called before each of them.
        """
        walked = self.walking(server)
        seen = [next(walked)]
        for _ in range(steps):
            between()
            seen.append(next(walked))
        return seen

    def walking(self, server: Any) -> Iterator[Any]:
        """What it gives, step by step, for ever."""
        draw = self.actions(server)
        observation = self.reset(server, seed=self.seed)
        yield copy.deepcopy(observation)
        while True:
            held = [(array, array.copy()) for array in arrays(observation)]
            observation, reward, terminated, truncated, _ = self.step(server, draw())
            if any(not same(array, before) for array, before in held):
                self.doubt(
                    "reused",
                    "step() changes the array of the observation before it: tunegym copies it, and others may not; "
                    "return observation.copy()",
                )
            given = copy.deepcopy(observation), reward
            if terminated or truncated:
                observation = self.reset(server, " after the end of an episode")
            yield given
