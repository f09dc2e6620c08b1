"""The Python face: run, resume, load, make and scenario, with files, dictionaries and functions."""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from tests.app.conftest import Write
from tests.app.conftest import document as scenario_of
from tests.soundness import assert_sound

import tunegym
from tunegym.core.errors import StoreError, StoreLockedError, TunegymError
from tunegym.core.files import dump_toml
from tunegym.tuning.reports.results import find_run
from tunegym.tuning.stores import reader

RESULTS = Path("results")


@pytest.fixture
def document(write: Write) -> dict[str, Any]:
    """A scenario as plain data, with its module in the working directory."""
    write("faces.py", "def value(x, load=0): return {'value': x + load}")
    args = {"callable": "faces:value", "x": [1, 2, 3], "load": (10, 20)}
    keys: Any = {"agent": "random_search", "agent_steps": 6, "env_params": {"load": {"weights": [0.5, 0.5]}}}
    return scenario_of(name="face", seed=3, args=args, **keys)


def test_a_file_a_dictionary_and_a_checked_scenario_are_the_same(
    document: dict[str, Any], write: Write, capfd: pytest.CaptureFixture[str]
) -> None:
    file = write("face.toml", dump_toml(document))
    seen = []
    for number, source in enumerate((document, tunegym.scenario(document), file, str(file))):
        assert tunegym.run(source, output=f"out-{number}") == 0
        (results,) = assert_sound(f"out-{number}").values()
        seen.append([(trial.context, trial.action, trial.metrics["value"]) for trial in results.trials])
    assert len(seen[0]) == 6
    assert seen[0] == seen[1] == seen[2] == seen[3]
    assert tunegym.resume("out-0", agent_steps=8, slots=2) == 0
    (results,) = assert_sound("out-0").values()
    assert len(results.trials) == 8
    assert document["experiments"][0]["cmd_args"]["load"] == (10, 20), "the user's own data was changed"
    assert capfd.readouterr() == ("", "")


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


def test_functions_of_a_script(write: Write) -> None:
    """The callable, the reward and a constraint as function objects of the script itself, in a worker."""
    script = write("script.py", FUNCTION)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['m', 'm', 'i', 'm', 'm', 'i'] [3.0, 4.0, 6.0, 8.0]\n"
    assert tunegym.resume("results") == 0
    assert_sound("results")


def test_a_users_own_scenario_is_no_run(write: Write) -> None:
    text = 'name = "x"\n[[experiments]]\nname = "e"\nworkload = "command"\ncmd_args.command = "true"  # mine\n'
    own = write("new/scenario.toml", text)  # as tunegym init writes it
    for call in (tunegym.load, tunegym.resume):
        with pytest.raises(StoreError, match="holds no results"):
            call(own.parent)
    assert own.read_text() == text


# make -----------------------------------------------------------------------------------------------------


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
"""


def test_a_users_encoding_is_seen_by_the_environment(document: dict[str, Any], write: Write) -> None:
    write("encodings_of_mine.py", HALVES)
    document["experiments"][0]["env_params"]["load"]["encoding"] = "encodings_of_mine:Halves"
    env = tunegym.make(document)
    observation, info = env.reset()
    env.close()
    assert observation["context"]["load"].tolist() == [info["next_env_params"]["load"] / 2]


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
    journals = [assert_sound(run)["e"].journal for run in runs]
    assert journals[0].head.run != journals[1].head.run


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
    assert outside.journal.ended is not None
    assert "agent_steps = 6" in outside.journal.ended.reason
    assert outside.folder.with_name("report.html").exists()
    assert outside.folder.joinpath("env.csv").read_text() == inside.folder.joinpath("env.csv").read_text()
    assert {path.name for path in outside.folder.iterdir()} == {path.name for path in inside.folder.iterdir()}


PROGRAM = """
import sys, tunegym
env = tunegym.make_vec("scenario.toml", 2) if sys.argv[1] == "vec" else tunegym.make("scenario.toml")
env.reset()
for _ in range(int(sys.argv[2])):
    env.step(env.action_space.sample())
"""
DEADLY = """
import os, pathlib, signal

def value(x):
    with open("calls", "ab", buffering=0) as file:
        file.write(b"x")
        if file.tell() == 3:
            os.kill(os.getpid(), signal.SIGKILL)
    return x
"""


@pytest.mark.parametrize("count", ["one", "vec"])
@pytest.mark.parametrize("kind", ["trials", "live"])
def test_a_killed_script_is_continued(write: Write, live: Any, kind: str, count: str) -> None:
    """Its measurement kills it. With ``resume=`` the next number follows; an open trial runs first."""
    write("work.py", DEADLY)
    jobs = {"args": {"callable": "work:value", "x": {"low": 0, "high": 10**6}}, "agent": "random_search"}
    scenario = scenario_of(agent_steps=20, **jobs)
    if kind == "live":
        scenario = live.document(args={"faults": "step@3=die"}, agent_steps=20)
    write("scenario.toml", dump_toml(scenario))
    script = write("program.py", PROGRAM)
    done = subprocess.run([sys.executable, script, count, "9"], capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    used = reader.scan(find_run(RESULTS) / "e" / reader.JOURNAL).taken
    assert used >= 3
    make = partial(tunegym.make_vec, num_envs=2) if count == "vec" else tunegym.make
    env = make(scenario, resume=RESULTS)
    assert np.min(env.reset()[1]["step"]) == used + 1
    with pytest.raises(StoreLockedError):
        tunegym.make(scenario, resume=find_run(RESULTS))
    for _ in range(3):
        env.step(env.action_space.sample())
    env.close()
    (results,) = assert_sound(RESULTS).values()
    assert results.journal.taken == used + (6 if count == "vec" else 3)
    assert len(results.journal.sessions) == 2
    assert kind == "live" or {trial.status for trial in results.trials} == {"measured"}
    other = {**scenario, "experiments": [{**scenario["experiments"][0], "name": "f"}]}
    with pytest.raises(StoreError, match="is a run of e, not of f"):
        tunegym.make(other, resume=RESULTS)


@pytest.mark.parametrize("count", ["one", "vec"])
@pytest.mark.parametrize("kind", ["trials", pytest.param("live", marks=pytest.mark.slow)])
def test_a_script_that_forgets_to_close(
    document: dict[str, Any], write: Write, live: Any, kind: str, count: str
) -> None:
    """Its end is quiet, what was measured is on record, servers are closed, and a resume continues from there."""
    scenario = live.document(server="process", agent_steps=6) if kind == "live" else document
    write("scenario.toml", dump_toml(scenario))
    script = write("program.py", PROGRAM)
    done = subprocess.run([sys.executable, script, count, "1"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(live.notes("built")) == len(live.notes("closed"))
    assert tunegym.resume(RESULTS) == 0
    (results,) = assert_sound(RESULTS).values()
    assert results.journal.taken == 6
    assert kind == "trials" or results.statuses == {"measured": 6}, "no step was lost"
