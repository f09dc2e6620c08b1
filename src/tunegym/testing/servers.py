"""The contract of a ``GymServer``: check your own before an experiment does.

::

    check_gym_server(MyServer, arguments={"workers": 4}, env_params={"load": [10, 100]})

or, for pytest::

    class TestMine(GymServerSuite):
        server = MyServer
        arguments = {"workers": 4}
        env_params = {"load": [10, 100]}

An ``Examination`` builds servers, drives them as an experiment does, and collects problems and doubts about everything
that they return. Each check is a function of an examination.
"""

from __future__ import annotations

import contextlib
import copy
import math
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from tunegym.core.text import error_text
from tunegym.core.wire import WireError, encode
from tunegym.tuning.servers.host import RAISED
from tunegym.tuning.spaces import SpaceError, bounds, build, describe, differences
from tunegym.tuning.workloads.signature import METHODS, refusal

_WRITE = {
    "reset": "def reset(self, *, seed=None, options=None)",
    "step": "def step(self, action)",
    "close": "def close(self)",
    "apply_env_params": "def apply_env_params(self, params)",
}
_SHORT = 20
_UNKNOWN = "tunegym_no_such_param"
_FIVE = "observation, reward, terminated, truncated, info"


class CheckEndedError(Exception):
    """A check can't continue; the problem has been recorded."""


@dataclass
class Examination:
    """A server under examination."""

    make: Callable[..., Any]  # the class, or a function that makes a server
    arguments: Mapping[str, Any] = field(default_factory=dict)  # its arguments, by name
    # values by name, or lists of values that must make a difference
    env_params: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 200  # length of the longest walk
    seed: int = 0  # of the resets and the actions
    problems: dict[str, str] = field(default_factory=dict)  # to be fixed, by kind, in order
    doubts: dict[str, str] = field(default_factory=dict)  # things that work but may not be meant, by kind

    def problem(self, kind: str, text: str) -> None:
        """Record something that must be fixed; one of each kind is enough."""
        self.problems.setdefault(kind, text)

    def doubt(self, kind: str, text: str) -> None:
        """Record something that may not be meant."""
        self.doubts.setdefault(kind, text)

    def examine(self, *checks: Callable[[Examination], None]) -> None:
        """Run ``is_complete``, then these checks, each to its end or to where it can't continue."""
        for check in (is_complete, *checks):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # such as Gymnasium's about a step after the end
                try:
                    check(self)
                except CheckEndedError:
                    pass
                except RAISED as error:  # a returned array, dict or number may run code
                    part = check.__name__.replace("_", " ")
                    self.problem("raises", f"an answer could not be read ({part}): {error_text(error)}")
            if check is is_complete and self.problems:
                return

    # driving a server -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def built(self) -> Iterator[Any]:
        """Build a server, and close it in the end."""
        with self.calling("it could not be built: "):
            server = self.make(**self.arguments)
        try:
            yield server
        finally:
            with contextlib.suppress(*RAISED):
                server.close()

    def space(self, server: Any, name: str) -> Any:
        """Return one of its spaces, which may be a property."""
        with self.calling(f"{name} raised ", f": set self.{name} in __init__"):
            return getattr(server, name)

    def reset(self, server: Any, when: str = "", seed: int | None = None) -> Any:
        """Begin an episode, look at the answer, and return the observation."""
        with self.calling(f"reset(seed={seed}){when} raised "):
            answer = server.reset(seed=seed, options=None)
        observation, info = self._parts("reset", answer, 2)
        self._look("reset", observation, info, server)
        return observation

    def step(self, server: Any, action: Any, when: str = "") -> tuple[Any, Any, Any, Any, Any]:
        """Take one action, and look at the answer."""
        with self.calling(f"step({_shown(action)}){when} raised "):
            answer = server.step(action)
        observation, reward, terminated, truncated, info = self._parts("step", answer, 5)
        self._look("step", observation, info, server)
        self._look_at_reward(reward)
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool | np.bool_):
                self.problem(name, f"{name} of step() is {_shown(flag)}, not True or False: return bool({name})")
        return observation, reward, terminated, truncated, info

    @contextlib.contextmanager
    def calling(self, before: str, after: str = "") -> Iterator[None]:
        """End the check if the server's code raises; the problem is the error between these texts."""
        try:
            yield
        except RAISED as error:
            kind = before.partition("(")[0]  # the same error of the same method is one problem
            self.problem(f"{kind} {error_text(error)}", f"{before}{error_text(error)}{after}")
            raise CheckEndedError from error

    def _parts(self, method: str, answer: Any, count: int) -> tuple[Any, ...]:
        if isinstance(answer, tuple) and len(answer) == count:
            return answer
        found = f"{len(answer)} values" if isinstance(answer, tuple) else "no tuple"
        old = " (done has become terminated and truncated)" if (count, found) == (5, "4 values") else ""
        number, names = ("two", "observation, info") if count == 2 else ("five", _FIVE)
        self.problem(f"{method} gives", f"{method}() returned {found}, not {number}{old}: return {names}")
        raise CheckEndedError

    def _look(self, method: str, observation: Any, info: Any, server: Any) -> None:
        for flaw in flaws(self.space(server, "observation_space"), observation)[:5]:
            kind = "".join(letter for letter in flaw if not letter.isdigit())  # the same at another step, or by reset
            self.problem(kind, f"the observation of {method}() is not in observation_space: {flaw}")
        if any(array.dtype.kind == "f" and np.isinf(array).any() for array in _arrays(observation)):
            what = f"an observation of {method}() is infinite somewhere: most agents can't learn from it"
            self.doubt("infinite", what)
        if not isinstance(info, dict):
            self.problem(f"info of {method}", f"info of {method}() is {_shown(info)}, not a dict: return {{}} at least")
            return
        for key, value in info.items():
            try:
                encode({key: value})
            except WireError as error:
                what = f"info[{key!r}] of {method}() can't go to another process ({error})"
                self.doubt(f"info {key}", f"{what}: give numbers, texts, arrays, and lists and dicts of them")

    def _look_at_reward(self, reward: Any) -> None:
        if isinstance(reward, bool | np.bool_) or not isinstance(reward, Real | np.number):
            self.problem("reward", f"the reward of step() is {_shown(reward)}, not a number: return float(reward)")
            return
        try:
            if not math.isfinite(float(reward)):
                what = f"the reward of step() is {float(reward)}: it must be finite; raise if there is none to give"
                self.problem("reward", what)
        except (TypeError, ValueError, OverflowError) as error:
            what = f"the reward of step() is {_shown(reward)}, and float() of it raises {error_text(error)}"
            self.problem("reward", what)

    def actions(self, server: Any) -> Callable[[], Any]:
        """Return a function that draws actions from their own generator."""
        space = build(describe(self.space(server, "action_space")))
        space.seed(self.seed)
        return space.sample

    def ends(self, server: Any, steps: int) -> bool:
        """Return whether the episode ends within this many further steps."""
        draw = self.actions(server)
        for _ in range(steps):
            _, _, terminated, truncated, _ = self.step(server, draw())
            if terminated or truncated:
                return True
        return False

    def walk(self, server: Any, steps: int) -> list[Any]:
        """Take steps from a seeded reset on, with a reset after every end; return observations and rewards."""
        return list(islice(self.walking(server), steps + 1))

    def walking(self, server: Any) -> Iterator[Any]:
        """As ``walk``, step by step, without end."""
        draw = self.actions(server)
        observation = self.reset(server, seed=self.seed)
        yield copy.deepcopy(observation)
        while True:
            held = [(array, array.copy()) for array in _arrays(observation)]
            observation, reward, terminated, truncated, _ = self.step(server, draw())
            if any(not same(array, before) for array, before in held):
                what = "step() changes the array of the observation before it: tunegym copies it, and others may not"
                self.doubt("reused", f"{what}; return observation.copy()")
            given = copy.deepcopy(observation), reward
            if terminated or truncated:
                observation = self.reset(server, " after the end of an episode")
            yield given


# checks -----------------------------------------------------------------------------------------------


def is_complete(examined: Examination) -> None:
    """It can be built, and has the spaces and the methods of a server."""
    with examined.built() as server:
        for name in ("action_space", "observation_space"):
            if not hasattr(type(server), name) and not hasattr(server, name):
                what = f"it has no {name}: set self.{name} in __init__ to a space of gymnasium.spaces"
                examined.problem(name, what)
                continue
            with contextlib.suppress(CheckEndedError):
                space = examined.space(server, name)
                try:
                    describe(space)
                except SpaceError as error:
                    examined.problem(name, f"{name}: {error}")
        for name, (given, named) in {**METHODS, "apply_env_params": (({},), {})}.items():
            method = getattr(server, name, None)
            params = ", ".join(examined.env_params) if name == "apply_env_params" else ""
            if name == "apply_env_params" and method is None and not params:
                continue
            if not callable(method):
                needed = f", and there are env_params ({params})" if params else ""
                examined.problem(name, f"it has no {name}(){needed}: write {_WRITE[name]}")
            elif (reason := refusal(method, *given, **named)) is not None:
                examined.problem(name, f"{name}() can't be called as tunegym does ({reason}): write {_WRITE[name]}")


def walks(examined: Examination) -> None:
    """Many steps with drawn actions, over the ends of episodes."""
    before = random.getstate(), repr(np.random.get_state())
    with examined.built() as server:
        examined.walk(server, examined.steps)
    if (random.getstate(), repr(np.random.get_state())) != before:
        what = "it draws from, or seeds, the shared random generator (random or np.random)"
        fix = "make one in reset, np.random.default_rng(seed)"
        examined.doubt("global", f"{what}: other code in the process changes its behaviour; {fix}")


def takes_corners(examined: Examination) -> None:
    """The smallest and the largest value of every part of an action."""
    with examined.built() as server:
        for upper in (False, True):
            action = corner(build(describe(examined.space(server, "action_space"))), upper=upper)
            examined.reset(server, seed=examined.seed)
            with contextlib.suppress(CheckEndedError):
                examined.step(server, action, f", the {'largest' if upper else 'smallest'} action of its space,")


def resets_anywhere(examined: Examination) -> None:
    """Twice in a row, in the middle of an episode, and after a step past the end."""
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
            what = f"two resets with seed={examined.seed} give different observations: fine for a live system"
            fix = "what could be repeated should be; make a new random generator from the seed"
            examined.doubt("seed", f"{what}, but {fix}")


def closes(examined: Examination) -> None:
    """Right after it was built, in the middle of an episode, and twice."""
    for begin in (False, True):
        with examined.built() as server:
            when = " in the middle of an episode" if begin else " before the first reset"
            if begin:
                examined.reset(server, seed=examined.seed)
            with examined.calling(f"close(){when} raised ", ": release what exists then"):
                server.close()
            with examined.calling("close() a second time raised ", ": let it do nothing then"):
                server.close()


def has_company(examined: Examination) -> None:
    """A second server beside it has the same spaces, and doesn't change the first."""
    steps = min(examined.steps, _SHORT)
    with examined.built() as first:
        alone = examined.walk(first, steps)
        repeats = same(alone, examined.walk(first, steps))
        try:
            second = examined.make(**examined.arguments)
        except RAISED as error:
            what = f"a second one can't be built beside the first ({error_text(error)}): slots must stay 1"
            examined.doubt("second", what)
            return
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.suppress(*RAISED))
            stack.callback(second.close)
            for name in ("action_space", "observation_space"):
                for line in differences(getattr(first, name), getattr(second, name), name):
                    what = f"built twice alike, it has other spaces ({line}): make them equal"
                    examined.problem(f"other {name}", what)
                    raise CheckEndedError
            both = zip(examined.walking(first), examined.walking(second), strict=True)
            together = [one for one, _ in islice(both, steps + 1)]
            if repeats and not same(alone, together):
                what = "a second server changes the answers of the first"
                examined.problem("shared", f"{what}: keep state in self, not in the class or the module")


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
        try:
            server.apply_env_params({**last, _UNKNOWN: 1})
        except RAISED:  # as it should
            pass
        else:
            what = "apply_env_params() takes a name that it can't know without a word"
            examined.doubt("unknown", f"{what}: raise, or a misspelt env_param goes unnoticed")
    for name, value in examined.env_params.items():
        _makes_a_difference(examined, first, name, _values(value))


def _apply(examined: Examination, server: Any, params: dict[str, Any], when: str) -> None:
    with examined.calling(f"apply_env_params({params}) {when} raised "):
        server.apply_env_params(dict(params))


def _makes_a_difference(examined: Examination, params: dict[str, Any], name: str, values: list[Any]) -> None:
    if len(values) < 2:
        return
    seen = []
    for one in (values[0], values[-1]):
        with examined.built() as server:
            _apply(examined, server, {**params, name: one}, "before the first reset")
            seen.append(examined.walk(server, examined.steps))
    if same(*seen):
        what = f"{name} = {values[0]!r} and {name} = {values[-1]!r} give the very same {examined.steps} steps"
        examined.doubt(f"no effect of {name}", f"{what}: is it used?")


def _values(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


CHECKS = (walks, resets_anywhere, takes_corners, keeps_its_seed, takes_env_params, closes, has_company)


# elements of a space ----------------------------------------------------------------------------------


def flaws(space: spaces.Space[Any], value: Any, where: str = "") -> list[str]:
    """Return the flaws of ``value`` as an element of ``space``."""
    at = f"at {where} it " if where else "it "
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict):
            return [f"{at}is {_shown(value)}, not a dict with the keys {', '.join(map(str, space.spaces))}"]
        found = [f"{at}lacks the key {key!r} of the space" for key in space.spaces if key not in value]
        found += [f"{at}has the key {key!r}, which the space has not" for key in value if key not in space.spaces]
        both = [key for key in space.spaces if key in value]
        return found + [flaw for key in both for flaw in flaws(space.spaces[key], value[key], f"{where}[{key!r}]")]
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple) or len(value) != len(space.spaces):
            return [f"{at}is {_shown(value)}, not a tuple of {len(space.spaces)}"]
        parts = enumerate(zip(space.spaces, value, strict=True))
        return [flaw for place, (one, found) in parts for flaw in flaws(one, found, f"{where}[{place}]")]
    flaw = _index_flaw(space, value) if isinstance(space, spaces.Discrete) else _array_flaw(space, value)
    return [f"{at}{flaw}"] if flaw else []


def _index_flaw(space: spaces.Discrete, value: Any) -> str:
    if isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "iu":
        value = value.item()
    if not isinstance(value, Integral):
        return f"is {_shown(value)}, not an integer: return int(...)"
    first, last = int(space.start), int(space.start + space.n) - 1
    return "" if first <= int(value) <= last else f"is {int(value)}, not one of {first} to {last}, as {space} says"


def _array_flaw(space: spaces.Space[Any], value: Any) -> str:
    dtype, shape = np.dtype(space.dtype), tuple(space.shape or ())
    if not isinstance(value, np.ndarray | np.generic):
        return f"is {_shown(value)}, not a numpy array: return np.array(..., dtype=np.{dtype})"
    if value.shape != shape:
        return f"has the shape {value.shape}, and the space says {shape}"
    if value.dtype != dtype:
        return f"is of {value.dtype}, and the space says {dtype}: return np.array(..., dtype=np.{dtype})"
    array, (low, high) = np.asarray(value), bounds(space)
    wrong = np.isnan(array) if array.dtype.kind == "f" and np.isnan(array).any() else (array < low) | (array > high)
    if not wrong.any():
        return ""
    place = tuple(map(int, np.argwhere(wrong)[0]))
    at = f" at {list(place)}" if place else ""
    if np.isnan(array[place]):
        return f"is NaN{at}"
    ends = f"{np.broadcast_to(low, shape)[place]:g} to {np.broadcast_to(high, shape)[place]:g}"
    return f"is {array[place]}{at}, outside of the space, which goes from {ends}"


def corner(space: spaces.Space[Any], *, upper: bool) -> Any:
    """Return the element at the end of every range; where there is no end, as far as 1e6."""
    if isinstance(space, spaces.Dict):
        return {key: corner(one, upper=upper) for key, one in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(corner(one, upper=upper) for one in space.spaces)
    end = bounds(space)[upper]
    if isinstance(space, spaces.Discrete):
        return np.dtype(space.dtype).type(end)
    if isinstance(space, spaces.Box):
        low, high = (np.asarray(side, dtype=np.float64) for side in (space.low, space.high))
        far = np.clip(1e6 if upper else -1e6, low, high)
        end = np.where(np.isfinite(np.asarray(end, dtype=np.float64)), end, far)
    return np.full(space.shape or (), end, dtype=space.dtype)


def _arrays(value: Any) -> Iterator[np.ndarray]:
    """Every array in an element."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict | tuple | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _arrays(one)


def same(one: Any, other: Any) -> bool:
    """Return whether two elements are equal, NaN included."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, tuple | list):
        return isinstance(other, tuple | list) and len(one) == len(other) and all(map(same, one, other))
    left, right = np.asarray(one), np.asarray(other)
    return np.array_equal(left, right, equal_nan=left.dtype.kind in "fc" and right.dtype.kind in "fc")


def _shown(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a class may raise anything, and a very large integer has no text
        return f"something of type {type(value).__name__}"
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


# the contract -------------------------------------------------------------------------------------------


class GymServerError(AssertionError):
    """A server breaks the contract.

    Attributes:
        problems: one sentence for each problem, with what to do.
    """

    def __init__(self, name: str, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__("\n".join([f"{name} is no GymServer yet, {count}:", *(f"- {one}" for one in self.problems)]))


class GymServerWarning(UserWarning):
    """The server works, but something may not be meant."""


def check_gym_server(
    build: Callable[..., Any],
    *,
    arguments: Mapping[str, Any] | None = None,
    env_params: Mapping[str, Any] | None = None,
    steps: int = 200,
    seed: int = 0,
) -> None:
    """Build servers, drive them as an experiment does, and report everything that is wrong.

    Several servers are built, two of them side by side, and each is closed.

    Args:
        build: the class, or a function that makes a server.
        arguments: its arguments, by name.
        env_params: a value for each name; of a list, the first and the last value should make a difference.
        steps: length of the longest walk.
        seed: of the resets and of the actions, which are drawn from ``action_space``.

    Raises:
        GymServerError: (an ``AssertionError``) with every problem.

    Warns:
        GymServerWarning: something works, but may not be meant.
    """
    examined = Examination(build, arguments or {}, env_params or {}, steps, seed)
    examined.examine(*CHECKS)
    _conclude(examined)


def _conclude(examined: Examination) -> None:
    name = getattr(examined.make, "__name__", None) or type(examined.make).__name__
    for doubt in examined.doubts.values():
        warnings.warn(f"{name}: {doubt}", GymServerWarning, stacklevel=3)
    if examined.problems:
        raise GymServerError(name, examined.problems.values())


def _test_of(*which: Callable[[Examination], None]) -> Callable[[GymServerSuite], None]:
    return lambda self: self.examine(*which)


class GymServerSuite:
    """The contract of a ``GymServer``, as tests.

    Attributes:
        server: the class, or a function that makes a server.
        arguments: its arguments, by name.
        env_params: as in ``check_gym_server``.
        steps: length of the longest walk.
        seed: of the resets and the actions.
    """

    server: ClassVar[Callable[..., Any]]
    arguments: ClassVar[Mapping[str, Any]] = {}
    env_params: ClassVar[Mapping[str, Any]] = {}
    steps: ClassVar[int] = 200
    seed: ClassVar[int] = 0

    def examine(self, *which: Callable[[Examination], None]) -> None:
        """Run some of the checks."""
        examined = Examination(type(self).server, self.arguments, self.env_params, self.steps, self.seed)
        examined.examine(*which)
        _conclude(examined)

    test_is_complete = _test_of()
    test_walks = _test_of(walks)
    test_takes_corners = _test_of(takes_corners)
    test_resets_anywhere = _test_of(resets_anywhere)
    test_keeps_its_seed = _test_of(keeps_its_seed)
    test_takes_env_params = _test_of(takes_env_params)
    test_closes = _test_of(closes)
    test_has_company = _test_of(has_company)
