"""The Python face: run, resume, load, make and scenario, with files, dictionaries and functions."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from tests.soundness import assert_sound

import tunegym
from tunegym.core.errors import BudgetError, ConfigError, ObservationError, StoreError, TunegymError
from tunegym.core.files import dump_toml
from tunegym.tuning.reports.results import find_run

RESULTS = Path("results")


@pytest.fixture
def document(write: Callable[..., Path]) -> dict[str, Any]:
    """A scenario as plain data, with its module in the working directory."""
    write("faces.py", "def value(x, load=0): return {'value': x + load}")
    experiment = {
        "name": "e",
        "workload": "python",
        "agent": "random_search",
        "agent_steps": 6,
        "agent_metrics": ["value"],
        "isolate": False,
        "cmd_args": {"callable": "faces:value", "x": [1, 2, 3], "load": (10, 20)},
        "env_params": {"load": {"weights": [0.5, 0.5]}},
    }
    return {"name": "face", "seed": 3, "experiments": [experiment]}


def test_a_dictionary_runs_and_resumes(document: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    assert tunegym.run(document, output="out") == 0
    (results,) = assert_sound("out").values()
    assert len(results.trials) == 6
    assert tunegym.resume("out", agent_steps=8, slots=2) == 0
    (results,) = assert_sound("out").values()
    assert len(results.trials) == 8
    assert document["experiments"][0]["cmd_args"]["load"] == (10, 20), "the user's own data was changed"
    assert capfd.readouterr() == ("", "")


def test_a_file_a_dictionary_and_a_checked_scenario_are_the_same(
    document: dict[str, Any], write: Callable[..., Path]
) -> None:
    file = write("face.toml", dump_toml(document))
    seen = []
    for number, source in enumerate((document, tunegym.scenario(document), file, str(file))):
        assert tunegym.run(source, output=f"out-{number}") == 0
        (results,) = assert_sound(f"out-{number}").values()
        seen.append([(trial.context, trial.action, trial.metrics["value"]) for trial in results.trials])
    assert seen[0] == seen[1] == seen[2] == seen[3]


FUNCTION = """
import tunegym

def area(width, height):
    return width * height

def score(area):
    return -area

def fits(width, height):
    return width + height < 9

if __name__ == "__main__":
    code = tunegym.run({
        "name": "function",
        "experiments": [{
            "name": "e",
            "workload": "python",
            "agent_metrics": ["area"],
            "agent_reward_function": score,
            "constraints": [fits],
            "cmd_args": {"callable": area, "width": [1, 2], "height": [3, 4, 8]},
        }],
    })
    assert code == 0, code
    trials = tunegym.load("results").experiments["e"].trials
    print([trial.status[0] for trial in trials], sorted(trial.metrics["area"] for trial in trials if trial.measured))
"""


def test_functions_of_a_script(write: Callable[..., Path]) -> None:
    """The callable, the reward and a constraint as function objects of the script itself, in a worker."""
    script = write("script.py", FUNCTION)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['m', 'm', 'i', 'm', 'm', 'i'] [3.0, 4.0, 6.0, 8.0]\n"
    assert tunegym.resume("results") == 0
    assert_sound("results")


def test_load(document: dict[str, Any], write: Callable[..., Path]) -> None:
    assert tunegym.run(document) == 0
    results = tunegym.load(RESULTS)
    assert (results.folder, results.scenario["name"]) == (find_run(RESULTS), "face")
    frame = results.experiments["e"].to_pandas()
    assert list(frame["step"]) == [1, 2, 3, 4, 5, 6]
    assert (frame["observation.value"] == frame["action.x"] + frame["context.load"]).all()
    with pytest.raises(StoreError, match="is not a folder"):
        tunegym.load("nowhere")
    assert tunegym.run(document) == 0
    with pytest.raises(StoreError, match="holds 2 runs"):
        tunegym.load(RESULTS)
    text = 'name = "x"\n[[experiments]]\nname = "e"\nworkload = "command"\ncmd_args.command = "true"  # mine\n'
    own = write("new/scenario.toml", text)  # as tunegym init writes it: no run
    for call in (tunegym.load, tunegym.resume):
        with pytest.raises(StoreError, match="holds no results"):
            call(own.parent)
    assert own.read_text() == text


def test_warnings_go_to_the_logger(document: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    document["experiments"][0]["agent_config"] = {"rewards": {"metric_failure": 1e6}}
    with caplog.at_level(logging.WARNING, "tunegym"):
        assert tunegym.run(document) == 0
    assert "a failure looks better than a measurement" in caplog.text


def test_a_bad_scenario_raises_before_anything_starts(document: dict[str, Any]) -> None:
    document["experiments"][0]["agent"] = "random_serach"
    for call in (tunegym.run, tunegym.make, tunegym.scenario):
        with pytest.raises(ConfigError, match="random_search"):
            call(document)
    with pytest.raises(ConfigError, match="there is no such file"):
        tunegym.run("nothing.toml")
    assert not RESULTS.exists()


def test_unknown_names_of_the_package() -> None:
    with pytest.raises(AttributeError, match="no attribute 'rum'"):
        tunegym.rum  # noqa: B018
    assert {"run", "resume", "load", "make", "scenario", "BaseAgent"} <= set(dir(tunegym))


# make -----------------------------------------------------------------------------------------------------


def test_make(document: dict[str, Any]) -> None:
    env = tunegym.make(document, output="by-hand")
    _, info = env.reset(seed=1)
    assert info["step"] == 1
    contexts = []
    for step in range(1, 7):
        upcoming = info["next_env_params"]
        _, reward, terminated, truncated, info = env.step(env.action_space.sample())
        assert (info["step"], info["env_params"], terminated, truncated) == (step, upcoming, True, False)
        assert reward == info["metrics"]["value"]
        contexts.append(info["env_params"])
    with pytest.raises(BudgetError):
        env.step(env.action_space.sample())
    env.close()
    env.close()
    (results,) = assert_sound("by-hand").values()
    assert [trial.context for trial in results.trials] == contexts
    assert results.journal.ended is not None
    assert "agent_steps = 6" in results.journal.ended["reason"]


def test_make_asks_which_experiment(document: dict[str, Any]) -> None:
    document["experiments"].append({**document["experiments"][0], "name": "other"})
    with pytest.raises(TunegymError, match="give one of: e, other"):
        tunegym.make(document)
    with pytest.raises(TunegymError, match="there is no 'third'"):
        tunegym.make(document, experiment="third")
    assert not RESULTS.exists()
    env = tunegym.make(document, experiment="other")
    env.close()
    assert [path.name for path in find_run(RESULTS).iterdir() if path.is_dir()] == ["other"]


HALVES = """
import numpy as np
from tunegym.tuning.model.space import ObsLeafDescriptor
class Halves:
    def __init__(self, domain): pass
    def descriptor(self): return ObsLeafDescriptor("box", dim=1)
    def encode(self, value): return np.array([value / 2], dtype=np.float32)
class Odd(Halves):
    made = 0
    def __init__(self, domain):
        Odd.made += 1
        self.sound = Odd.made % 2 == 1
    def descriptor(self):  # sound when the scenario is checked, and not afterwards
        return ObsLeafDescriptor("box", dim=1) if self.sound else "a box"
"""


def test_a_users_encoding_is_seen_by_the_environment(document: dict[str, Any], write: Callable[..., Path]) -> None:
    write("encodings_of_mine.py", HALVES)
    document["experiments"][0]["env_params"]["load"]["encoding"] = "encodings_of_mine:Halves"
    env = tunegym.make(document)
    observation, info = env.reset()
    env.close()
    assert observation["context"]["load"].tolist() == [info["next_env_params"]["load"] / 2]
    document["experiments"][0]["env_params"]["load"]["encoding"] = "encodings_of_mine:Odd"
    for number, call in enumerate((tunegym.make, partial(tunegym.make_vec, num_envs=2))):
        with pytest.raises(ObservationError, match="leaf load: 'a box' is no ObsLeafDescriptor"):
            call(document, output=f"odd-{number}")
        assert list(Path(f"odd-{number}").rglob("journal.jsonl")) != []
        assert list(Path(f"odd-{number}").rglob("writer.lock")) == [], "the journal is released"


@pytest.mark.filterwarnings("ignore:.*A Box observation space:UserWarning")  # a metric has no bounds
def test_gymnasium_makes_it_by_id(document: dict[str, Any]) -> None:
    """Through the passive checker, which looks at every reset and step."""
    document["experiments"][0]["episode_steps"] = 2
    env = gymnasium.make("tunegym.envs:tunegym/Tune-v0", scenario=document, output="by-id")
    env.action_space.seed(0)
    observation, info = env.reset(seed=4)
    for step in range(1, 7):
        assert env.observation_space.contains(observation)
        observation, _, terminated, truncated, info = env.step(env.action_space.sample())
        assert (info["step"], terminated, truncated) == (step, False, step % 2 == 0)
    env.close()
    options = {"vectorization_mode": "vector_entry_point", "scenario": document, "output": "vec"}
    envs = gymnasium.make_vec("tunegym.envs:tunegym/Tune-v0", num_envs=2, **options)
    envs.action_space.seed(0)
    envs.reset(seed=1)
    for _ in range(3):
        observations, *_ = envs.step(envs.action_space.sample())
        assert envs.observation_space.contains(observations)
    envs.close()
    for output in ("by-id", "vec"):
        (results,) = assert_sound(output).values()
        assert [trial.number for trial in results.trials] == [1, 2, 3, 4, 5, 6]


@pytest.mark.filterwarnings("ignore:.*A Box observation space:UserWarning")
def test_the_whole_of_gymnasiums_checker(document: dict[str, Any]) -> None:
    """It also makes another environment from the spec, and closes it twice."""
    env = tunegym.make(document)
    check_env(env)
    env.close()
    runs = sorted((RESULTS / "face").iterdir())
    assert len(runs) == 2
    assert_sound(runs[0])
    assert_sound(runs[1])


def test_an_environment_writes_the_journal_of_a_run(document: dict[str, Any]) -> None:
    """Driven from outside with the actions of a run: the same numbers, contexts, actions, metrics and rewards."""
    assert tunegym.run(document, output="run") == 0
    (inside,) = assert_sound("run").values()
    env = tunegym.make(document, output="made")
    for trial in inside.trials:
        env.reset()
        env.step(env.encode_action(trial.action))
    env.close()
    (outside,) = assert_sound("made").values()

    def told(results: Any) -> list[Any]:
        return [
            (one.number, one.context, one.action, one.metrics["value"], one.reward, one.cached_from, one.status)
            for one in results.trials
        ]

    assert told(outside) == told(inside)
    assert outside.folder.joinpath("env.csv").read_text() == inside.folder.joinpath("env.csv").read_text()
    assert {path.name for path in outside.folder.iterdir()} == {path.name for path in inside.folder.iterdir()}


def test_make_vec(document: dict[str, Any]) -> None:
    envs = tunegym.make_vec(document, num_envs=3, output="many")
    _, infos = envs.reset()
    assert infos["step"].tolist() == [1, 2, 3]
    contexts = []
    for turn in range(2):
        upcoming = infos["next_env_params"]["load"].tolist()
        _, rewards, _, _, infos = envs.step_raw([{"x": 1}, {"x": 2}, {"x": 3}])
        assert infos["step"].tolist() == [3 * turn + 1, 3 * turn + 2, 3 * turn + 3]
        assert infos["env_params"]["load"].tolist() == upcoming
        assert rewards.tolist() == [1 + upcoming[0], 2 + upcoming[1], 3 + upcoming[2]]
        contexts += upcoming
    with pytest.raises(BudgetError, match="agent_steps = 6 are used up"):
        envs.step_raw([{"x": 1}] * 3)
    envs.close()
    envs.close()
    (results,) = assert_sound("many").values()
    assert [trial.context["load"] for trial in results.trials] == contexts
    with pytest.raises(TunegymError, match="the environment is closed"):
        envs.reset()
    for count, message in ((4, "can't be shared evenly by 4"), (0, "at least 1"), (True, "at least 1")):
        with pytest.raises(TunegymError, match=message):
            tunegym.make_vec(document, num_envs=count)
    assert not RESULTS.exists()


MEET = "touch met.$1\nwhile [ ! -e met.$2 ]; do sleep 0.01; done\necho value=$1\n"


def test_processes_side_by_side(document: dict[str, Any], write: Callable[..., Path]) -> None:
    """Two real processes that each wait for the other's file: neither could end alone."""
    write("meet.sh", MEET)
    experiment = document["experiments"][0]
    for key in ("isolate", "env_params"):
        del experiment[key]
    command = f"cd {Path.cwd()} && sh meet.sh {{me}} {{other}}"
    experiment |= {"workload": "command", "metrics": {"value": {"regex": "value=([0-9]+)"}}, "timeout_s": 60}
    experiment["cmd_args"] = {"command": command, "me": [1, 2], "other": [1, 2]}
    envs = tunegym.make_vec({**document, "system": {"slots": 2}}, num_envs=2)
    _, rewards, _, _, infos = envs.step_raw([{"me": 1, "other": 2}, {"me": 2, "other": 1}])
    envs.close()
    assert infos["status"].tolist() == ["measured", "measured"], infos["reason"]
    assert rewards.tolist() == [1.0, 2.0]
    assert_sound(RESULTS)


FORGETFUL = """
import sys, tunegym
envs = tunegym.make_vec("face.toml", 2) if sys.argv[1] == "vec" else tunegym.make("face.toml")
envs.reset()
envs.step(envs.action_space.sample())
"""


@pytest.mark.parametrize("kind", ["one", "vec"])
def test_a_script_that_forgets_to_close(document: dict[str, Any], write: Callable[..., Path], kind: str) -> None:
    """Its end is quiet, the measured trials are on record, and a resume continues from there."""
    write("face.toml", dump_toml(document))
    script = write("forgetful.py", FORGETFUL)
    done = subprocess.run([sys.executable, script, kind], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert tunegym.resume(RESULTS) == 0
    (results,) = assert_sound(RESULTS).values()
    assert [trial.number for trial in results.trials] == [1, 2, 3, 4, 5, 6]
