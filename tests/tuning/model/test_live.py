from __future__ import annotations

import pytest

from tunegym.tuning.model.scenario import Recording


@pytest.mark.parametrize(
    ("recording", "text"),
    [(Recording(), "all"), (Recording("every", 7), "every:7"), (Recording("episodes"), "episodes")],
)
def test_a_recording_is_spelled_as_in_a_scenario(recording: Recording, text: str) -> None:
    assert recording.spelled == text
