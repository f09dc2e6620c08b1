"""What is measured around an agent's search: the baseline, settings to try first, and rounds of the finalists."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.app.conftest import Start, Write, document, left_of, run_until
from tests.conftest import Cli
from tests.soundness import assert_sound

import tunegym as library
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.reports.results import find_run
from tunegym.tuning.stores import reader

NOISY = """
import random, time

BEST = {"low": 3, "high": 6}

def measure(x, load="low", spread=0.05, step=0, broken=-1, wait_s=0.0):
    # The noise of a trial follows from its number, so that two runs can be compared.
    time.sleep(wait_s)
    if x == broken and step > 48:
        raise RuntimeError("it broke")
    noise = random.Random(step).lognormvariate(0, spread) if spread else 1.0
    return {"value": (10 + (x - BEST[load]) ** 2) * noise}
"""
CONTEXTS = {"load": {"weights": [0.25, 0.75]}}
LOADS = {"load": ["low", "high"]}
SEARCHED = {"search", "repeat"}
Run = Callable[..., list[Trial]]


@pytest.fixture(autouse=True)
def _noisy(write: Write) -> None:
    write("noisy.py", NOISY)


def scenario(slots: int = 1, args: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    """A random search of 60 trials over 8 settings, all of which is confirmed beside the worst of them."""
    usual = {"agent": "random_search", "agent_steps": 60, "confirm": "auto", "seed": 5, "baseline": {"x": 7}}
    given = {"callable": "noisy:measure", "x": list(range(8)), **(args or {})}
    given = {name: value for name, value in given.items() if value is not None}
    return document(slots=slots, args=given, **{**usual, "agent_reward_function": "negative", **keys})


def trials_of(run: Path) -> list[Trial]:
    """The trials by number of a sound run."""
    (results,) = assert_sound(run).values()
    return list(results.trials)


@pytest.fixture
def run() -> Run:
    def go(output: str = "results", **keys: Any) -> list[Trial]:
        assert library.run(scenario(**keys), output=output) == 0
        return trials_of(find_run(Path(output)))

    return go


def of(trials: list[Trial], *phases: str) -> list[Trial]:
    return [trial for trial in trials if trial.phase in phases]


def arms(trials: list[Trial]) -> list[tuple[int, str]]:
    """The settings of the rounds by context, in the order of their numbers."""
    return [(trial.action["x"], trial.context.get("load", "")) for trial in of(trials, "confirm")]


def decisions(trials: list[Trial]) -> list[tuple[Any, ...]]:
    return [(t.number, t.phase, t.action, t.context, t.status, t.cached_from) for t in trials]


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("agent", ["random_search", "bayes"])
def test_a_search_ends_with_rounds_of_the_baseline_and_the_best(run: Run, slots: int, agent: str) -> None:
    trials = run(slots=slots, agent=agent)
    phases = [trial.phase for trial in trials]
    assert len(trials) <= 60
    first, last = phases.index("search"), phases.index("confirm")
    assert phases[:first] == ["baseline"]
    assert set(phases[first:last]) <= SEARCHED
    assert set(phases[last:]) == {"confirm"}
    assert all(trial.cached_from is None for trial in of(trials, "confirm"))
    measured = arms(trials)
    pairs = [set(measured[place : place + 2]) for place in range(0, len(measured), 2)]
    assert len(pairs) >= 3
    assert all(pair == pairs[0] for pair in pairs), "a round has each arm once"
    assert (7, "") in pairs[0]
    assert pairs[0] < {(7, ""), (2, ""), (3, ""), (4, "")}


def test_the_agent_gets_the_rest_of_the_budget_and_the_baseline_as_its_past(run: Run, write: Write) -> None:
    write(
        "mine.py",
        """
        from tunegym.tuning.agents.base import BaseAgent

        class Agent(BaseAgent):
            def run(self):
                seen = [(trial.number, trial.phase) for trial in self.env.history()]
                steps = self.env.experiment.budget.agent_steps
                count = 0
                while self.env.exhausted() is None:
                    self.env.begin({"x": count % 8})
                    self.env.next_finished()
                    count += 1
                with open("seen.txt", "w") as file:
                    file.write(repr((seen, self.env.first, steps, count)))
                return 0
        """,
    )
    trials = run(agent="mine:Agent", enqueue=[{"x": 1}, {"x": 2}])
    seen, first, steps, count = eval(Path("seen.txt").read_text())
    assert seen == [(1, "baseline"), (2, "search"), (3, "search")]
    assert [trial.action["x"] for trial in trials[:3]] == [7, 1, 2]
    assert first == 4
    assert steps == count == len(of(trials, "search")) - 2


@pytest.mark.parametrize("slots", [1, 3])
def test_the_choice_of_a_policy_is_measured_in_rounds(run: Run, write: Write, slots: int) -> None:
    """In the context that it was made for, instead of what the trials say."""
    write(
        "mine.py",
        """
        from tunegym.tuning.agents.base import BaseAgent
        from tunegym.tuning.agents.policies import PolicyChoice

        class Agent(BaseAgent):
            supports_variable_environment = True

            def select_action(self, observation):
                return {"x": observation.number % 8}

            def choose(self, context):
                return PolicyChoice({"x": 4 if context["load"] == "low" else 5})
        """,
    )
    trials = run(agent="mine:Agent", args=LOADS, env_params=CONTEXTS, slots=slots)
    measured = arms(trials)
    assert measured.count((4, "low")) == measured.count((5, "high")) >= 2
    assert {(7, "low"), (7, "high")} < set(measured)


def test_the_baseline_is_measured_in_every_context(run: Run) -> None:
    """Before the search, and in every round."""
    trials = run(args=LOADS, env_params=CONTEXTS)
    assert [trial.context["load"] for trial in of(trials, "baseline")] == ["low", "high"]
    measured = arms(trials)
    assert measured.count((7, "low")) == measured.count((7, "high")) >= 2
    assert len(trials) <= 60


@pytest.mark.parametrize(
    ("keys", "phases"),
    [
        ({"confirm": "off"}, {"baseline", "search"}),
        ({"confirm": "off", "baseline": None}, {"search"}),
        ({"agent_steps": 11}, {"baseline", "search"}),
        ({"agent_steps": 11, "confirm": {"share": 0.4}}, {"baseline", "search", "confirm"}),
        ({"agent_steps": 30, "baseline": None}, {"search"}),
    ],
    ids=["off", "off without a baseline", "too short", "short, and asked for", "too short without a baseline"],
)
def test_what_is_left_out(run: Run, keys: dict[str, Any], phases: set[str]) -> None:
    trials = run(**keys)
    assert {trial.phase for trial in trials} == phases
    assert len(trials) == keys.get("agent_steps", 60)


@pytest.mark.parametrize("agent", ["random_search", "bayes"])
def test_without_a_baseline_a_tenth_goes_to_the_best_and_the_runner_up(run: Run, agent: str) -> None:
    trials = run(baseline=None, agent=agent)
    assert {x for x, _ in arms(trials)} < {2, 3, 4}
    assert len(arms(trials)) == 6
    assert len(trials) == 60


@pytest.mark.parametrize("agent", ["random_search", "bayes"])
def test_a_deterministic_metric_needs_one_round(run: Run, agent: str) -> None:
    trials = run(args={"spread": 0.0}, agent=agent)
    assert sorted(arms(trials)) == [(3, ""), (7, "")]


def test_without_a_number_of_trials_the_rounds_come_on_top(run: Run) -> None:
    """Every point of the grid in every context, then at most the share of that."""
    trials = run(agent="grid_search", agent_steps=None, args=LOADS, env_params=CONTEXTS, confirm={"share": 0.5})
    searched = of(trials, "search")
    assert [(t.action["x"], t.context["load"]) for t in searched] == [
        (x, load) for x in range(8) for load in LOADS["load"]
    ]
    assert 0 < len(of(trials, "confirm")) <= 8
    assert find_run(Path("results")).joinpath("e", "env.csv").read_text().splitlines()[4].endswith(",search")


def test_a_finalist_that_fails_in_a_round_is_out_and_replaced(run: Run) -> None:
    trials = run(args={"broken": 3}, agent="bayes")
    rounds = of(trials, "confirm")
    assert [trial.action["x"] for trial in rounds if trial.status == "failed"] == [3]
    assert {x for x, _ in arms(trials)} <= {3, 7, 2, 4}
    assert arms(trials).count((3, "")) == 1


def test_searches_end_early_and_are_confirmed(run: Run) -> None:
    """The rounds get what is left: no more than their share of the whole budget."""
    trials = run(agent="bayes", agent_steps=200, stop_after_no_improvement=30)
    assert 30 < len(of(trials, *SEARCHED)) < 150
    assert 6 <= len(arms(trials)) <= 40


STATIONS = {"in the baseline": 1, "in the search": 30, "in a round": 53}


@pytest.mark.parametrize("closed", STATIONS.values(), ids=STATIONS)
@pytest.mark.parametrize("agent", ["random_search", "bayes"])
def test_interrupted_anywhere_it_continues_as_it_would_have(run: Run, closed: int, agent: str) -> None:
    keys: dict[str, Any] = {"agent": agent, "args": LOADS, "env_params": CONTEXTS}
    calm = run(output="calm", **keys)
    assert calm[closed - 1].phase in {1: {"baseline"}, 30: SEARCHED, 53: {"confirm"}}[closed]
    folder = run_until(closed, scenario(**keys), output="stopped")
    assert library.resume(folder) == 0
    assert decisions(trials_of(folder)) == decisions(calm)
    assert library.resume(folder) == 0, "a finished run is left alone"
    assert decisions(trials_of(folder)) == decisions(calm)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_longer_search_keeps_its_rounds_and_answers_no_worse(run: Run, seed: int) -> None:
    """Extended twice. What was sure or likely stays so, and nothing that is worse takes its place."""
    costs = {"low": lambda x: 10 + (x - 3) ** 2, "high": lambda x: 10 + (x - 6) ** 2}
    trials = run(agent="bayes", args=LOADS | {"spread": 0.1}, env_params=CONTEXTS, baseline={"x": 0}, seed=seed)
    folder = find_run(Path("results"))
    certain: dict[str, float] = {}
    for steps in (60, 100, 140):
        if steps > 60:
            before = trials
            assert library.resume(folder, agent_steps=steps) == 0
            trials = trials_of(folder)
            assert decisions(trials[: len(before)]) == decisions(before)
            added = [trial.phase for trial in trials[len(before) :]]
            assert added == sorted(added, key="confirm".__eq__), "first the search, then the rounds"
            assert {*added} - SEARCHED == {"confirm"}
            assert len(trials) <= steps
        for load, cost in costs.items():
            answer = library.recommend(folder, context={"load": load})
            assert answer.certainty in ("sure", "likely")
            reached = cost(answer.action["x"])
            assert reached <= certain.get(load, 20) * 1.1
            certain[load] = reached
            shared = [(trial.action["x"], trial.context["load"]) for trial in trials if trial.phase == "confirm"]
            assert answer.verdict.rounds == shared.count((answer.action["x"], load)), "every round of an arm counts"


def test_an_extended_grid_leaves_no_point_out(run: Run) -> None:
    args = {"x": {"low": 0, "high": 99, "step": 1}}
    first = run(agent="grid_search", agent_steps=30, args=args)
    assert library.resume("results", agent_steps=60) == 0
    searched = of(trials_of(find_run(Path("results"))), "search")
    assert len(searched) > len(of(first, "search"))
    assert [trial.action["x"] for trial in searched] == list(range(len(searched)))


@pytest.mark.slow
@pytest.mark.invariant
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("agent", ["random_search", "bayes"])
@pytest.mark.parametrize("slots", [1, 3])
def test_killed_in_every_phase(
    tunegym: Cli,
    start_tunegym: Start,
    write_scenario: Write,
    wait_until: Callable[..., None],
    tmp_path: Path,
    agent: str,
    slots: int,
) -> None:
    """In the baseline, beside a fit, among repeats, in rounds: every number once, rounds complete, nothing left.

    At one slot even the trials are those of a run that nothing killed.
    """
    args = {"callable": "noisy:measure", "x": list(range(8)), "y": list(range(6)), **LOADS, "wait_s": 0.03}
    keys = {"agent": agent, "agent_steps": 60, "confirm": "auto", "env_params": CONTEXTS, "isolate": True}
    keys |= {"baseline": {"x": 7, "y": 0}, "agent_reward_function": "negative"}
    (tmp_path / "noisy.py").write_text(NOISY.replace("measure(x,", "measure(x, y,"))
    path = write_scenario(seed=5, slots=slots, args=args, **keys)
    tunegym("run", path, "--output", "calm", code=0)
    calm = trials_of(find_run(Path("calm")))
    rounds = next(trial.number for trial in calm if trial.phase == "confirm")
    # Fits begin after 6, 8, 10, 12, ... closed trials; rounds have four trials or more.
    process = start_tunegym("run", path, "--output", "stormy", log=tmp_path / "log.txt")
    for number in (1, 2, 8, 11, 20, 31, rounds - 1, rounds + 1, rounds + 5):
        wait_until(lambda least=number: _used("stormy") >= least, f"trial {number}")
        process.kill()
        process.wait()
        process = start_tunegym("resume", "stormy", log=tmp_path / "log.txt")
    assert process.wait(timeout=600) == 0, (tmp_path / "log.txt").read_text()
    folder = find_run(Path("stormy"))
    trials = trials_of(folder)
    assert len(trials) == len(calm)
    if slots == 1 or agent == "random_search":
        assert decisions(of(trials, "baseline", *SEARCHED)) == decisions(of(calm, "baseline", *SEARCHED))
    if slots == 1:
        assert decisions(trials) == decisions(calm)
    measured = [(trial.action["x"], trial.action["y"], trial.context["load"]) for trial in of(trials, "confirm")]
    cells = set(measured)
    assert all(measured.count(cell) == len(measured) // len(cells) for cell in cells)
    assert left_of(folder / "e") == []


def _used(output: str) -> int:
    return max((reader.scan(path).taken for path in Path(output).glob(f"*/*/*/{reader.JOURNAL}")), default=0)


def test_warm_up_samples_are_recorded_and_do_not_count(run: Run, write: Write) -> None:
    write(
        "warm.py",
        """
        CALLS = {}

        def measure(x, step, cold=-1):
            CALLS[step] = CALLS.get(step, 0) + 1
            if x == cold and CALLS[step] == 2:
                raise RuntimeError("too cold")
            return {"value": 100.0 if CALLS[step] < 3 else float(x)}
        """,
    )
    args = {"callable": "warm:measure", "x": [0, 1, 2, 3], "cold": 2}
    trials = run(agent="grid_search", agent_steps=None, args=args, warmup=2, keep="all", confirm="off", baseline=None)
    assert [trial.reward for trial in trials if trial.measured] == [0.0, -1.0, -3.0]
    assert [one["value"] for one in trials[0].warmup] == [100.0, 100.0]
    assert trials[2].status == "failed"
    assert trials[2].reason.startswith("warm-up 2 of 2: ")
    assert len(trials[2].warmup) == 1


def test_automatic_repeats_go_where_they_may_change_the_ranking(run: Run) -> None:
    trials = run(repeats="auto", cache="off", agent_steps=100)
    searched = of(trials[10:], "search")
    counts = {x: [len(t.outcome.samples) for t in searched if t.action["x"] == x] for x in (0, 3, 7)}
    assert set(counts[0]) == set(counts[7]) == {1}, "they are far from the best"
    assert 2 in counts[3]
    assert {len(trial.outcome.samples) for trial in trials if trial.phase != "search"} == {1}


def test_folders_of_the_finalists_are_kept(run: Run, write: Write) -> None:
    """One for each finalist and the baseline, and the best of the search."""
    write(
        "run.py",
        "import sys, noisy\nprint('value=%s' % noisy.measure(int(sys.argv[1]), step=int(sys.argv[2]))['value'])",
    )
    args = {"callable": None, "command": "python3 {scenario_dir}/run.py {x} {step}"}
    trials = run(args=args, agent_steps=30)
    kept = {int(path.name) for path in (find_run(Path("results")) / "e" / "trials").iterdir()}
    finalists = {trial.action["x"]: trial.number for trial in reversed(of(trials, "confirm"))}
    best = max(of(trials, "search"), key=lambda trial: (trial.reward, -trial.number))
    assert kept == {1, best.number, *(number for x, number in finalists.items() if x != 7)}


def test_more_slots_than_cores_are_warned_of(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    cores = len(os.sched_getaffinity(0))
    timed: dict[str, Any] = {"agent_metrics": ["duration_s"], "agent_reward_function": None, "agent_steps": 8}
    with caplog.at_level(logging.WARNING):
        run(output="few", slots=cores, **timed)
        run(output="other", slots=cores + 1, agent_steps=8)
        assert "slow each other down" not in caplog.text
        run(output="many", slots=cores + 1, **timed)
    assert f"minimises duration_s, and {cores + 1} trials at a time share {cores} cores" in caplog.text


def test_dry_run_shows_what_comes_first(cli: Cli, write_scenario: Write) -> None:
    args = {"callable": "noisy:measure", "x": list(range(8))}
    keys: dict[str, Any] = {"agent": "bayes", "agent_steps": 60, "confirm": "auto", "baseline": {"x": 7}}
    shown = cli("dry-run", write_scenario(args=args, enqueue=[{"x": 1}], **keys), code=0).stdout
    assert "baseline: x=7" in shown
    assert "the last 12 trials confirm the best settings in rounds" in shown
    assert "trial 1 (baseline): noisy:measure(x=7" in shown
    assert "trial 2: noisy:measure(x=1" in shown
    assert "trial 3: noisy:measure(x=" in shown
    shown = cli("dry-run", write_scenario(args=args, **keys | {"agent_steps": 6, "confirm": {}}), code=0).stdout
    assert "nothing is confirmed: 6 trials have no room" in shown


@pytest.mark.parametrize("slots", [1, 3])
def test_a_search_that_only_time_would_end_stops_when_it_tried_everything(slots: int, run: Run) -> None:
    trials = run(slots=slots, agent_steps=None, max_time=600)
    search = of(trials, "search")
    assert {trial.action["x"] for trial in search} == set(range(8))
    assert len(search) < 3000
    assert of(trials, "confirm")
