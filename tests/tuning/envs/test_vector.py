"""Sub-environments: one journal, one counter, trials side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from tunegym.core.errors import ActionError, BudgetError, TunegymError
from tunegym.tuning.envs.face import TuneVectorEnv, batched_infos
from tunegym.tuning.envs.wrappers import (
    VectorBoxActions,
    VectorDiscreteActions,
    VectorMultiDiscreteActions,
    VectorNormalizedObservations,
)
from tunegym.tuning.model.scenario import Budget
from tunegym.tuning.model.space import Choice, EnvParam, Range

KNOBS = {"mode": Choice(("a", 1, 2.5)), "n": Range(1, 8, "int"), "f": Range(0.0, 1.0)}
LOADS = {"load": EnvParam(Choice((0, 1, 10)), encoding="categorical")}

Make = Callable[..., tuple[TuneVectorEnv, Any]]


def measure(**parameters: Any) -> dict[str, float]:
    return {"m": float(parameters["n"])}


@pytest.fixture
def vector(bench: Callable[..., Any]) -> Make:
    def make(num_envs: int, function: Callable[..., Any] = measure, **settings: Any) -> tuple[TuneVectorEnv, Any]:
        one = bench(function, **{"knobs": KNOBS, **settings})
        return TuneVectorEnv(one.engine, num_envs, on_close=one.store.close), one

    return make


def raw(*ns: int) -> list[dict[str, Any]]:
    return [{"mode": "a", "n": n, "f": 0.5} for n in ns]


# numbers and contexts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 2, 3, 8])
@pytest.mark.parametrize("episode_steps", [1, 3])
def test_one_counter_over_all_lanes(vector: Make, slots: int, episode_steps: int) -> None:
    """Numbers 1..n in the lanes' order, each with its own context, whatever is reset and whoever ends first."""
    envs, one = vector(4, env_params=LOADS, slots=slots, episode_steps=episode_steps, budget=Budget(agent_steps=40))
    observations, infos = envs.reset(seed=5)
    assert infos["step"].tolist() == [1, 2, 3, 4]
    envs.action_space.seed(1)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    for turn in range(10):
        numbers = list(range(4 * turn + 1, 4 * turn + 5))
        shown = [LOADS["load"].domain.values[index] for index in observations["context"]["load"]]  # type: ignore[union-attr]
        assert shown == [one.engine.context(number)["load"] for number in numbers]  # context before action
        observations, rewards, terminations, _, infos = envs.step(envs.action_space.sample())
        assert terminations.all() == (episode_steps == 1)
        if episode_steps == 1:  # the new episode has measured nothing
            assert not observations["observation"].any()
            assert [one["observation"].tolist() for one in infos["final_obs"]] == [[one, 1.0] for one in rewards]
            assert [one["context"]["load"] for one in infos["final_obs"]] == observations["context"]["load"].tolist()
            assert infos["final_info"]["step"].tolist() == numbers
        assert infos["step"].tolist() == numbers
        assert infos["env_params"]["load"].tolist() == shown
        upcoming = [one.engine.context(number + 4)["load"] for number in numbers]
        assert infos["next_env_params"]["load"].tolist() == upcoming
        assert rewards.tolist() == infos["action"]["n"].tolist() == infos["metrics"]["m"].tolist()
        if turn % 4 == 2:
            observations, infos = envs.reset()
            assert infos["step"].tolist() == [number + 4 for number in numbers]
    assert [trial.number for trial in one.trials()] == list(range(1, 41))
    assert [trial.context for trial in one.trials()] == [one.engine.context(number) for number in range(1, 41)]
    with pytest.raises(BudgetError, match="agent_steps = 40 are used up"):
        envs.step(envs.action_space.sample())
    assert len(one.trials()) == 40


def test_trials_run_side_by_side(vector: Make) -> None:
    """Two at a time: no trial passes the barrier alone. There may be more sub-environments than slots."""
    barrier = threading.Barrier(2, timeout=60)
    threads: set[int] = set()

    def function(**parameters: Any) -> dict[str, float]:
        barrier.wait()
        threads.add(threading.get_ident())
        return {"m": float(parameters["n"])}

    for count in (2, 8):
        envs, one = vector(count, function, slots=2, cache=False)
        for _ in range(3):
            assert envs.step_raw(raw(*range(1, count + 1)))[1].tolist() == list(range(1, count + 1))
        assert len(one.lab.runs) == 3 * count
    assert len(threads) <= 4


def test_rows_are_in_the_order_of_lanes(vector: Make) -> None:
    second_is_done = threading.Event()

    def function(n: int, **_: Any) -> dict[str, float]:
        if n == 1:
            assert second_is_done.wait(30)
        return {"m": float(n)}

    class Listener:
        def trial_opened(self, trial: Any) -> None:
            pass

        def trial_closed(self, trial: Any) -> None:
            closed.append(trial.number)
            second_is_done.set()

    closed: list[int] = []
    envs, _ = vector(2, function, slots=2, listeners=[Listener()])
    # The event is set on the driver's thread, which waits for whichever trial ends first: the second one.
    _, rewards, _, _, infos = envs.step_raw(raw(1, 2))
    assert closed == [2, 1]
    assert rewards.tolist() == [1.0, 2.0]
    assert infos["step"].tolist() == [1, 2]


# infos ------------------------------------------------------------------------------------------------------


def test_batched_infos() -> None:
    batch = batched_infos([{"a": 1, "d": {"x": 1.0}}, {"b": "t", "d": {"y": True}}, {"a": 3}])
    assert batch["a"].tolist() == [1, 0, 3]
    assert batch["_a"].tolist() == [True, False, True]
    assert batch["b"].tolist() == [None, "t", None]
    assert batch["_b"].tolist() == [False, True, False]
    assert batch["d"]["x"].tolist() == [1.0, 0.0, 0.0]
    assert batch["d"]["_x"].tolist() == [True, False, False]
    assert batch["d"]["y"].dtype == np.bool_
    assert batch["_d"].tolist() == [True, True, False]
    assert batched_infos([{}, {}]) == {}
    odd = batched_infos(
        [
            {"large": 2**70, "mixed": 1, "shapes": np.zeros(2), "types": np.zeros(1, int), "texts": "a"},
            {"large": 1, "mixed": 1.0, "shapes": np.zeros(3), "types": np.zeros(1), "texts": "bcd"},
        ]
    )
    assert all(odd[name].dtype == object for name in odd if not name.startswith("_"))
    assert (odd["large"].tolist(), odd["texts"].tolist()) == ([2**70, 1], ["a", "bcd"])


# what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ({"mode": [0, 0], "n": [[1.0], [2.0]]}, "missing: f"),
        ({"mode": [0, 0], "n": [[1.0], [np.nan]], "f": [[0.5], [0.5]]}, "n: nan is not finite"),
        ({"mode": [0], "n": [[1.0], [2.0]], "f": [[0.5], [0.5]]}, "mode: 1 rows for 2 sub-environments"),
        ({"mode": [0, 0, 0], "n": [[1.0], [2.0]], "f": [[0.5], [0.5]]}, "mode: 3 rows for 2"),
        ({"mode": 0, "n": [[1.0], [2.0]], "f": [[0.5], [0.5]]}, "mode: 0 has no rows"),
        (None, "is not a mapping"),
    ],
)
def test_actions_that_do_not_fit_use_no_number(vector: Make, actions: Any, message: str) -> None:
    envs, one = vector(2)
    with pytest.raises(ActionError, match=message):
        envs.step(actions)
    assert one.store.highest == 0
    assert envs.step_raw(raw(1, 2))[4]["step"].tolist() == [1, 2]


# the end ----------------------------------------------------------------------------------------------------


def test_time_runs_out_during_a_step(vector: Make, clock: Any) -> None:
    """What had begun is recorded, what had not uses no number, and it says so each time."""

    def function(n: int, **_: Any) -> dict[str, float]:
        clock.now += 4.0
        return {"m": float(n)}

    envs, one = vector(4, function, clock=clock, budget=Budget(agent_steps=None, max_time_s=10.0), store="journal")
    envs.reset()
    for _ in range(2):
        with pytest.raises(BudgetError, match="max_time = 10 s is over"):
            envs.step_raw(raw(1, 2, 3, 4))
        assert [trial.number for trial in one.trials()] == [1, 2, 3]
    envs.close()
    envs.close()
    assert [trial.status for trial in one.trials()] == ["measured"] * 3
    assert not (one.folder / "writer.lock").exists()
    for call in (envs.reset, lambda: envs.step_raw(raw(1, 2, 3, 4)), lambda: envs.step(envs.action_space.sample())):
        with pytest.raises(TunegymError, match="the environment is closed"):
            call()


@pytest.mark.parametrize("slots", [1, 2])
def test_error_does_not_shift_rows(vector: Make, slots: int) -> None:
    """Broken infrastructure raises; what was left in flight is not taken for a later step's trial."""
    broken = threading.Event()
    broken.set()

    def function(n: int, **_: Any) -> dict[str, float]:
        if n == 1 and broken.is_set():
            raise OSError("the disk is gone")
        return {"m": float(n)}

    envs, one = vector(2, function, slots=slots, cache=False)
    with pytest.raises(OSError, match="the disk is gone"):
        envs.step_raw(raw(1, 2))
    broken.clear()
    _, rewards, _, _, infos = envs.step_raw(raw(5, 6))
    assert rewards.tolist() == [5.0, 6.0]
    assert len(set(infos["step"])) == 2
    envs.close()
    assert [trial.number for trial in one.trials()] == list(range(1, int(max(infos["step"])) + 1))
    assert one.trials()[0].status == "cancelled"


# wrappers ---------------------------------------------------------------------------------------------------


def test_vector_wrappers(vector: Make) -> None:
    tuned, one = vector(4, env_params=LOADS, slots=2, budget=Budget(agent_steps=80))
    envs = VectorMultiDiscreteActions(VectorNormalizedObservations(tuned))
    assert envs.single_action_space == spaces.MultiDiscrete([3, 8, 10])
    assert envs.action_space.shape == (4, 3)
    observations, _ = envs.reset(seed=1)
    assert observations.shape == (4, 1 + 1 + 3)
    envs.action_space.seed(0)
    last = []
    for _ in range(20):
        chosen = envs.action_space.sample()
        observations, rewards, terminations, _, infos = envs.step(chosen)
        assert envs.observation_space.contains(observations)
        assert terminations.all()
        assert rewards.tolist() == [float(row[1] + 1) for row in chosen]
        for lane, row in enumerate(chosen):
            action = {name: infos["action"][name][lane] for name in KNOBS}
            assert action == envs.decode_action(row)
            assert envs.encode_action(action).tolist() == row.tolist()
        assert all(envs.single_observation_space.contains(one) for one in infos["final_obs"])
        last.extend(one[0] for one in infos["final_obs"])
    assert 0.5 < np.std(last[20:]) < 2.0  # on one scale, learned from all lanes
    assert [trial.number for trial in one.trials()] == list(range(1, 81))


def test_the_other_action_wrappers(vector: Make) -> None:
    ranges = {"n": Range(1, 8, "int"), "f": Range(0.0, 1.0)}
    tuned, _ = vector(2, knobs=ranges)
    envs = VectorBoxActions(tuned)
    assert envs.action_space == spaces.Box(-1.0, 1.0, (2, 2), np.float32)
    assert envs.step(np.array([[-1.0, 0.0], [1.0, 0.0]], dtype=np.float32))[1].tolist() == [1.0, 8.0]
    tuned, _ = vector(2, knobs=ranges)
    numbered = VectorDiscreteActions(tuned, bins=2)
    assert numbered.single_action_space == spaces.Discrete(4)
    assert numbered.step(np.array([0, 3]))[1].tolist() == [1.0, 8.0]
    with pytest.raises(ActionError, match="more than 5"):
        VectorDiscreteActions(vector(2)[0], limit=5)
