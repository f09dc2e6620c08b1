from __future__ import annotations

import pytest

from tunegym.tuning.servers.http_service.tally import Tally, quantile


def test_requests_of_the_window_are_counted_once() -> None:
    tally = Tally(10.0, 11.0, target_s=0.1)
    for number, due in enumerate([9.9, 10.0, 10.2, 10.4, 10.6, 10.8, 11.0]):
        tally.due(number, due, due)
    tally.done(0, 200, 10.1)  # was due before, and was answered in the window
    tally.done(1, 200, 10.05)
    tally.done(2, 200, 10.7)  # late
    tally.done(3, 503, 10.4)
    tally.done(4, 0, 10.7)
    tally.done(6, 200, 11.01)  # of the next one
    seen = tally.summary(11.1)
    assert seen["offered"] == 5
    assert (seen["answered"], seen["refused"], seen["failed"], seen["unanswered"]) == (2, 1, 1, 1)
    assert seen["in_time"] == 1
    assert seen["completed"] == 3
    assert seen["p50_s"] == pytest.approx(0.3)  # of 0.05, 0.3 (waiting so far) and 0.5
    assert seen["p99_s"] == pytest.approx(0.5)


def test_a_window_without_requests() -> None:
    seen = Tally(0.0, 1.0, 0.1).summary(2.0)
    assert seen["offered"] == seen["completed"] == 0
    assert seen["p99_s"] == 0.0


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 50), (0.99, 99), (0.991, 100), (1.0, 100)])
def test_quantile(share: float, value: int) -> None:
    assert quantile(range(1, 101), share) == value
