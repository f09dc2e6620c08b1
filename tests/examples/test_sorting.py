"""The example ``examples/sorting``: a noisy real program, a baseline, and answers that agree."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import tunegym

SCENARIO = Path(__file__).resolve().parents[2] / "examples" / "sorting" / "sorting.toml"

pytestmark = pytest.mark.slow


def test_three_runs_agree(tmp_path: Path) -> None:
    """By bytes is surely better in every run, and the gains that are found overlap: over all and in each context."""
    answers: list[Any] = []
    for seed in (3, 4, 5):
        folder = tmp_path / str(seed)
        assert tunegym.run(SCENARIO, output=folder, overrides=[f"seed={seed}"]) == 0
        answers.append(tunegym.load(folder).experiments["sort"].answer)
    for verdicts in zip(*([answer.overall, *answer.per_context] for answer in answers), strict=True):
        for verdict in verdicts:
            assert verdict.certainty == "sure", verdict.sentence
            assert verdict.chosen.action["locale"] == "C", verdict.sentence
        for first, second in combinations(verdicts, 2):
            assert first.chosen.gain.high >= second.chosen.gain.low, (first.sentence, second.sentence)
            assert second.chosen.gain.high >= first.chosen.gain.low, (first.sentence, second.sentence)
