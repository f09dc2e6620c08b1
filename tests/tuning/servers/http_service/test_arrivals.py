from __future__ import annotations

import random

import pytest

from tunegym.tuning.servers.http_service.arrivals import Arrivals


def drawn(arrivals: Arrivals, count: int = 200) -> list[tuple[float, str]]:
    return [(arrivals.gap(), arrivals.key()) for _ in range(count)]


def test_a_seed_is_a_stream() -> None:
    state = random.getstate()
    assert drawn(Arrivals(3, 100, 50.0, 0.8)) == drawn(Arrivals(3, 100, 50.0, 0.8))
    assert drawn(Arrivals(3, 100, 50.0, 0.8)) != drawn(Arrivals(4, 100, 50.0, 0.8))
    assert random.getstate() == state


def test_keys_do_not_depend_on_the_rate() -> None:
    slow, quick = Arrivals(3, 100, 1.0, 0.8), Arrivals(3, 100, 1000.0, 0.8)
    assert [key for _, key in drawn(slow)] == [key for _, key in drawn(quick)]


@pytest.mark.parametrize("rate", [10.0, 2000.0])
def test_the_rate_is_kept(rate: float) -> None:
    arrivals = Arrivals(0, 10, rate, 0.0)
    assert sum(arrivals.gap() for _ in range(20_000)) == pytest.approx(20_000 / rate, rel=0.05)


def test_skew_makes_first_keys_popular() -> None:
    def share(skew: float) -> float:
        arrivals = Arrivals(0, 1000, 1.0, skew)
        return sum(int(arrivals.key()[1:]) < 10 for _ in range(5000)) / 5000

    assert share(0.0) == pytest.approx(0.01, abs=0.01)
    assert share(0.0) < share(0.8) < share(2.0)


def test_every_key_exists() -> None:
    arrivals = Arrivals(0, 5, 1.0, 0.0)
    assert {arrivals.key() for _ in range(500)} == {"k0", "k1", "k2", "k3", "k4"}
