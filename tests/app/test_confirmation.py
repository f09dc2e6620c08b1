"""What is measured around an agent's search: baseline, noise check, settings to try first, confirmation."""

from __future__ import annotations

import logging
import os
from collections import Counter
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
    if x == broken and step > 30:
        raise RuntimeError("it broke")
    noise = random.Random(step).lognormvariate(0, spread) if spread else 1.0
    return {"value": -(10 + (x - BEST[load]) ** 2) * noise}
"""
CONTEXTS = {"load": {"weights": [0.25, 0.75]}}
LOADS = {"load": ["low", "high"]}
Run = Callable[..., list[Trial]]


@pytest.fixture(autouse=True)
def _noisy(write: Write) -> None:
    write("noisy.py", NOISY)


def scenario(slots: int = 1, args: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    """A random search of 60 trials over 8 settings, all of which is confirmed."""
    known = {"agent": "random_search", "agent_steps": 60, "confirm": "auto", "seed": 5}
    given = {"callable": "noisy:measure", "x": list(range(8)), **(args or {})}
    given = {name: value for name, value in given.items() if value is not None}
    return document(slots=slots, args=given, **{**known, **keys})


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


def of(trials: list[Trial], phase: str) -> list[Trial]:
    return [trial for trial in trials if trial.phase == phase]


def decisions(trials: list[Trial]) -> list[tuple[Any, ...]]:
    return [(t.number, t.phase, t.action, t.context, t.status, t.cached_from) for t in trials]


@pytest.mark.parametrize("slots", [1, 3])
def test_a_search_ends_with_a_confirmation(run: Run, slots: int) -> None:
    """A noise check first and last, the agent in between, then blocks of the finalists, all within the budget."""
    trials = run(slots=slots)
    phases = [trial.phase for trial in trials]
    assert len(trials) <= 60
    assert phases[:3] == ["noise"] * 3
    assert len({str(trial.action) for trial in of(trials, "noise")}) == 1
    first, last = phases.index("search"), phases.index("confirm")
    assert set(phases[first:last]) == {"search"}
    assert set(phases[last:-1]) == {"confirm"}
    assert phases[-1] == "noise", "drift can't be seen"
    confirmed = of(trials, "confirm")
    assert all(trial.cached_from is None for trial in confirmed)
    assert confirmed[0].action != confirmed[1].action, "a block has each finalist once"
    assert {trial.cached_from for trial in of(trials, "search")} <= {None, *(t.number for t in of(trials, "search"))}
    best = max(Counter(str(trial.action) for trial in confirmed).items(), key=lambda one: one[1])[0]
    assert best in ("{'x': 2}", "{'x': 3}", "{'x': 4}")


def test_the_agent_gets_the_rest_of_the_budget_and_the_baseline_as_its_past(run: Run, write: Write) -> None:
    write(
        "mine.py",
        """
        from tunegym.tuning.agents.base import BaseAgent

        class Agent(BaseAgent):
            def run(self):
                seen = [(one.number, one.phase) for one in self.env.history()]
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
    trials = run(agent="mine:Agent", baseline={"x": 7}, enqueue=[{"x": 1}, {"x": 2}])
    seen, first, steps, count = eval(Path("seen.txt").read_text())
    assert seen == [(1, "baseline"), (4, "search"), (5, "search")]
    assert [(trial.phase, trial.action["x"]) for trial in trials[:5]] == [
        *[("baseline", 7), ("noise", 7), ("noise", 7)],
        *[("search", 1), ("search", 2)],
    ]
    assert first == 6
    assert steps == count == len(of(trials, "search")) - 2
    assert phases_end(trials) == "confirm", "the baseline's confirmation shows drift"
    assert {"x": 7} in [trial.action for trial in of(trials, "confirm")]


def phases_end(trials: list[Trial]) -> str:
    return trials[-1].phase


def test_the_baseline_is_measured_in_every_context(run: Run) -> None:
    trials = run(args=LOADS, env_params=CONTEXTS, baseline={"x": 7})
    assert [trial.context["load"] for trial in of(trials, "baseline")] == ["low", "high"]
    assert {trial.context["load"] for trial in of(trials, "noise")} == {"high"}, "the most frequent one"
    again = [trial.context["load"] for trial in of(trials, "confirm") if trial.action == {"x": 7}]
    assert len(again) >= 2
    assert again.count("low") == again.count("high")


@pytest.mark.parametrize(
    ("keys", "phases"),
    [
        ({"confirm": "off"}, {"search"}),
        ({"confirm": "off", "baseline": {"x": 7}}, {"baseline", "search"}),
        ({"agent_steps": 11}, {"search"}),
        ({"agent_steps": 11, "confirm": {"share": 0.5}}, {"search", "noise", "confirm"}),
    ],
    ids=["off", "off with a baseline", "too short", "short, and asked for"],
)
def test_what_is_left_out(run: Run, keys: dict[str, Any], phases: set[str]) -> None:
    trials = run(**keys)
    assert {trial.phase for trial in trials} == phases
    assert len(trials) <= keys.get("agent_steps", 60)


def test_a_deterministic_metric_costs_next_to_nothing(run: Run) -> None:
    trials = run(args={"spread": 0.0})
    assert len(of(trials, "confirm")) <= 2
    assert len(of(trials, "noise")) == 3
    assert len(trials) <= 60


def test_without_a_number_of_trials_the_confirmation_comes_on_top(run: Run) -> None:
    """Every point of the grid in every context, then at most the share of that."""
    trials = run(agent="grid_search", agent_steps=None, args=LOADS, env_params=CONTEXTS, confirm={"share": 0.5})
    searched = of(trials, "search")
    assert [(t.action["x"], t.context["load"]) for t in searched] == [
        (x, load) for x in range(8) for load in LOADS["load"]
    ]
    assert 0 < len(of(trials, "confirm")) <= 8
    assert find_run(Path("results")).joinpath("e", "env.csv").read_text().splitlines()[4].endswith(",search")


def test_a_failing_finalist_is_recorded_as_any_trial(run: Run) -> None:
    trials = run(args={"broken": 3})
    failed = [trial for trial in of(trials, "confirm") if trial.status == "failed"]
    assert {trial.action["x"] for trial in failed} <= {3}
    assert of(trials, "confirm")


def test_the_noise_check_looks_for_a_setting_that_works(run: Run, write: Write) -> None:
    """One that the constraints refuse is not drawn, and after a failure comes another."""
    write("fragile.py", NOISY.replace("if x == broken and step > 30", "if x == broken"))
    args = {"callable": "fragile:measure"}
    first = of(run(output="first", args=args), "noise")[0].action["x"]
    trials = run(output="second", args={**args, "broken": first}, slots=3)
    noise = of(trials, "noise")
    assert [trial.status for trial in noise[:4]] == ["failed", "measured", "measured", "measured"]
    assert len({trial.action["x"] for trial in noise[1:4]}) == 1
    refused = run(output="third", args=args, constraints=[f"x != {first}"])
    assert first not in [trial.action["x"] for trial in of(refused, "noise")]


@pytest.mark.parametrize("closed", [2, 30, 50], ids=["in the noise check", "in the search", "in the confirmation"])
def test_interrupted_anywhere_it_goes_on_as_it_would_have(run: Run, closed: int) -> None:
    calm = run(output="calm")
    assert calm[closed - 1].phase == {2: "noise", 30: "search", 50: "confirm"}[closed]
    folder = run_until(closed, scenario(), output="stopped")
    assert library.resume(folder) == 0
    assert decisions(trials_of(folder)) == decisions(calm)
    assert library.resume(folder) == 0, "a finished run is left alone"
    assert decisions(trials_of(folder)) == decisions(calm)


def test_a_longer_search_is_confirmed_again(run: Run) -> None:
    before = run()
    folder = find_run(Path("results"))
    assert library.resume(folder, agent_steps=100) == 0
    trials = trials_of(folder)
    assert decisions(trials[: len(before)]) == decisions(before)
    added = [trial.phase for trial in trials[len(before) :]]
    assert set(added) == {"search", "confirm", "noise"}
    assert added == sorted(added, key=["search", "confirm", "noise"].index)
    assert len(trials) <= 100


def test_an_extended_grid_leaves_no_point_out(run: Run) -> None:
    args = {"x": {"low": 0, "high": 99, "step": 1}}
    first = run(agent="grid_search", agent_steps=30, args=args)
    assert library.resume("results", agent_steps=60) == 0
    searched = of(trials_of(find_run(Path("results"))), "search")
    assert len(searched) > len(of(first, "search"))
    assert [trial.action["x"] for trial in searched] == list(range(len(searched)))


@pytest.mark.slow
@pytest.mark.invariant
@pytest.mark.parametrize("slots", [1, 3])
def test_killed_in_the_confirmation(
    tunegym: Cli,
    start_tunegym: Start,
    write_scenario: Write,
    wait_until: Callable[..., None],
    tmp_path: Path,
    slots: int,
) -> None:
    """Same finalists, same blocks, every number once, nothing left behind."""
    args = {"callable": "noisy:measure", "x": list(range(8)), **LOADS, "wait_s": 0.02}
    keys = {"agent": "random_search", "agent_steps": 90, "confirm": "auto", "env_params": CONTEXTS, "isolate": True}
    path = write_scenario(seed=5, slots=slots, args=args, baseline={"x": 7}, cache="off", **keys)
    tunegym("run", path, "--output", "calm", code=0)
    calm = trials_of(find_run(Path("calm")))
    start = next(trial.number for trial in calm if trial.phase == "confirm")
    process = start_tunegym("run", path, "--output", "stormy", log=tmp_path / "log.txt")
    for kill in range(4):
        wait_until(lambda least=start + 3 * kill: _used("stormy") >= least, "trials of the confirmation")
        process.kill()
        process.wait()
        process = start_tunegym("resume", "stormy", log=tmp_path / "log.txt")
    assert process.wait(timeout=300) == 0, (tmp_path / "log.txt").read_text()
    folder = find_run(Path("stormy"))
    assert decisions(trials_of(folder)) == decisions(calm)
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
    trials = run(agent="grid_search", agent_steps=None, args=args, warmup=2, keep="all")
    assert [trial.reward for trial in trials if trial.measured] == [0.0, 1.0, 3.0]
    assert [one["value"] for one in trials[0].warmup] == [100.0, 100.0]
    assert trials[2].status == "failed"
    assert trials[2].reason.startswith("warm-up 2 of 2: ")
    assert len(trials[2].warmup) == 1


def test_automatic_repeats_go_where_they_may_change_the_ranking(run: Run) -> None:
    trials = run(repeats="auto", cache="off", agent_steps=100)
    counts = {x: [len(t.outcome.samples) for t in of(trials, "search") if t.action["x"] == x] for x in (0, 3, 7)}
    assert set(counts[0]) == set(counts[7]) == {1}, "they are far from the best"
    assert 2 in counts[3]
    assert {len(trial.outcome.samples) for trial in trials if trial.phase != "search"} == {1}


def test_folders_of_the_finalists_are_kept(run: Run, write: Write) -> None:
    """One for each finalist and the baseline, the best of the search, and nothing of the noise check."""
    write(
        "run.py",
        "import sys, noisy\nprint('value=%s' % noisy.measure(int(sys.argv[1]), step=int(sys.argv[2]))['value'])",
    )
    args = {"callable": None, "command": "python3 {scenario_dir}/run.py {x} {step}"}
    trials = run(baseline={"x": 7}, args=args, agent_steps=30)
    kept = {int(path.name) for path in (find_run(Path("results")) / "e" / "trials").iterdir()}
    confirmed = {str(trial.action): trial.number for trial in reversed(of(trials, "confirm"))}
    best = max(of(trials, "search"), key=lambda trial: (trial.reward, -trial.number))
    assert kept == {1, best.number, *(number for action, number in confirmed.items() if action != "{'x': 7}")}


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
    keys: dict[str, Any] = {"agent": "random_search", "agent_steps": 60, "confirm": "auto"}
    told = cli("dry-run", write_scenario(args=args, baseline={"x": 7}, enqueue=[{"x": 1}], **keys), code=0).stdout
    assert "baseline: x=7" in told
    assert "at most 20% of the trials confirm the best settings" in told
    for line in (
        "trial 1 (baseline): noisy:measure(x=7",
        "trial 2 (noise): noisy:measure(x=7",
        "trial 4: noisy:measure(x=1",
    ):
        assert line in told
    told = cli(
        "dry-run", write_scenario(args=args, baseline={"x": 7}, **keys | {"agent_steps": 6, "confirm": {}}), code=0
    )
    assert "nothing is confirmed: 20% of the trials have no room for one setting and the baseline" in told.stdout


@pytest.mark.parametrize("slots", [1, 3])
def test_a_search_that_only_time_would_end_stops_when_it_tried_everything(slots: int, run: Run) -> None:
    trials = run(slots=slots, agent_steps=None, max_time=600)
    search = of(trials, "search")
    assert {trial.action["x"] for trial in search} == set(range(8))
    assert len(search) < 3000
    assert of(trials, "confirm")
