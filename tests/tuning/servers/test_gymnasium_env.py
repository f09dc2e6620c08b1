from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from tunegym.core.references import resolve
from tunegym.servers import GymnasiumServer
from tunegym.tuning.servers.gymnasium_server import LIBRARY, EnvParamError, UnknownEnvError

CLASSIC = ["CartPole-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1"]

CONSTANTS: list[tuple[str, dict[str, Any]]] = [
    ("CartPole-v1", {"gravity": 3.7}),
    ("CartPole-v1", {"masscart": 3.0}),
    ("CartPole-v1", {"masspole": 1.0}),
    ("CartPole-v1", {"length": 2.0}),
    ("CartPole-v1", {"masspole": 0.7, "length": 1.5, "masscart": 0.5}),
    ("CartPole-v1", {"force_mag": 4}),
    ("CartPole-v1", {"tau": 0.01}),
    ("CartPole-v1", {"kinematics_integrator": "semi-implicit euler"}),
    ("CartPole-v1", {"x_threshold": 0.03}),
    ("CartPole-v1", {"theta_threshold_radians": 0.05}),
    ("Pendulum-v1", {"g": 3}),
    ("Pendulum-v1", {"m": 2.5}),
    ("Pendulum-v1", {"l": 0.7}),
    ("Pendulum-v1", {"dt": 0.02}),
    ("Pendulum-v1", {"max_speed": 0.5}),
    ("Pendulum-v1", {"max_torque": 0.25}),
    ("MountainCar-v0", {"force": 0.01}),
    ("MountainCar-v0", {"gravity": 0.01}),
    ("MountainCar-v0", {"max_speed": 0.001}),
    ("MountainCar-v0", {"goal_position": -0.55}),
    ("MountainCar-v0", {"goal_position": -0.55, "goal_velocity": 0.0005}),
    ("MountainCar-v0", {"min_position": -0.5}),
    ("MountainCar-v0", {"max_position": -0.5}),
    ("MountainCarContinuous-v0", {"power": 0.015}),
    ("MountainCarContinuous-v0", {"max_speed": 0.001}),
    ("MountainCarContinuous-v0", {"goal_position": -0.55}),
    ("MountainCarContinuous-v0", {"goal_position": -0.55, "goal_velocity": 0.0005}),
    ("MountainCarContinuous-v0", {"min_position": -0.5}),
    ("MountainCarContinuous-v0", {"max_position": -0.5}),
    ("MountainCarContinuous-v0", {"min_action": -0.1}),
    ("MountainCarContinuous-v0", {"max_action": 0.1}),
    ("Acrobot-v1", {"dt": 0.1}),
    ("Acrobot-v1", {"LINK_LENGTH_1": 2}),
    ("Acrobot-v1", {"LINK_MASS_1": 3.0}),
    ("Acrobot-v1", {"LINK_MASS_2": 3.0}),
    ("Acrobot-v1", {"LINK_COM_POS_1": 0.9}),
    ("Acrobot-v1", {"LINK_COM_POS_2": 0.9}),
    ("Acrobot-v1", {"LINK_MOI": 2.0}),
    ("Acrobot-v1", {"MAX_VEL_1": 0.2}),
    ("Acrobot-v1", {"MAX_VEL_2": 0.2}),
    ("Acrobot-v1", {"torque_noise_max": 0.5}),
    ("Acrobot-v1", {"book_or_nips": "nips"}),
]


class _Rewritten(ast.NodeTransformer):
    """A class's source with other constants in it."""

    def __init__(self, constants: dict[str, Any]) -> None:
        self.constants = constants
        self.seen: set[str] = set()

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        target = node.targets[0]
        name = target.attr if isinstance(target, ast.Attribute) else target.id if isinstance(target, ast.Name) else ""
        if name in self.constants and name not in self.seen:
            self.seen.add(name)
            node.value = ast.Constant(self.constants[name])
        return node


def freshly_built(env_id: str, constants: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """The environment as it would be if its source said so."""
    kind = type(gymnasium.make(env_id).unwrapped)
    module = importlib.import_module(kind.__module__)
    rewriting = _Rewritten(constants)
    tree = ast.parse(inspect.getsource(module))
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind.__name__)
    rewriting.visit(body)
    assert rewriting.seen == constants.keys()
    namespace: dict[str, Any] = dict(vars(module))
    exec(compile(ast.fix_missing_locations(ast.Module([body], [])), "<rewritten>", "exec"), namespace)
    return namespace[kind.__name__]()


def walked(env: Any, seed: int = 3, steps: int = 60) -> list[Any]:
    space = gymnasium.make(env.spec.id).action_space if getattr(env, "spec", None) else env.action_space
    if isinstance(space, spaces.Box):
        space = spaces.Box(-2, 2, space.shape, np.float32)  # beyond what some constants let through
    space.seed(seed)
    observation, _ = env.reset(seed=seed)
    seen: list[Any] = [observation.copy()]
    for _ in range(steps):
        observation, reward, terminated, _, _ = env.step(space.sample())
        seen.append((observation.copy(), reward, terminated))
        if terminated:
            break
    return seen


def same(one: list[Any], other: list[Any]) -> bool:
    if len(one) != len(other) or not np.array_equal(one[0], other[0]):
        return False
    pairs = zip(one[1:], other[1:], strict=True)
    return all(np.array_equal(a[0], b[0]) and a[1:] == b[1:] for a, b in pairs)


@pytest.mark.parametrize(("env_id", "constants"), CONSTANTS, ids=str)
def test_physics_are_those_of_a_fresh_environment(env_id: str, constants: dict[str, Any]) -> None:
    server = GymnasiumServer(env_id, max_episode_steps=-1)
    before = walked(server)
    server.apply_env_params(constants)
    after = walked(server)
    assert same(after, walked(freshly_built(env_id, constants)))
    assert not same(after, before), "a constant that changes nothing"
    original = {name: getattr(gymnasium.make(env_id).unwrapped, name) for name in constants}
    server.apply_env_params(original)
    assert same(walked(server), before)


@pytest.mark.parametrize("env_id", CLASSIC)
def test_every_constant_is_tested_or_refused(env_id: str) -> None:
    """A number that the library adds one day must be looked at."""
    tested = {name for one, constants in CONSTANTS if one == env_id for name in constants}
    server = GymnasiumServer(env_id)
    with pytest.raises(EnvParamError) as refused:
        server.apply_env_params({"no such thing": 1})
    listed = set(str(refused.value).rpartition("there is: ")[2].split(", "))
    words = {"kinematics_integrator", "book_or_nips"}
    assert listed == tested - words


def test_the_library_has_what_is_known_of_it() -> None:
    for reference, known in LIBRARY.items():
        env = resolve(reference)
        env = env() if "classic_control" in reference else env
        if isinstance(env, gymnasium.Env):
            names = [*known.derived, *known.bounded, *known.real, *known.words]
            assert not [name for name in names if not hasattr(env, name)]


def test_physics_belong_to_one_server() -> None:
    first, second = GymnasiumServer("Acrobot-v1"), GymnasiumServer("Acrobot-v1")
    before = walked(second)
    first.apply_env_params({"LINK_MASS_1": 3.0})
    assert same(walked(second), before)


def test_what_is_built_otherwise_is_left_alone() -> None:
    class Heavy(CartPoleEnv):
        def __init__(self) -> None:
            super().__init__()
            self.total_mass = 50.0

    gymnasium.register("Heavy-v0", Heavy)
    try:
        server = GymnasiumServer("Heavy-v0")
        server.apply_env_params({"masspole": 0.3, "total_mass": 60.0})
        env = server._env.unwrapped
        assert (env.total_mass, env.polemass_length) == (60.0, 0.3 * 0.5)
    finally:
        del gymnasium.registry["Heavy-v0"]


# what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "params", "message"),
    [
        ("CartPole-v1", {"gravitiy": 1.0}, "CartPoleEnv has no attribute 'gravitiy'"),
        ("CartPole-v1", {"gravitiy": 1.0}, "did you mean 'gravity'? there is: force_mag, gravity, length"),
        ("CartPole-v1", {"gravity": "strong"}, "gravity is a number (9.8), and 'strong' is not"),
        ("CartPole-v1", {"gravity": True}, "gravity is a number (9.8), and True is not"),
        ("CartPole-v1", {"gravity": None}, "gravity is a number (9.8), and None is not"),
        ("CartPole-v1", {"gravity": float("nan")}, "gravity can't be nan"),
        ("CartPole-v1", {"kinematics_integrator": 3}, "kinematics_integrator is a text ('euler'), and 3 is not"),
        ("CartPole-v1", {"kinematics_integrator": "eulr"}, "it may be: euler, semi-implicit euler"),
        ("CartPole-v1", {"total_mass": 2.0}, "total_mass follows from masspole and masscart"),
        ("CartPole-v1", {"screen_width": 2}, "screen_width changes nothing that CartPoleEnv does"),
        ("CartPole-v1", {"x_threshold": 2.5}, "x_threshold may be at most 2.4"),
        ("CartPole-v1", {"state": 1.0}, "state is no single number or text"),
        ("CartPole-v1", {"np_random_seed": 1.0}, "np_random_seed can't be set: it is computed from others"),
        ("CartPole-v1", {"action_space.size": 1.0}, "CartPoleEnv.action_space has no attribute 'size'"),
        ("MountainCar-v0", {"min_position": -1.3}, "min_position may be at least -1.2"),
        ("Acrobot-v1", {"LINK_LENGTH_2": 2.0}, "LINK_LENGTH_2 changes nothing that AcrobotEnv does"),
        ("CliffWalking-v1", {"is_slippery": True}, "it was used once, when the environment was built"),
    ],
)
def test_refused(env_id: str, params: dict[str, Any], message: str) -> None:
    server = GymnasiumServer(env_id)
    with pytest.raises(EnvParamError) as refused:
        server.apply_env_params(params)
    assert message in str(refused.value)


def test_all_or_nothing() -> None:
    server = GymnasiumServer("CartPole-v1")
    with pytest.raises(EnvParamError):
        server.apply_env_params({"gravity": 1.0, "length": "long"})
    assert server._env.unwrapped.gravity == 9.8


def test_what_follows_can_not_be_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    server = GymnasiumServer("CartPole-v1")
    env = server._env.unwrapped
    env.masscart = None
    with pytest.raises(EnvParamError, match="total_mass can't be computed again: TypeError"):
        server.apply_env_params({"gravity": 1.0, "masspole": 0.5})
    assert (env.gravity, env.masspole, env.total_mass) == (9.8, 0.1, 1.1)


OWN = """
import gymnasium
import numpy as np
from gymnasium import spaces

class Engine:
    def __init__(self):
        self.power = 2.0
        self.cylinders = np.int32(4)
        self.turbo = False

class Car(gymnasium.Env):
    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-100.0, 100.0, (1,), np.float64)

    def __init__(self, doors=4, render_mode=None):
        self.engine = Engine()
        self.grip = np.float32(1.0)
        self.doors = doors
        self._load = 1.0
        self.wind = 0.0

    @property
    def load(self):
        return self._load

    @load.setter
    def load(self, value):
        if value < 0:
            raise ValueError("less than nothing")
        self._load = value

    @property
    def broken(self):
        raise RuntimeError("broken")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.wind = 0.5
        return np.array([self.engine.power]), {}

    def step(self, action):
        return np.array([self.engine.power * self._load]), 0.0, False, False, {}

gymnasium.register("Car-v0", Car, max_episode_steps=5)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_cars.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("own_cars", None)
    gymnasium.registry.pop("Car-v0", None)


@pytest.mark.usefixtures("own")
class TestOwnEnvironment:
    def test_is_found_by_its_module(self) -> None:
        server = GymnasiumServer("own_cars:Car-v0", max_episode_steps=2)
        server.reset()
        assert [server.step(0)[3] for _ in range(2)] == [False, True]

    def test_attributes_of_attributes(self) -> None:
        server = GymnasiumServer("own_cars:Car-v0")
        server.apply_env_params({"engine.power": 7, "load": 2.0})
        assert server.reset()[0] == 7.0
        assert server.step(0)[0] == 14.0

    def test_kinds_are_kept(self) -> None:
        server = GymnasiumServer("own_cars:Car-v0")
        server.apply_env_params({"engine.cylinders": 6.0, "grip": 2, "doors": 2.0, "engine.turbo": True})
        env = server._env.unwrapped
        assert type(env.engine.cylinders) is np.int32
        assert type(env.grip) is np.float32
        assert type(env.doors) is int
        assert env.engine.turbo is True

    @pytest.mark.parametrize(
        ("params", "message"),
        [
            ({"doors": 2.5}, "doors is an integer (4), and 2.5 is none"),
            ({"engine.turbo": 1}, "engine.turbo is true or false (False), and 1 is not"),
            ({"engine": 1}, "name what is in it, as in engine.x"),
            ({"engine.powre": 1.0}, "did you mean 'engine.power'? there is: cylinders, power"),
            ({"motor.power": 1.0}, "Car has no attribute 'motor', which the env_param motor.power would set"),
            ({"load": -1.0}, "load can't be set to -1.0: ValueError: less than nothing"),
        ],
    )
    def test_refused(self, params: dict[str, Any], message: str) -> None:
        server = GymnasiumServer("own_cars:Car-v0")
        with pytest.raises(EnvParamError) as refused:
            server.apply_env_params(params)
        assert message in str(refused.value)

    def test_what_was_set_is_restored_when_another_fails(self) -> None:
        server = GymnasiumServer("own_cars:Car-v0")
        with pytest.raises(EnvParamError):
            server.apply_env_params({"engine.power": 7.0, "load": -1.0})
        assert server._env.unwrapped.engine.power == 2.0

    def test_what_was_set_is_restored_when_another_is_not_even_reached(self) -> None:
        server = GymnasiumServer("own_cars:Car-v0")
        server.apply_env_params({"load": 3.0, "grip": 2.0, "engine.power": 7.0})
        env = server._env.unwrapped
        env.engine = None
        with pytest.raises(EnvParamError, match=r"engine\.power can't be set to 8\.0: AttributeError"):
            server.apply_env_params({"load": 4.0, "grip": 3.0, "engine.power": 8.0})
        assert (env.load, env.grip) == (3.0, 2.0)

    def test_one_that_is_set_by_half_is_restored(self) -> None:
        server = GymnasiumServer("own_cars:Car-v0")
        env = server._env.unwrapped

        def halfway(self: Any, value: float) -> None:
            self._load = value
            if value > 5:
                raise ValueError("too much")

        type(env).load = property(lambda self: self._load, halfway)
        with pytest.raises(EnvParamError, match="too much"):
            server.apply_env_params({"load": 9.0})
        assert env.load == 1.0

    def test_what_a_reset_undoes_is_told(self) -> None:
        server = GymnasiumServer("own_cars:Car-v0")
        server.apply_env_params({"wind": 3.0})
        with pytest.raises(EnvParamError, match=r"reset\(\) made wind 0.5 again, after it was set to 3.0"):
            server.reset()

    def test_arguments_it_does_not_take(self) -> None:
        with pytest.raises(UnknownEnvError) as refused:
            GymnasiumServer("own_cars:Car-v0", dors=2)
        assert "own_cars:Car-v0 doesn't take dors" in str(refused.value)
        assert "did you mean 'doors'? it takes: max_episode_steps, disable_env_checker, doors" in str(refused.value)


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("CartPol-v1", "did you mean 'CartPole-v1'?"),
        ("CartPole-v7", "did you mean 'CartPole-v1'?"),
        ("no_such_module_of_mine:Foo-v0", "there is no module 'no_such_module_of_mine'"),
    ],
)
def test_unknown_environment(env_id: str, message: str) -> None:
    with pytest.raises(UnknownEnvError) as refused:
        GymnasiumServer(env_id)
    assert message in str(refused.value)


# the rest -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", CLASSIC)
def test_passes_straight_through(env_id: str) -> None:
    server, env = GymnasiumServer(env_id), gymnasium.make(env_id)
    assert server.action_space == env.action_space
    assert server.observation_space == env.observation_space
    assert same(walked(server), walked(env))
    server.close()
    server.close()


def test_time_limit_stays_and_the_checker_goes() -> None:
    server = GymnasiumServer("MountainCar-v0")
    wrappers = str(server._env)
    assert "TimeLimit" in wrappers
    assert "PassiveEnvChecker" not in wrappers
    server.reset(seed=1)
    assert [server.step(0)[3] for _ in range(200)].index(True) == 199


def test_a_step_is_the_environments_own() -> None:
    """Nothing is added to it: not even a call."""
    server = GymnasiumServer("CartPole-v1")
    assert server.step == server._env.step
    assert server.reset == server._env.reset


def test_importing_the_public_module_is_cheap() -> None:
    script = "import sys, tunegym.servers; assert not {'gymnasium', 'numpy'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_public_names() -> None:
    import tunegym.servers

    assert resolve("tunegym.servers:GymnasiumServer") is GymnasiumServer
    assert "GymServer" in dir(tunegym.servers)
    with pytest.raises(AttributeError):
        _ = tunegym.servers.Nothing  # type: ignore[attr-defined]


def test_a_subclass_is_not_passed_by() -> None:
    class Faulty(GymnasiumServer):
        def step(self, action: Any) -> Any:
            raise RuntimeError("not today")

        def reset(self, **given: Any) -> Any:
            observation, info = super().reset(**given)
            return observation, {**info, "mine": True}

    server = Faulty(env_id="CartPole-v1")
    assert server.reset(seed=1)[1] == {"mine": True}
    server.apply_env_params({"gravity": 5.0})
    assert server.reset(seed=1)[1] == {"mine": True}
    with pytest.raises(RuntimeError, match="not today"):
        server.step(0)
    server.close()
