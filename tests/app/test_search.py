"""Searching with Optuna's samplers through whole runs, with several objectives."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.app.conftest import document
from tests.conftest import Cli

import tunegym
from tunegym.core.errors import ConfigError
from tunegym.tuning.reports.trials import TrialResults

pytestmark = pytest.mark.slow  # whole searches

SCHAFFER = "def f(x, y):\n    return {'a': x * x + y * y, 'b': (x - 2) ** 2 + y * y}\n"
"""The front is y = 0 and x from 0 to 2: sqrt(b) = 2 - sqrt(a)."""


def search(folder: Path, objectives: list[dict[str, Any]], sampler: str, steps: int, **more: Any) -> TrialResults:
    (folder / "known_front.py").write_text(SCHAFFER)
    span = {"low": -4.0, "high": 4.0, "dtype": "float"}
    keys = {"agent": "optuna", "agent_steps": steps, "agent_metrics": None, "objectives": objectives}
    args = {"callable": "known_front:f", "x": span, "y": span}
    scenario = document(seed=2, args=args, agent_config={"sampler": sampler, **more}, **keys)
    assert tunegym.run(scenario, output=folder / "results") == 0
    return tunegym.load(folder / "results").experiments["e"]


@pytest.mark.parametrize(("sampler", "steps"), [("tpe", 250), ("nsgaii", 900)])
def test_the_front_is_right_where_it_is_known(tmp_path: Path, sampler: str, steps: int) -> None:
    """Two objectives and a limit: everything in the set keeps the limit, is undominated, and lies by the true front."""
    limit = 1.0
    objectives = [{"metric": "a", "goal": "min", "limit": limit}, {"metric": "b", "goal": "min"}]
    results = search(tmp_path, objectives, sampler, steps, **({"population": 30} if sampler == "nsgaii" else {}))
    found = [{name: interval.mean for name, interval in setting.values.items()} for setting in results.pareto]
    assert len(found) >= 10
    assert all(metrics["a"] <= limit for metrics in found)
    # Of all measured trials that keep the limit, exactly these are dominated by none.
    kept = {(t.metrics["a"], t.metrics["b"]) for t in results.trials if t.metrics["a"] <= limit}
    best = {p for p in kept if not any(q[0] <= p[0] and q[1] <= p[1] and q != p for q in kept)}
    assert {(metrics["a"], metrics["b"]) for metrics in found} == best
    # And they are where the front is: along it, and not beside it.
    beside = sorted(metrics["b"] ** 0.5 - (2 - metrics["a"] ** 0.5) for metrics in found)
    assert beside[0] >= -1e-9, "nothing lies beyond the front"
    assert beside[len(beside) // 2] < 0.1
    along = sorted(metrics["a"] ** 0.5 for metrics in found)
    assert along[0] < 0.25, "it reaches from the one end"
    assert along[-1] > 0.75, "to the limit"
    document = tomllib.loads((results.folder / "best.toml").read_text())
    assert {entry["settings"]["x"] for entry in document["pareto"]} == {one.action["x"] for one in results.pareto}
    assert document["best"]["settings"] in [entry["settings"] for entry in document["pareto"]]
    assert all("violation" not in entry for entry in document["pareto"])


def test_a_sampler_of_one_number_gets_the_weighted_sum(tmp_path: Path, tunegym: Cli) -> None:
    """In units of the first trial, also after a resume."""
    objectives = [{"metric": "a", "goal": "min", "weight": 3.0}, {"metric": "b", "goal": "min"}]
    results = search(tmp_path, objectives, "random", 6)
    extended = tunegym("resume", results.folder.parent, "--agent-steps", "9", code=0)
    assert "Pareto set of" in extended.stdout
    trials = TrialResults("e", results.folder).trials
    unit = trials[0].metrics
    for trial in trials:
        expected = -(3.0 * trial.metrics["a"] / unit["a"] + trial.metrics["b"] / unit["b"]) / 4.0
        assert trial.reward == pytest.approx(expected)


def test_a_missing_optuna_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "optuna" else find(name, *rest)
    )
    with pytest.raises(ConfigError, match=r"(?s)needs the package optuna.*pip install 'tunegym\[optuna\]'"):
        tunegym.scenario(document(agent="optuna", args={"command": "echo value={x}", "x": [1, 2]}))
