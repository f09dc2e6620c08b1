"""``check_gym_server``: what it finds in broken servers, what it doubts, and what it lets pass."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from tests.sample_servers import Echo

from tunegym.servers import GymnasiumServer
from tunegym.testing.servers import GymServerError, GymServerSuite, GymServerWarning, check_gym_server


class Good:
    """A cart that is pushed, for ten steps."""

    def __init__(self, mass: float = 1.0) -> None:
        self.action_space: Any = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space: Any = spaces.Box(-100.0, 100.0, (2,), np.float32)
        self.mass = mass
        self.random = np.random.default_rng()
        self.at = np.zeros(2, np.float32)
        self.taken = 0

    def apply_env_params(self, params: Any) -> None:
        (name,) = params
        if name != "mass":
            raise ValueError(f"no such parameter: {name}")
        self.mass = params[name]

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.taken = 0
        self.at = self.random.uniform(-1, 1, 2).astype(np.float32)
        return self.at.copy(), {}

    def step(self, action: Any) -> Any:
        self.taken += 1
        self.at = (self.at + np.asarray(action, np.float32) / self.mass).astype(np.float32)
        return self.at.copy(), float(-abs(self.at).sum()), False, self.taken >= 10, {"taken": self.taken}

    def close(self) -> None:
        pass


def patched(**attributes: Any) -> type[Good]:
    """A server with other methods or attributes."""
    return type("Patched", (Good,), attributes)


def built(**attributes: Any) -> type[Good]:
    """A server whose constructor sets other attributes."""

    def init(self: Any) -> None:
        Good.__init__(self)
        vars(self).update(attributes)

    return patched(__init__=init)


def resetting(make: Callable[[Any, Any], Any]) -> type[Good]:
    """A server whose reset gives ``make(server, answer)``, or raises; ``before`` is ``taken`` from before the reset."""

    def reset(self: Any, *, seed: Any = None, options: Any = None) -> Any:
        self.before = self.taken
        return make(self, Good.reset(self, seed=seed))

    return patched(reset=reset)


def stepping(make: Callable[[Any, Any, Any], Any]) -> type[Good]:
    """A server whose step gives ``make(server, action, answer)``, or raises."""
    return patched(step=lambda self, action: make(self, action, Good.step(self, action)))


def changed(**index: Any) -> type[Good]:
    """A server whose steps give something else in a place of the five."""
    names = ("observation", "reward", "terminated", "truncated", "info")
    return stepping(
        lambda self, action, five: tuple(index.get(name, one) for name, one in zip(names, five, strict=True))
    )


def fail(error: BaseException) -> Any:
    raise error


def fail_if(condition: Any, text: str, otherwise: Any = None) -> Any:
    return fail(RuntimeError(text)) if condition else otherwise


NESTED = spaces.Dict({"a": spaces.Discrete(3, start=1), "b": spaces.Tuple([spaces.MultiBinary(2)])})
BITS = np.array([0, 1], np.int8)


def nested(value: Any) -> type[Good]:
    """A server with a nested observation space that gives just this."""
    server = built(observation_space=NESTED)
    server.reset = lambda self, *, seed=None, options=None: (value, {})
    server.step = lambda self, action: (value, *Good.step(self, action)[1:])
    return server


class ClosedOnce(Good):
    closed = False

    def close(self) -> None:
        self.closed = fail_if(self.closed, "closed already", True)


class OddDict(dict):  # type: ignore[type-arg]
    def items(self) -> Any:
        raise RuntimeError("no items")


class OtherSpaces(Good):
    built = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).built += 1
        self.action_space = spaces.Box(-1.0, 1.0 + self.built, (2,), np.float32)


class Shared(Good):
    everywhere: ClassVar[list[float]] = [0.0]

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.everywhere[0] = 0.0
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        self.everywhere[0] += 1.0
        observation, _, *rest = super().step(action)
        return observation, self.everywhere[0], *rest


NO_CORNERS = stepping(lambda self, action, five: fail_if((np.asarray(action) >= 1.0).any(), "too strong", five))
BROKEN: list[tuple[type, str]] = [
    (patched(__init__=lambda self: fail(SystemExit(7))), "it could not be built: SystemExit: 7"),
    (patched(step=lambda self, action: fail(GeneratorExit())), "raised GeneratorExit"),
    (changed(info=OddDict()), "an answer could not be read (walks): RuntimeError: no items"),
    (patched(__init__=lambda self: None), "it has no action_space: set self.action_space in __init__"),
    (built(action_space=spaces.Text(4)), "action_space: a Text is no space that can be passed on; those are Box,"),
    (patched(reset=None), "it has no reset(): write def reset(self, *, seed=None, options=None)"),
    (patched(reset=lambda self: None), "reset() can't be called as tunegym does (got an unexpected keyword argument"),
    (resetting(lambda self, answer: answer[0]), "reset() returned no tuple, not two: return observation, info"),
    (resetting(lambda self, answer: fail_if(True, "not ready")), "reset(seed=0) raised RuntimeError: not ready"),
    (
        stepping(lambda self, action, answer: (*answer[:2], *answer[3:])),
        "step() returned 4 values, not five (done has become terminated and truncated): return observation, reward,",
    ),
    (changed(observation=np.array([0, np.nan], np.float32)), "it is NaN at [1]"),
    (changed(observation=np.zeros((2, 1), np.float32)), "it has the shape (2, 1), and the space says (2,)"),
    (changed(observation=np.zeros(2)), "it is of float64, and the space says float32: return np.array(..., dtype="),
    (changed(observation=[0.0, 0.0]), "it is [0.0, 0.0] (list), not a numpy array"),
    (changed(reward=np.float32("-inf")), "the reward of step() is -inf: it must be finite"),
    (changed(reward=np.zeros(1)), "the reward of step() is an array of shape (1,), not a number: return float(reward)"),
    (changed(reward=10**400), "and float() of it raises OverflowError"),
    (changed(terminated=0), "terminated of step() is 0 (int), not True or False: return bool(terminated)"),
    (changed(info=None), "info of step() is None, not a dict: return {} at least"),
    (nested({"a": 0, "b": (BITS,)}), "at ['a'] it is 0, not one of 1 to 3"),
    (nested({"a": 1.5, "b": (BITS,)}), "at ['a'] it is 1.5 (float), not an integer"),
    (nested({"a": 1, "b": (BITS,), "c": 1}), "it has the key 'c', which the space has not"),
    (nested({"a": 1, "b": (BITS + 1,)}), "at ['b'][0] it is 2 at [1], outside of the space, which goes from 0 to 1"),
    (nested((1, 2)), "it is (1, 2) (tuple), not a dict with the keys a, b"),
    (
        resetting(lambda self, answer: fail_if(self.before > 10, "wedged", answer)),
        "after a step past the end of an episode raised RuntimeError: wedged",
    ),
    (
        resetting(lambda self, answer: fail_if(0 < self.before < 10, "still running", answer)),
        "in the middle of an episode raised RuntimeError: still running",
    ),
    (NO_CORNERS, "the largest action of its space, raised RuntimeError: too strong"),
    (
        patched(apply_env_params=lambda self, _: fail_if(self.taken, "it has begun")),
        "in the middle of an episode raised RuntimeError: it has begun",
    ),
    (patched(apply_env_params=None), "it has no apply_env_params(), and there are env_params (mass): write def apply_"),
    (ClosedOnce, "close() a second time raised RuntimeError: closed already: let it do nothing then"),
    (
        patched(close=lambda self: fail_if(not self.taken and abs(self.at).sum(), "in use")),
        "close() in the middle of an episode raised RuntimeError: in use",
    ),
    (OtherSpaces, "built twice alike, it has other spaces (action_space:"),
    (Shared, "a second server changes the answers of the first: keep state in self"),
]


@pytest.mark.parametrize(("server", "message"), BROKEN, ids=[f"{at}-{one[1][:40]}" for at, one in enumerate(BROKEN)])
def test_broken(server: type, message: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GymServerWarning)
        with pytest.raises(GymServerError) as raised:
            check_gym_server(server, env_params={"mass": [1.0, 2.0]}, steps=40)
    problems = list(raised.value.problems)
    assert any(message in problem for problem in problems), problems
    assert len(problems) <= 3, "one mistake, and a page of problems"


class Reusing(Good):
    def step(self, action: Any) -> Any:
        self.taken += 1
        self.at += np.asarray(action, np.float32) / self.mass
        return self.at, 0.0, False, self.taken >= 10, {}


class Only(Good):
    alive: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        if self.alive:
            raise OSError("the port is taken")
        super().__init__()
        self.alive.append(self)

    def close(self) -> None:
        self.alive.clear()


FAR = built(observation_space=spaces.Box(-np.inf, np.inf, (2,), np.float32))
FAR.step = lambda self, action: (np.array([0, np.inf], np.float32), *Good.step(self, action)[1:])


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (Reusing, "step() changes the array of the observation before it: tunegym copies it"),
        (
            patched(reset=lambda self, *, seed=None, options=None: Good.reset(self)),  # noqa: PLW0108
            "two resets with seed=0 give different observations",
        ),
        (stepping(lambda self, action, answer: random.random() and answer), "the shared random generator"),
        (
            patched(apply_env_params=lambda self, params: fail_if(params.keys() != {"mass"}, "no")),
            "mass = 1.0 and mass = 2.0 give the very same 200 steps: is it used?",
        ),
        (
            patched(apply_env_params=lambda self, params: setattr(self, "mass", params["mass"])),
            "apply_env_params() takes a name that it can't know without a word",
        ),
        (changed(info={"sets": [{1}]}), "info['sets'] of step() can't go to another process (a set can't be sent)"),
        (Only, "a second one can't be built beside the first (OSError: the port is taken): slots must stay 1"),
        (FAR, "an observation of step() is infinite somewhere"),
    ],
)
def test_doubtful(server: type, message: str) -> None:
    with pytest.warns(GymServerWarning) as raised:
        check_gym_server(server, env_params={"mass": [1.0, 2.0]})
    told = [str(one.message) for one in raised]
    assert len(told) == 1
    assert message in told[0]
    assert told[0].startswith(f"{server.__name__}: ")


def test_sound_servers() -> None:
    before = random.getstate(), repr(np.random.get_state())
    check_gym_server(Echo, arguments={"kind": "everything"})
    check_gym_server(changed(truncated=False), steps=12)  # never ends
    check_gym_server(changed(terminated=True), env_params={"mass": [1.0, 3.0]})  # ends at once
    made: list[Any] = []

    def make(mass: float) -> Good:
        made.append(Good(mass))
        made[-1].close = lambda one=made[-1]: setattr(one, "closed", True)
        return made[-1]

    check_gym_server(make, arguments={"mass": 3.0}, env_params={"mass": [1.0, 3.0]})
    assert all(one.closed for one in made)
    assert (random.getstate(), repr(np.random.get_state())) == before


class TestCartPole(GymServerSuite):
    server = GymnasiumServer
    arguments: ClassVar[dict[str, Any]] = {"env_id": "CartPole-v1"}
    env_params: ClassVar[dict[str, Any]] = {"gravity": [1.0, 9.8], "x_threshold": [0.1, 2.4]}


def test_suite_fails_where_the_mistake_is() -> None:
    suite = type("Suite", (GymServerSuite,), {"server": NO_CORNERS})()
    suite.test_is_complete()
    suite.test_closes()
    with pytest.raises(GymServerError, match="too strong"):
        suite.test_takes_corners()
