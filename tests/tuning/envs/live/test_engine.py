from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.tuning.envs.live.conftest import Counter, Engines, drive, load

from tunegym.core.errors import ActionError, ServerLostError, TunegymError
from tunegym.tuning.envs.live import lane
from tunegym.tuning.model.scenario import Recording
from tunegym.tuning.stores import reader


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "FIRST_PAUSE_S", 0.0)


# numbers and episodes ---------------------------------------------------------------------------------


def test_steps_count_across_resets(engines: Engines) -> None:
    """And across sessions."""
    for first in (1, 16):
        engine = engines()
        assert engine.taken == engine.tally.done == first - 1
        assert engine.reset()[1]["step"] == first
        for number in range(first, first + 15):
            answer = engine.step(0)
            assert answer[4]["step"] == number
            if answer[2] or number % 7 == 0:  # ends of episodes, and resets in the middle of them
                engine.reset()
                engine.reset()
        engines.close()
    steps = [int(row["step"]) for row in engines.rows()]
    assert steps == list(range(1, 31))
    assert [int(row["step"]) for row in engines.rows("env.csv")] == steps
    episodes = engines.rows("episodes.csv")
    assert sum(int(row["length"]) for row in episodes) == 30
    assert {row["end"] for row in episodes} == {"terminated", "reset", "cut"}
    by_episode = {row["episode"]: (int(row["first_step"]), int(row["last_step"])) for row in episodes}
    assert len(by_episode) == len(episodes)
    for row in engines.rows():
        first, last = by_episode[row["episode"]]
        assert first <= int(row["step"]) <= last


def test_step_needs_an_episode(engines: Engines) -> None:
    engine = engines()
    with pytest.raises(TunegymError, match="the episode is over, or none has begun"):
        engine.step(0)
    drive(engine, 4)
    assert engine.step(0)[2]
    with pytest.raises(TunegymError, match=r"call reset\(\) first"):
        engine.step(0)
    engine.close()
    with pytest.raises(TunegymError, match="closed"):
        engine.reset()


@pytest.mark.parametrize("action", [3, -1, 0.5, "left", None, np.array([1, 2]), float("inf"), [[1], [2, 3]]])
def test_refused_action_uses_no_number(engines: Engines, action: Any) -> None:
    engine = engines()
    engine.reset()
    with pytest.raises(ActionError, match="the action is not of action_space"):
        engine.step(action)
    assert engine.step(np.int64(1))[4]["step"] == 1
    assert ("step", 1) in engines.server.calls


# contexts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every_step", [False, True])
def test_contexts(engines: Engines, every_step: bool) -> None:
    """Drawn by an episode's first number, or by each number; applied before the reset or the step that it is for."""
    engine = engines(env_params=load(1, 2, 3, 4, every_step=every_step))
    answers = drive(engine, 23)
    numbers = [at + 1 if every_step else at // 5 * 5 + 1 for at in range(24)]
    draws = [engine.experiment.env_params.context(number)["load"] for number in numbers]
    assert [answer[4]["env_params"] for answer in answers] == [{"load": one} for one in draws[:23]]
    assert [answer[4]["next_env_params"] for answer in answers] == [{"load": one} for one in draws[1:]]
    engines.close()
    for view, column in (("trajectory.csv", "context.load"), ("env.csv", "load")):
        assert [int(row[column]) for row in engines.rows(view)] == draws[:23]
    applied, under = None, []
    for kind, *given in engines.server.calls:
        if kind == "apply":
            applied = given[0]["load"]
        elif kind == "step":
            under.append(applied)
    assert under == draws[:23]
    kinds = [call[0] for call in engines.server.calls if call[0] != "step"]
    assert every_step or kinds[:-1] == ["apply", "reset"] * 5


def test_env_params_need_a_server_that_applies_them(engines: Engines) -> None:
    server: Any = Counter()
    server.apply_env_params = None
    with pytest.raises(ServerLostError, match=r"no apply_env_params\(\)"):
        engines(env_params=load(1, 2), servers=[server])


# outcomes ---------------------------------------------------------------------------------------------


class Faulty(Counter):
    """Action 2 fails: it raises, or answers with a bad reward or observation, and with ``says``, maybe an end."""

    def __init__(self, fault: str, says: str) -> None:
        super().__init__()
        self.fault, self.says = fault, says

    def step(self, action: Any) -> Any:
        if action < 2:
            return super().step(action)
        if self.fault == "raise":
            raise RuntimeError("the pump is stuck")
        reward, size = (float("nan"), 2) if self.fault == "reward" else (1.0, 3)
        return np.full(size, 9, np.float32), reward, self.says == "terminated", self.says == "truncated", {}


@pytest.mark.parametrize("encoding", [None, "onehot"])
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("says", ["", "terminated", "truncated"])
@pytest.mark.parametrize("fault", ["raise", "reward", "observation"])
def test_failed_step_ends_its_episode(
    engines: Engines, fault: str, says: str, together: bool, encoding: str | None
) -> None:
    """As the server said, else truncated. A learner bootstraps from the last valid observation of that episode."""
    says = "" if fault == "raise" else says
    servers = [Faulty(fault, says), Counter()][: 1 + together]
    engine = engines(servers=servers, env_params=load(1, 2, 3, 4, encoding=encoding))
    own = (lambda shown: shown["observation"]) if encoding else lambda shown: shown
    expected = []
    for before in (0, 2):  # steps of the episode before the one that fails
        for lane_ in range(engine.slots):
            own(engine.reset(lane_)[0])[:] = 7  # a caller may change what it is given
        for _ in range(before):
            own((engine.step_all([1, 0])[0] if together else engine.step(1))[0])[:] = 7
        shown, reward, *ended, info = engine.step_all([2, 0])[0] if together else engine.step(2)
        assert ended == ([True, False] if says == "terminated" else [False, True])
        assert (info["status"], info["metrics"], reward < 0) == ("failed", {}, True)
        final = info["final_observation"] if encoding else shown
        expected.append([9, 9] if fault == "reward" else [before, 1] if before else [0, 0])
        assert own(final).tolist() == expected[-1]
        for seen, name in ((final, "env_params"), (shown, "next_env_params")) if encoding else ():
            assert engine.observation_space.contains(seen)
            assert seen["context"]["load"].argmax() == info[name]["load"] - 1
        with pytest.raises(TunegymError, match=r"call reset\(\) first"):
            engine.step_all([0, 0]) if together else engine.step(0)
    engines.close()
    failed = [row for row in engines.rows() if row["status"] == "failed"]
    assert [[float(row[f"observation.{at}"]) for at in (0, 1)] for row in failed] == expected
    assert {row[says or "truncated"] for row in failed} == {"true"}
    episodes = [(row["end"], row["last_step"]) for row in engines.rows("episodes.csv") if row["lane"] == "0"]
    assert episodes == [(says or "failed", row["step"]) for row in failed]


SEEN = np.zeros(2, dtype=np.float32)


class Explosive:
    """As a tensor of several numbers is: reading its value raises."""

    def _raise(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("ambiguous")

    __bool__ = __float__ = __array__ = __iter__ = _raise


class Mine(Mapping[str, Any]):
    """A mapping that can't be read."""

    __getitem__ = __iter__ = __len__ = Explosive._raise  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((np.zeros(3, dtype=np.float32), 1.0, False, False, {}), r"not of observation_space: its shape is \(3,\)"),
        (([[1], [2, 3]], 1.0, False, False, {}), "not of observation_space"),
        ((Explosive(), 1.0, False, False, {}), "observation"),
        ((SEEN, float("nan"), False, False, {}), "the reward is nan; only a finite number is allowed"),
        ((SEEN, "5", False, False, {}), "the reward is '5', of type str; only a finite number is allowed"),
        ((SEEN, None, False, False, {}), "the reward is None, of type NoneType; only a finite number"),
        *(((SEEN, reward, False, False, {}), "only a finite number") for reward in (b"5", 10**400, Explosive())),
        *(((SEEN, 1.0, flag, False, {}), "neither true nor false") for flag in (np.zeros(2), Explosive())),
        ((SEEN, 1.0, False, Explosive(), {}), "neither true nor false"),
        ((SEEN, 1.0, False, False, None), "its info is NoneType, not a dict"),
        ((SEEN, 1.0, False, False, Mine()), "its info"),
        *((answer, "it did not return five values") for answer in (None, (SEEN, 1.0, False, False), Explosive())),
    ],
)
@pytest.mark.parametrize("metrics", [(), ("speed",)])
@pytest.mark.parametrize("together", [False, True])
def test_bad_answer_fails_the_step(
    engines: Engines, answer: Any, said: str, metrics: tuple[str, ...], together: bool
) -> None:
    if metrics and isinstance(answer, tuple) and type(answer[-1]) is dict:
        answer = (*answer[:-1], {"speed": 1.0})
    server: Any = Counter()
    server.info = {"speed": 1.0}
    right = server.step
    server.step = lambda action: answer if action == 2 else right(action)
    engine = engines(servers=[server], metrics=metrics)
    infos = []
    for action in (0, 2, 0):
        if action == 0:
            engine.reset()
        infos.append((engine.step_all([action])[0] if together else engine.step(action))[4])
    assert [info["status"] for info in infos] == ["measured", "failed", "measured"]
    assert re.search(said, infos[1]["reason"])
    engines.close()
    assert [(row["step"], row["status"]) for row in engines.rows()] == [
        *(("1", "measured"), ("2", "failed"), ("3", "measured"))
    ]


def test_automatic_penalty_is_below_the_worst(engines: Engines) -> None:
    engine = engines()
    engine.reset()
    for reward in (3.0, -2.0, 5.0):
        engines.server.reward = reward
        engine.step(0)
    engines.server.raises = RuntimeError("x")
    assert engine.step(0)[1] == -52.0
    engines.close()
    engine = engines()
    engine.reset()
    engines.server.raises = RuntimeError("x")
    assert engine.step(0)[1] == -52.0
    engine.reset()
    engines.server.reward = -1.5e308
    engine.step(0)
    engines.server.raises = ValueError("once")
    assert engine.step(0)[1] == -sys.float_info.max


def test_metrics_and_rewards(engines: Engines) -> None:
    engine = engines(metrics=("p99", "load"), reward=lambda metrics: -metrics["p99"])
    engines.server.info = {"p99": np.float32(2.5), "load": 7, "other": "x"}
    engine.reset()
    _, reward, *_, info = engine.step(0)
    assert (reward, info["metrics"], info["other"]) == (-2.5, {"p99": 2.5, "load": 7.0}, "x")
    for found, said in (
        ({"load": 7}, "step: its info has no metric p99 (there is: load)"),
        ({"p99": float("inf"), "load": 7}, "step: metric p99 is inf; only a finite number is allowed"),
        ({"p99": "2.5", "load": 7}, "step: metric p99 is '2.5', of type str; only a finite number is allowed"),
        ({"p99": 2.5, "load": None}, "step: metric load is None, of type NoneType; only a finite number is allowed"),
    ):
        engines.server.info = found
        info = engine.step(0)[4]
        assert (info["status"], info["reason"]) == ("failed", said)
        engine.reset()
    engines.close()
    assert [row["metric.p99"] for row in engines.rows()] == ["2.5", "", "", "", ""]


# what is recorded -------------------------------------------------------------------------------------


def test_every_nth_step_and_failures_are_recorded(engines: Engines) -> None:
    engine = engines(record=Recording("every", 4))
    assert list(engine.transitions(100)) == []
    engine.reset()
    for number in range(1, 23):
        if number == 7:
            engines.server.raises = RuntimeError("x")
        if any(engine.step(0)[2:4]):
            engine.reset()
    engines.close()
    assert [int(row["step"]) for row in engines.rows()] == [4, 7, 8, 12, 16, 20]
    assert [int(row["step"]) for row in engines.rows("env.csv")] == [4, 7, 8, 12, 16, 20]
    assert engines(record=Recording("every", 4)).taken == 22


def test_transitions(engines: Engines) -> None:
    engine = engines()
    engine.reset()
    for number in range(1, 13):
        if number == 8:
            engines.server.raises = RuntimeError("x")
        if any(engine.step(number % 3)[2:4]):
            engine.reset()
    found = list(engine.transitions(100))
    # Not the first of an episode. The failed one ends its episode where it was.
    assert [int(one.action) for one in found] == [number % 3 for number in (2, 3, 4, 5, 7, 8, 10, 11, 12)]
    assert [one.observation[0] for one in found] == [1, 2, 3, 4, 1, 2, 1, 2, 3]
    assert [one.after[0] for one in found] == [2, 3, 4, 5, 2, 2, 2, 3, 4]
    assert [one.terminated for one in found] == [at == 3 for at in range(9)]
    assert [one.truncated for one in found] == [at == 5 for at in range(9)]
    assert (found[5].reward, found[0].after.dtype) == (-9.0, np.float32)
    newest = list(engine.transitions(2))
    assert [one.after.tolist() for one in newest] == [one.after.tolist() for one in found[-2:]]


@pytest.mark.parametrize("every_step", [True, False])
@pytest.mark.parametrize("lanes", [1, 3])
def test_transitions_show_their_contexts(engines: Engines, lanes: int, every_step: bool) -> None:
    """Where each step has a context of its own, an observation is shown under that of the step which follows."""
    params = load(1, 2, 3, 4, encoding="onehot", every_step=every_step)
    engine = engines(env_params=params, servers=[Counter() for _ in range(lanes)])
    seen = [engine.reset(at)[0] for at in range(lanes)]
    fresh = [True] * lanes
    told = []
    for _ in range(12):
        answers = engine.step_all([1] * lanes) if lanes > 1 else [engine.step(1)]
        for at, (after, _, over, _, info) in enumerate(answers):
            if not fresh[at]:
                told.append((seen[at], info["final_observation"] if over else after))
            seen[at], fresh[at] = (engine.reset(at)[0], True) if over else (after, False)
    found = [(one.observation, one.after) for one in engine.transitions(1000)]
    assert len(found) == len(told) == (12 - 3) * lanes
    for pair, expected in zip(found, told, strict=True):
        for one, other in zip(pair, expected, strict=True):
            assert one["observation"].tolist() == other["observation"].tolist()
            assert one["context"]["load"].tolist() == other["context"]["load"].tolist()


# hostile servers ---------------------------------------------------------------------------------------


class Vandal(Counter):
    """Changes the action that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-10, 10, shape=(2,), dtype=np.float32)

    def step(self, action: Any) -> Any:
        action[:] = 9
        return self._seen, 1.0, False, False, {}


@pytest.mark.parametrize("together", [False, True])
def test_record_has_the_chosen_action(engines: Engines, together: bool) -> None:
    engine = engines(servers=[Vandal()])
    engine.reset()
    chosen = np.array([0.25, 0.5], dtype=np.float32)
    engine.step_all([chosen]) if together else engine.step(chosen)
    assert chosen.tolist() == [0.25, 0.5]
    engines.close()
    assert [engines.rows()[0][f"action.{at}"] for at in (0, 1)] == ["0.25", "0.5"]


@pytest.mark.parametrize("lanes", [1, 3])
def test_interrupted_step_is_lost_and_ends_the_episode(engines: Engines, lanes: int) -> None:
    servers = [Counter() for _ in range(lanes)]
    engine = engines(servers=servers)

    def step() -> list[Any]:
        return engine.step_all([0] * lanes) if lanes > 1 else [engine.step(0)]

    for at in range(lanes):
        engine.reset(at)
    step()
    servers[-1].raises = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        step()
    with pytest.raises(TunegymError, match="the episode is over"):
        step()
    assert (engine.tally.done, engine.tally.others["cancelled"]) == (2 * lanes, lanes)
    for at in range(lanes):
        engine.reset(at)
    assert step()[0][4]["step"] == 2 * lanes + 1
    engines.close()
    statuses = [row["status"] for row in engines.rows()]
    assert statuses == ["measured"] * lanes + ["cancelled"] * lanes + ["measured"] * lanes
    assert [(row["length"], row["end"]) for row in engines.rows("episodes.csv")] == [("1", "cut")] * 2 * lanes


def test_crash_costs_little_of_a_small_budget(engines: Engines) -> None:
    engine = engines(steps=500)
    engine.reset()
    for number in range(300):
        if engine.step(number % 3)[2]:
            engine.reset()
    past = reader.scan(engines.folder / "journal.jsonl")  # what a killed driver would leave
    assert past.upto >= 300 - 5
    assert past.reserved <= 300 + 5
