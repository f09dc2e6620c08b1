"""The example ``examples/sorting``: a noisy real program, a baseline, and answers that agree."""

from __future__ import annotations

from pathlib import Path

import pytest

import tunegym

SCENARIO = Path(__file__).resolve().parents[2] / "examples" / "sorting" / "sorting.toml"

pytestmark = pytest.mark.slow


def test_three_runs_agree(tmp_path: Path) -> None:
    """By bytes is surely better in every run: over all and in each context."""
    for seed in (3, 4, 5):
        folder = tmp_path / str(seed)
        assert tunegym.run(SCENARIO, output=folder, overrides=[f"seed={seed}"]) == 0
        answer = tunegym.load(folder).experiments["sort"].answer
        for verdict in (answer.overall, *answer.per_context):
            assert verdict.certainty == "sure", verdict.sentence
            assert verdict.chosen.action["locale"] == "C", verdict.sentence
            assert verdict.chosen.gain.high > 1.5, verdict.sentence
