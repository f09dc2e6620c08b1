from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunegym.tuning.servers.http_service import observing
from tunegym.tuning.servers.http_service.knobs import CHOICES, Knobs, Menu

BEFORE = {"at": 1.0, "cpu_s": 5.0, "received": 10, "hits": 0, "batches": 2, "items": 4, "queue_seconds": 3.0}
AFTER = {"at": 1.5, "cpu_s": 5.1, "received": 60, "hits": 20, "batches": 12, "items": 34, "queue_seconds": 7.0}
WINDOW = (1.0, 1.5)
SEEN = {"offered": 50, "in_time": 40, "answered": 45, "refused": 4, "failed": 1, "completed": 44}


def found(**seen: Any) -> dict[str, Any]:
    return observing.metrics(100.0, WINDOW, {**SEEN, "p50_s": 0.01, "p99_s": 0.09, **seen}, BEFORE, AFTER)


def test_metrics_are_rates_of_the_window() -> None:
    assert found() == pytest.approx(
        {
            "offered_rps": 100.0,
            "throughput_rps": 88.0,
            "p50_ms": 10.0,
            "p99_ms": 90.0,
            "good_share": 0.8,
            "error_share": 0.1,
            "cpu_share": 0.2,
            "hit_share": 0.4,
            "queue_depth": 8.0,
            "batch_items": 3.0,
            "requests": 50,
        }
    )


def test_throughput_is_the_windows_however_late_the_service_counted() -> None:
    late = observing.metrics(100.0, WINDOW, {**SEEN, "p50_s": 0.01, "p99_s": 0.09}, {**BEFORE, "at": 1.5}, AFTER)
    assert late["throughput_rps"] == pytest.approx(88.0)


@pytest.mark.parametrize(
    ("heard", "late_s", "counted", "missed"),
    [
        (0.9, 0.0, 1.0, False),
        (1.0, 0.1, 1.2, False),
        (1.01, 0.0, 1.0, True),
        (0.9, 0.11, 1.0, True),
        (0.9, 0.0, 1.3, True),
    ],
)
def test_a_window_that_a_process_was_too_late_for_is_missed(
    heard: float, late_s: float, counted: float, missed: bool
) -> None:
    seen = {**SEEN, "heard": heard, "late_s": late_s}
    assert observing.missed(WINDOW, 0.1, seen, {**BEFORE, "at": counted}) is missed


def test_any_machine_may_hold_up_the_load_for_a_moment() -> None:
    assert not observing.missed(WINDOW, 0.001, {**SEEN, "heard": 0.9, "late_s": 0.04}, BEFORE)


def test_nobody_asked_nobody_was_let_down() -> None:
    nobody = dict.fromkeys([*SEEN, "p50_s", "p99_s"], 0)
    nothing = observing.metrics(10.0, WINDOW, nobody, BEFORE, {**BEFORE, "at": 2.0})
    assert nothing["good_share"] == 1.0
    assert nothing["error_share"] == nothing["hit_share"] == nothing["batch_items"] == 0.0


def test_the_reward_is_what_is_left() -> None:
    cheap, dear = Knobs(workers=1, cache_size=0), Knobs(workers=8, cache_size=512)
    assert observing.reward(found(), cheap) > observing.reward(found(), dear) > 0
    assert observing.reward(found(in_time=50), dear) > observing.reward(found(in_time=10), cheap)
    assert observing.reward(found(in_time=0), cheap) == 0
    assert observing.reward(found(), cheap) == pytest.approx(0.8 * (1 - 0.015 - 0.02))


def test_even_the_dearest_setting_leaves_something() -> None:
    menu = Menu.parse("all")
    dearest = menu.knobs([len(values) - 1 for values in CHOICES.values()])
    assert observing.reward({**found(in_time=50), "cpu_share": 4.0}, dearest) > 0


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e9])
def test_observations_stay_within_their_bounds(scale: float) -> None:
    seen = observing.observation({name: value * scale for name, value in found().items()})
    assert seen.dtype == np.float32
    assert seen.shape == (len(observing.SLOTS),)
    assert (np.abs(seen) <= 1).all()


def test_loads_are_well_apart() -> None:
    slots = [observing.observation({**found(), "offered_rps": load})[0] for load in (10, 100, 1000, 2000)]
    assert slots[0] == -1
    assert slots[-1] == 1
    assert np.diff(slots).min() > 0.2
