"""Live experiments from Python: as a Gymnasium environment, with a server that is given, beside others."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from tests.app.conftest import Write, experiment
from tests.sample_servers import Echo
from tests.soundness import assert_sound, read_rows

import tunegym
from tunegym.core.errors import BudgetError, TunegymError
from tunegym.tuning.reports.results import find_run
from tunegym.tuning.servers.protocol import TOKEN_VARIABLE
from tunegym.tuning.stores import reader

pytestmark = pytest.mark.slow  # whole experiments

RESULTS = Path("results")
CARTPOLE = {"env_class": "tunegym.servers:GymnasiumServer", "env_id": "CartPole-v1"}


class Nested(Echo):
    """Observes its nested actions in episodes of five steps; notes its arguments and calls."""

    given: list[Any] = []  # noqa: RUF012 - of all of them

    def __init__(self, **arguments: Any) -> None:
        super().__init__("everything")
        kept = {name: part for name, part in self.action_space.items() if name != "number"}  # SB3's checker can't
        self.action_space = self.observation_space = spaces.Dict(kept)
        self.given.append(arguments)
        self.calls: list[Any] = []
        self.at = 0

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        self.calls.append("reset")
        self.at = 0
        return super().reset(**arguments)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, *_ = super().step(action)
        self.calls.append(action)
        self.at += 1
        return seen, 1.0, self.at == 5, False, {"at": self.at}

    def close(self) -> None:
        self.calls.append("close")


def injected(**keys: Any) -> dict[str, Any]:
    experiment = {"name": "e", "workload": "live", "agent": "random_search", "agent_steps": 12, **keys}
    return {"name": "given", "seed": 4, "experiments": [{"cmd_args": {"env_class": "not:There"}, **experiment}]}


# as an environment ------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # SB3 would have actions and observations scaled
@pytest.mark.parametrize("server", ["in_process", "process", Nested])
@pytest.mark.parametrize("checker", ["gymnasium", "sb3"])
def test_check_env(live: Any, checker: str, server: Any) -> None:
    if server is Nested:
        env, bare = tunegym.make(injected(agent_steps=2000), server=Nested), Nested()
    else:
        experiment = {**live.experiment(server=server, agent_steps=2000), "cmd_args": CARTPOLE}
        env, bare = tunegym.make(live.document(experiment)), gymnasium.make("CartPole-v1")
    assert (env.action_space, env.observation_space) == (bare.action_space, bare.observation_space)
    if checker == "gymnasium":
        check_env(env, skip_render_check=True, skip_close_check=True)
    else:
        from stable_baselines3.common.env_checker import check_env as check_sb3

        check_sb3(env, skip_render_check=True)
    env.close()
    assert_sound(find_run(RESULTS))


# as several -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["in_process", "process"])
def test_make_vec_has_a_server_in_each(live: Any, place: str) -> None:
    envs = tunegym.make_vec(live.document(server=place, agent_steps=60), 3)
    assert isinstance(envs, gymnasium.vector.VectorEnv)
    envs.reset(seed=1)
    taken = [number for _ in range(20) for number in envs.step(envs.action_space.sample())[4]["step"].tolist()]
    assert taken == list(range(1, 61))
    with pytest.raises(BudgetError):
        envs.step(envs.action_space.sample())
    envs.close()
    assert len(live.notes("built")) == len(live.notes("closed")) == 3
    (results,) = assert_sound(find_run(RESULTS)).values()
    assert results.steps == 60
    assert {row["lane"] for row in read_rows(find_run(RESULTS) / "e" / "episodes.csv")} == {"0", "1", "2"}
    assert (find_run(RESULTS) / "report.html").exists()


@pytest.mark.parametrize(
    ("count", "given", "said", "hint"),
    [
        (5, Nested, "agent_steps = 12 can't be shared evenly by 5", "num_envs = 4, or agent_steps = 15"),
        (0, Nested, "num_envs must be an integer of at least 1", ""),
        (True, Nested, "num_envs must be an integer of at least 1", ""),
        (2, Nested(), "one server object can't be in 2 slots at once", "give a class"),
    ],
)
def test_make_vec_refuses_before_it_makes_a_folder(count: int, given: Any, said: str, hint: str) -> None:
    with pytest.raises(TunegymError, match=said) as caught:
        tunegym.make_vec(injected(), count, server=given)
    assert hint in (caught.value.hint or "")
    assert not RESULTS.exists()


_FORKING = """
import os, sys, tunegym
many = sys.argv[2] == "many"
env = tunegym.make_vec(sys.argv[1], 2) if many else tunegym.make(sys.argv[1])
env.reset()
def go():
    for _ in range(3):  # an episode has seven
        info = env.step([0, 0] if many else 0)[4]
    return info
go()
child = os.fork()
if child == 0:
    if sys.argv[3] == "closes":
        env.close()
    sys.exit(0)  # as programs end, with everything that is to be done at the end
os.waitpid(child, 0)
print(go()["status"])
env.close()
"""


@pytest.mark.parametrize(("count", "how"), [("one", "ends"), ("many", "closes")])
@pytest.mark.parametrize("place", ["process", "in_process"])
def test_forked_child_leaves_the_environment_to_its_parent(live: Any, place: str, count: str, how: str) -> None:
    scenario = live.write(server=place, agent_steps=100)
    told = subprocess.run(
        [sys.executable, "-c", _FORKING, str(scenario), count, how], capture_output=True, text=True, timeout=300
    )
    assert told.returncode == 0, told.stderr
    assert "failed" not in told.stdout
    (results,) = assert_sound(find_run(RESULTS)).values()
    assert results.statuses == {"measured": 12 if count == "many" else 6}
    assert len(live.notes("built")) == len(live.notes("closed")) == (2 if count == "many" else 1)


# with a server that is given --------------------------------------------------------------------------------


def test_object_is_left_to_its_owner() -> None:
    """Also after a failure, and in the next experiment."""

    class Stumbling(Nested):
        def reset(self, **given: Any) -> Any:
            answer = super().reset(**given)
            if len(self.calls) == 7:
                raise RuntimeError("once")
            return answer

    server = Stumbling()
    document = injected()
    document["experiments"].append({**document["experiments"][0], "name": "f"})
    assert tunegym.run(document, server=server) == 0
    first, second = assert_sound(find_run(RESULTS)).values()
    steps = [call["discrete"] for call in server.calls if isinstance(call, dict)]
    assert [*first.actions()["discrete"], *second.actions()["discrete"]] == steps
    assert first.statuses == second.statuses == {"measured": 12}
    env = tunegym.make(injected(), server=server)
    env.reset()
    env.close()
    assert "close" not in server.calls
    with pytest.raises(TunegymError, match="one server object can't be in 3 slots at once"):
        tunegym.run(injected(), server=server, slots=3)


def test_run_with_an_object_is_resumed_with_one() -> None:
    tunegym.run(injected(), server=Nested)
    folder = find_run(RESULTS)
    with pytest.raises(TunegymError, match="the server of e was given as an object in Python") as caught:
        tunegym.resume(folder, agent_steps=20)
    assert "server=" in (caught.value.hint or "")
    assert tunegym.resume(folder, agent_steps=20, server=Nested) == 0
    (results,) = assert_sound(folder).values()
    assert results.steps == 20


def test_class_is_called_with_cmd_args() -> None:
    Nested.given.clear()
    arguments = {"env_class": "not:There", "folder": "here", "size": 7}
    assert tunegym.run(injected(cmd_args=arguments), server=Nested, slots=2) == 0
    assert tunegym.resume(find_run(RESULTS), agent_steps=20, server=Nested) == 0
    tunegym.make(injected(cmd_args=arguments), output="others", server=Nested).close()
    assert Nested.given == [{"folder": "here", "size": 7}] * 5
    saved = tomllib.loads((find_run(RESULTS) / "scenario.toml").read_text())["experiments"][0]["cmd_args"]
    assert saved == {**arguments, "env_class": "<injected>"}


@pytest.mark.parametrize(
    ("server", "message", "hint"),
    [
        (5, "server= is 5, and not a GymServer", "its class"),
        ("srv:Good", "server= is 'srv:Good', and not a GymServer", "env_class"),
        (int, "int has no reset(), step(), close()", "a server has"),
        (lambda size: Nested(), "can't be called without arguments", "give a function without arguments"),
        (spaces.Discrete(2), "server= is Discrete(2), and not a GymServer", "its class"),
    ],
)
def test_other_objects_are_refused_as_servers(server: Any, message: str, hint: str) -> None:
    for call in (tunegym.run, tunegym.make, tunegym.resume):
        with pytest.raises(TunegymError) as caught:
            call(RESULTS if call is tunegym.resume else injected(), server=server)
        assert message in caught.value.message
        assert hint in (caught.value.hint or "")
    assert not RESULTS.exists()


def test_unused_server_is_refused(live: Any, write: Write) -> None:
    write("work.py", "def value(x): return x")
    jobs = {"name": "plain", "experiments": [JOBS]}
    for call in (tunegym.run, tunegym.make):
        with pytest.raises(TunegymError, match=r"server= is given, and .* no live experiment") as caught:
            call(jobs, server=Nested)
        assert caught.value.hint == "leave server= out"
    with pytest.raises(TunegymError, match="server= is given, and jobs is no live experiment"):
        tunegym.make(live.document(live.experiment("a"), JOBS), "jobs", server=Nested)
    with pytest.raises(TunegymError, match="the server of e is its env_class systems:System"):
        tunegym.run(injected(), overrides=["experiments.e.cmd_args.env_class=systems:System"], server=Nested)
    assert not RESULTS.exists()
    assert tunegym.run(live.document()) == 0
    with pytest.raises(TunegymError, match="the server of e is its env_class systems:System"):
        tunegym.resume(find_run(RESULTS), agent_steps=60, server=Nested)


# beside others ----------------------------------------------------------------------------------------------

JOBS = experiment("jobs", agent="random_search", agent_steps=5, args={"callable": "work:value", "x": [1, 2, 3]})


def test_live_and_trials_in_one_scenario(live: Any, write: Write) -> None:
    write("work.py", "def value(x): return x")
    document = live.document(live.experiment("a"), JOBS, live.experiment("b", server="process", agent_steps=25))
    assert tunegym.run(document) == 0
    results = assert_sound(find_run(RESULTS))
    assert results["a"].steps == 40
    assert len(results["jobs"].trials) == 5
    assert results["b"].steps == 25
    live.assert_nothing_left()
    assert tunegym.resume(find_run(RESULTS), agent_steps=50) == 0
    results = assert_sound(find_run(RESULTS))
    assert (results["a"].steps, len(results["jobs"].trials), results["b"].steps) == (50, 50, 50)


def test_unknown_token_is_refused_before_the_run(live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    here, there = live.experiment("here"), live.experiment("there", server="tcp://127.0.0.1:9")
    calls: list[Callable[[], Any]] = [
        lambda: tunegym.run(live.document(here, there)),
        lambda: tunegym.make(live.document(there)),
        lambda: tunegym.make_vec(live.document(there), 2),
    ]
    for call in calls:
        with pytest.raises(TunegymError, match=r"the token of tcp://127\.0\.0\.1:9 is not known") as caught:
            call()
        assert "export TUNEGYM_SERVER_TOKEN" in (caught.value.hint or "")
        assert not live.notes("built")
        assert not RESULTS.exists()


# contexts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("faults", ["", "step@9=die,step@20=raise,apply@7=die,step@29=die"])
@pytest.mark.parametrize("draw", ["episode", "step"])
@pytest.mark.parametrize("place", ["in_process", "process"])
def test_server_saw_the_recorded_context(live: Any, place: str, draw: str, faults: str) -> None:
    if faults and place == "in_process":
        faults = faults.replace("die", "raise")
    params = {"load": {"draw": draw}, "level": {}}
    arguments = {"load": [1, 2, 5, 9], "level": {"low": 0.0, "high": 1.0}, "faults": faults}
    document = live.document(
        args=arguments, env_params=params, server=place, agent_metrics=["load", "level"], agent_steps=60
    )
    assert tunegym.run(document) == 0
    run = find_run(RESULTS)
    (results,) = assert_sound(run).values()
    # That it can't apply a context fails a step only if the context is that step's own.
    assert results.statuses["failed"] == (0 if not faults else 4 if draw == "step" else 3)
    found = 0
    for group in reader.steps(run / "e" / reader.JOURNAL):
        assert isinstance(group, reader.Steps)
        for at, context in enumerate(group.context_of()):
            if at not in group.unmeasured:
                seen = {name: group.metrics[name][at] for name in ("load", "level")}
                assert seen == context, group.numbers[at]
                found += 1
    assert found == results.statuses["measured"]
    loads: dict[str, set[str]] = {}
    for row in read_rows(run / "e" / "trajectory.csv"):
        loads.setdefault(row["episode"], set()).add(row["context.load"])
    assert any(len(different) > 1 for different in loads.values()) == (draw == "step")
