from __future__ import annotations

import random
import warnings
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces

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


def changed(**index: Any) -> type[Good]:
    """A server whose steps give something else in a place of the five."""
    places = {"observation": 0, "reward": 1, "terminated": 2, "truncated": 3, "info": 4}

    class Changed(Good):
        def step(self, action: Any) -> Any:
            answer = list(super().step(action))
            for name, value in index.items():
                answer[places[name]] = value
            return tuple(answer)

    return Changed


def without(name: str) -> type[Good]:
    """A server that lacks a method."""
    return type("Lacking", (Good,), {name: None})


def spaced(**attributes: Any) -> type[Good]:
    """A server with other spaces."""

    class Spaced(Good):
        def __init__(self) -> None:
            super().__init__()
            vars(self).update(attributes)

    return Spaced


class Unbuildable(Good):
    def __init__(self) -> None:
        raise OSError("the port is taken")


class Spaceless(Good):
    def __init__(self) -> None:
        super().__init__()
        del self.action_space


class OldReset(Good):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class ResetAlone(Good):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0]


class ResetListed(Good):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0], [1]


class ResetOutside(Good):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.array([0, 200], np.float32), {}


class ResetRaises(Good):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        raise RuntimeError("not ready")


class StepRaises(Good):
    def step(self, action: Any) -> Any:
        raise RuntimeError("boom")


class Four(Good):
    def step(self, action: Any) -> Any:
        observation, reward, _, done, info = super().step(action)
        return observation, reward, done, info


class Nothing(Good):
    def step(self, action: Any) -> Any:
        super().step(action)


class NoArgument(Good):
    def step(self) -> Any:  # type: ignore[override]
        return super().step(0)


class BreaksAfterTheEnd(Good):
    broken = False

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if self.broken:
            raise RuntimeError("wedged")
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        self.broken = self.taken >= 10
        return super().step(action)


class NotInTheMiddle(Good):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if 0 < self.taken < 10:
            raise RuntimeError("still running")
        return super().reset(seed=seed)


class OnceReset(Good):
    resets = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.resets += 1
        if self.resets > 1:
            raise RuntimeError("I was reset already")
        return super().reset(seed=seed)


class NoCorners(Good):
    def step(self, action: Any) -> Any:
        if (np.asarray(action) >= 1.0).any():
            raise ValueError("too strong")
        return super().step(action)


class LateParams(Good):
    begun = False

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.begun = True
        return super().reset(seed=seed)

    def apply_env_params(self, params: Any) -> None:
        if not self.begun:
            raise RuntimeError("there is no episode")
        super().apply_env_params(params)


class EarlyParams(LateParams):
    def apply_env_params(self, params: Any) -> None:
        if self.begun:
            raise RuntimeError("it has begun")
        self.mass = params["mass"]


class NoParams(Good):
    apply_env_params: Any = None


class WrongParams(Good):
    def apply_env_params(self) -> None:  # type: ignore[override]
        pass


class ClosedOnce(Good):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


class ClosedInUse(Good):
    def close(self) -> None:
        if self.taken == 0 and abs(self.at).sum():
            raise RuntimeError("in use")


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
        observation, _, terminated, truncated, info = super().step(action)
        return observation, self.everywhere[0], terminated, truncated, info


NAN = np.array([0, np.nan], np.float32)
TALL = np.zeros((2, 1), np.float32)
NESTED = spaces.Dict({"a": spaces.Discrete(3, start=1), "b": spaces.Tuple([spaces.MultiBinary(2)])})


def nested(value: Any) -> type[Good]:
    """A server with a nested observation space that gives just this."""

    class Nested(Good):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = NESTED

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return value, {}

        def step(self, action: Any) -> Any:
            return (value, *super().step(action)[1:])

    return Nested


BITS = np.array([0, 1], np.int8)

BROKEN: list[tuple[type, str]] = [
    (Unbuildable, "it could not be built: OSError: the port is taken"),
    (Spaceless, "it has no action_space: set self.action_space in __init__"),
    (spaced(observation_space=(2,)), "observation_space: (2,) is no space that can be passed on"),
    (spaced(action_space=spaces.Text(4)), "action_space: a Text is no space that can be passed on; those are Box,"),
    (without("reset"), "it has no reset(): write def reset(self, *, seed=None, options=None)"),
    (without("step"), "it has no step(): write def step(self, action)"),
    (without("close"), "it has no close(): write def close(self)"),
    (OldReset, "reset() can't be called as tunegym does (got an unexpected keyword argument 'seed')"),
    (NoArgument, "step() can't be called as tunegym does (too many positional arguments)"),
    (ResetAlone, "reset() returned no tuple, not two: return observation, info"),
    (ResetListed, "info of reset() is [1] (list), not a dict"),
    (ResetOutside, "the observation of reset() is none of observation_space: it is 200.0 at [1], outside of the space"),
    (ResetRaises, "reset(seed=0) raised RuntimeError: not ready"),
    (StepRaises, "raised RuntimeError: boom"),
    (
        Four,
        "step() returned 4 values, not five (done has become terminated and truncated): return observation, reward,",
    ),
    (Nothing, "step() returned no tuple, not five: return observation, reward, terminated, truncated, info"),
    (changed(observation=NAN), "it is NaN at [1]"),
    (changed(observation=TALL), "it has the shape (2, 1), and the space says (2,)"),
    (changed(observation=np.zeros(2)), "it is of float64, and the space says float32: return np.array(..., dtype="),
    (changed(observation=[0.0, 0.0]), "it is [0.0, 0.0] (list), not a numpy array"),
    (changed(observation=None), "it is None, not a numpy array"),
    (changed(reward=float("nan")), "the reward of step() is nan: it must be finite"),
    (changed(reward=np.float32("-inf")), "the reward of step() is -inf: it must be finite"),
    (changed(reward=np.zeros(1)), "the reward of step() is an array of shape (1,), not a number: return float(reward)"),
    (changed(reward="high"), "the reward of step() is 'high' (str), not a number"),
    (changed(reward=None), "the reward of step() is None, not a number"),
    (changed(reward=True), "the reward of step() is True (bool), not a number"),
    (changed(terminated=0), "terminated of step() is 0 (int), not True or False: return bool(terminated)"),
    (changed(truncated=None), "truncated of step() is None, not True or False"),
    (changed(info=None), "info of step() is None, not a dict: return {} at least"),
    (nested({"a": 0, "b": (BITS,)}), "at ['a'] it is 0, not one of 1 to 3"),
    (nested({"a": 1.5, "b": (BITS,)}), "at ['a'] it is 1.5 (float), not an integer"),
    (nested({"a": 1}), "it lacks the key 'b' of the space"),
    (nested({"a": 1, "b": (BITS,), "c": 1}), "it has the key 'c', which the space has not"),
    (nested({"a": 1, "b": [BITS]}), "at ['b'] it is [array([0, 1], dtype=int8)] (list), not a tuple of 1"),
    (nested({"a": 1, "b": (BITS + 1,)}), "at ['b'][0] it is 2 at [1], outside of the space, which goes from 0 to 1"),
    (nested((1, 2)), "it is (1, 2) (tuple), not a dict with the keys a, b"),
    (BreaksAfterTheEnd, "after a step past the end of an episode raised RuntimeError: wedged"),
    (NotInTheMiddle, "in the middle of an episode raised RuntimeError: still running"),
    (OnceReset, "raised RuntimeError: I was reset already"),
    (NoCorners, "the largest action of its space, raised ValueError: too strong"),
    (LateParams, "apply_env_params({'mass': 1.0}) before the first reset raised RuntimeError: there is no episode"),
    (EarlyParams, "in the middle of an episode raised RuntimeError: it has begun"),
    (
        NoParams,
        "it has no apply_env_params(), and there are env_params (mass): write def apply_env_params(self, params)",
    ),
    (WrongParams, "apply_env_params can't be called as tunegym does (too many positional arguments)"),
    (ClosedOnce, "close() a second time raised RuntimeError: closed already: let it do nothing then"),
    (ClosedInUse, "close() in the middle of an episode raised RuntimeError: in use"),
    (OtherSpaces, "built twice alike, it has other spaces (action_space:"),
    (Shared, "what a second one does changes what the first one gives: keep state in self"),
]


def found(server: Any, **options: Any) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GymServerWarning)
        with pytest.raises(GymServerError) as raised:
            check_gym_server(server, env_params={"mass": [1.0, 2.0]}, **options)
    return list(raised.value.problems)


@pytest.mark.parametrize(("server", "message"), BROKEN, ids=[f"{at}-{one[1][:40]}" for at, one in enumerate(BROKEN)])
def test_broken(server: type, message: str) -> None:
    problems = found(server, steps=40)
    assert any(message in problem for problem in problems), problems
    assert len(problems) <= 3, "one mistake, and a page of problems"


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise ValueError("it has no words")


def raising(method: str, error: BaseException) -> type[Good]:
    """A server whose method raises whatever is wanted."""

    def raises(*args: Any, **named: Any) -> Any:
        raise error

    return type("Raising", (Good,), {method: raises})


class Property(Good):
    @property
    def observation_space(self) -> Any:  # type: ignore[override]
        raise RuntimeError("not yet")

    @observation_space.setter
    def observation_space(self, space: Any) -> None:
        pass


class LateProperty(Good):
    """Its space can be had once."""

    asked = 0

    def __init__(self) -> None:
        vars(self)["spare"] = spaces.Box(-100.0, 100.0, (2,), np.float32)
        super().__init__()

    @property
    def observation_space(self) -> Any:  # type: ignore[override]
        type(self).asked += 1
        if type(self).asked > 1:
            raise SystemExit("gone")
        return vars(self)["spare"]

    @observation_space.setter
    def observation_space(self, space: Any) -> None:
        pass


class OddDict(dict):  # type: ignore[type-arg]
    def items(self) -> Any:
        raise RuntimeError("no items")


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (raising("__init__", SystemExit(7)), "it could not be built: SystemExit: 7"),
        (raising("reset", SystemExit(7)), "reset(seed=0) raised SystemExit: 7"),
        (raising("step", SystemExit(3)), "raised SystemExit: 3"),
        (raising("step", GeneratorExit()), "raised GeneratorExit"),
        (raising("close", SystemExit(5)), "close() before the first reset raised SystemExit: 5"),
        (raising("step", SpeechlessError()), "raised SpeechlessError"),
        (changed(reward=10**400), "and float() of it raises OverflowError"),
        (changed(reward=10**5000), "the reward of step() is something of type int, and float() of it raises"),
        (Property, "observation_space raised RuntimeError: not yet: set self.observation_space in __init__"),
        (LateProperty, "observation_space raised SystemExit: gone"),
        (changed(info=OddDict()), "what it gave could not be looked at (walks): RuntimeError: no items"),
    ],
)
def test_whatever_it_raises_is_a_finding(server: type, message: str) -> None:
    with pytest.raises(GymServerError) as caught:
        check_gym_server(server, steps=20)
    assert any(message in problem for problem in caught.value.problems), caught.value.problems


def test_an_env_param_that_ends_python_is_a_finding() -> None:
    with pytest.raises(GymServerError, match=r"apply_env_params\(.* raised SystemExit: 1"):
        check_gym_server(raising("apply_env_params", SystemExit(1)), env_params={"mass": [1.0, 2.0]})


def test_all_problems_at_once() -> None:
    class Hopeless(ClosedOnce, NoCorners):
        def step(self, action: Any) -> Any:
            observation, _, terminated, truncated, _ = super().step(action)
            return observation.astype(np.float64), None, int(terminated), truncated, None

    with pytest.raises(GymServerError) as raised:
        check_gym_server(Hopeless)
    text = str(raised.value)
    assert text.startswith("Hopeless is no GymServer yet, 6 problems:\n- ")
    for part in ("float64", "reward", "terminated", "info", "too strong", "closed already"):
        assert part in text


# what is only doubtful ------------------------------------------------------------------------------------


class Reusing(Good):
    def step(self, action: Any) -> Any:
        self.taken += 1
        self.at += np.asarray(action, np.float32) / self.mass
        return self.at, 0.0, False, self.taken >= 10, {}


class Forgetful(Good):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=None)


class Global(Good):
    def step(self, action: Any) -> Any:
        random.random()
        return super().step(action)


class Deaf(Good):
    def apply_env_params(self, params: Any) -> None:
        if params.keys() != {"mass"}:
            raise ValueError


class Gullible(Good):
    def apply_env_params(self, params: Any) -> None:
        self.mass = params["mass"]


class Only(Good):
    alive: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        if self.alive:
            raise OSError("the port is taken")
        super().__init__()
        self.alive.append(self)

    def close(self) -> None:
        self.alive.clear()


class Far(Good):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def step(self, action: Any) -> Any:
        return (np.array([0, np.inf], np.float32), *super().step(action)[1:])


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (Reusing, "step() changes the array of the observation before it: tunegym copies it"),
        (Forgetful, "two resets with seed=0 give different observations"),
        (Global, "it draws from, or seeds, a random generator that everybody shares"),
        (Deaf, "mass = 1.0 and mass = 2.0 give the very same 200 steps: is it used?"),
        (Gullible, "apply_env_params() takes a name that it can't know without a word"),
        (
            changed(info={"made": object()}),
            "info['made'] of step() can't go to another process (a object can't be sent)",
        ),
        (changed(info={"sets": [{1}]}), "info['sets'] of step() can't go to another process"),
        (Only, "a second one can't be built beside the first (OSError: the port is taken): slots must stay 1"),
        (Far, "an observation of step() is infinite somewhere"),
    ],
)
def test_doubtful(server: type, message: str) -> None:
    with pytest.warns(GymServerWarning) as raised:
        check_gym_server(server, env_params={"mass": [1.0, 2.0]})
    told = [str(one.message) for one in raised]
    assert len(told) == 1
    assert message in told[0]
    assert told[0].startswith(f"{server.__name__}: ")


# what is fine ---------------------------------------------------------------------------------------------


class Kinds(Good):
    """Everything that a space may be, and numpy's own numbers in the five."""

    def __init__(self) -> None:
        self.action_space = spaces.Dict(
            {"box": spaces.Box(-np.inf, np.inf, (2, 2)), "pair": spaces.Tuple([NESTED, spaces.MultiDiscrete([2, 3])])}
        )
        self.observation_space = self.action_space
        self.taken = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.taken = 0
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {"nothing": None}

    def step(self, action: Any) -> Any:
        self.taken += 1
        assert self.action_space.contains(action), action
        info = {"nan": float("nan"), "array": np.arange(3), "deep": {"list": [1, "a", (2,)]}}
        return action, np.float32(1), np.bool_(False), np.bool_(self.taken > 3), info


def test_every_kind_of_space() -> None:
    check_gym_server(Kinds)


def test_server_that_never_ends() -> None:
    check_gym_server(changed(truncated=False), steps=12)


def test_server_that_ends_at_once() -> None:
    check_gym_server(changed(terminated=True), env_params={"mass": [1.0, 3.0]})


def test_factory_and_single_values() -> None:
    check_gym_server(lambda mass: Good(mass=2 * mass), arguments={"mass": 3.0}, env_params={"mass": 2.0})


def test_leaves_generators_alone() -> None:
    before = random.getstate(), repr(np.random.get_state())
    check_gym_server(Good)
    assert (random.getstate(), repr(np.random.get_state())) == before


def test_closes_all_it_builds() -> None:
    alive: list[object] = []

    class Counted(Good):
        def __init__(self) -> None:
            super().__init__()
            alive.append(self)

        def close(self) -> None:
            if self in alive:
                alive.remove(self)

    check_gym_server(Counted, env_params={"mass": [1.0, 3.0]})
    assert not alive


class TestGood(GymServerSuite):
    server = Good
    arguments: ClassVar[dict[str, Any]] = {"mass": 2.0}
    env_params: ClassVar[dict[str, Any]] = {"mass": [1.0, 4.0]}


class GymnasiumSuite(GymServerSuite):
    server = GymnasiumServer


class TestCartPole(GymnasiumSuite):
    arguments: ClassVar[dict[str, Any]] = {"env_id": "CartPole-v1"}
    env_params: ClassVar[dict[str, Any]] = {"gravity": [1.0, 9.8], "masspole": [0.1, 1.0], "x_threshold": [0.1, 2.4]}


class TestPendulum(GymnasiumSuite):
    arguments: ClassVar[dict[str, Any]] = {"env_id": "Pendulum-v1", "max_episode_steps": 30}
    env_params: ClassVar[dict[str, Any]] = {"g": [1, 10.0], "max_speed": [1.5, 8], "max_torque": [0.5, 2.0]}


class TestMountainCar(GymnasiumSuite):
    arguments: ClassVar[dict[str, Any]] = {"env_id": "MountainCar-v0"}
    env_params: ClassVar[dict[str, Any]] = {"force": [0.001, 0.01], "gravity": [0.001, 0.0025]}


class TestMountainCarContinuous(GymnasiumSuite):
    arguments: ClassVar[dict[str, Any]] = {"env_id": "MountainCarContinuous-v0", "max_episode_steps": 50}
    env_params: ClassVar[dict[str, Any]] = {"power": [0.001, 0.01], "max_action": [0.1, 1.0]}


class TestAcrobot(GymnasiumSuite):
    arguments: ClassVar[dict[str, Any]] = {"env_id": "Acrobot-v1", "max_episode_steps": 50}
    env_params: ClassVar[dict[str, Any]] = {"LINK_MASS_1": [1, 2], "MAX_VEL_1": [0.5, 5.0]}


def test_suite_fails_where_the_mistake_is() -> None:
    suite = type("Suite", (GymServerSuite,), {"server": NoCorners})()
    suite.test_is_complete()
    suite.test_closes()
    with pytest.raises(GymServerError, match="too strong"):
        suite.test_takes_corners()
