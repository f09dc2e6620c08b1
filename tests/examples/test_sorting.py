"""The example ``examples/sorting``: a noisy real program, a baseline, and answers that agree."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import tunegym
from tunegym.tuning.model.values import exact_key

SCENARIO = Path(__file__).resolve().parents[2] / "examples" / "sorting" / "sorting.toml"

pytestmark = pytest.mark.slow


def test_three_runs_agree(tmp_path: Path) -> None:
    """They choose the same or say that it is a tie, and their intervals overlap: over all and in each context."""
    answers: list[Any] = []
    for seed in (3, 4, 5):
        folder = tmp_path / str(seed)
        assert tunegym.run(SCENARIO, output=folder, overrides=[f"seed={seed}"]) == 0
        answers.append(tunegym.load(folder).experiments["sort"].answer)
    for verdicts in zip(*([answer.overall, *answer.per_context] for answer in answers), strict=True):
        assert len({exact_key(one.context or {}) for one in verdicts}) == 1
        same = len({exact_key(one.chosen.action) for one in verdicts}) == 1
        assert same or any(one.ties for one in verdicts), [one.sentence for one in verdicts]
        for one in verdicts:
            assert one.confirmed, one.sentence
            assert one.chosen.gain.is_sure, "by bytes, in memory, it takes about half of the time"
        for one, other in pairwise(sorted(verdicts, key=lambda one: one.chosen.gain.percent.low)):
            assert one.chosen.gain.percent.high >= other.chosen.gain.percent.low, (one.sentence, other.sentence)
