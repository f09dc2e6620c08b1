from __future__ import annotations

import pytest

from tunegym.tuning.servers.http_service.knobs import CHOICES, Knobs, Menu


def test_defaults_are_among_the_choices() -> None:
    menu = Menu.parse("all")
    assert menu.names == tuple(CHOICES)
    assert menu.knobs(menu.positions(Knobs())) == Knobs()


@pytest.mark.parametrize("tune", ["all", "workers", "cache_size, batch_size", "queue_limit,batch_wait_ms,workers"])
def test_every_combination_has_its_number(tune: str) -> None:
    menu = Menu.parse(tune)
    unfolded = [menu.unfold(index) for index in range(menu.combinations)]
    assert [menu.fold(positions) for positions in unfolded] == list(range(menu.combinations))
    assert len({menu.knobs(positions) for positions in unfolded}) == menu.combinations


def test_knobs_that_are_not_tuned_keep_their_defaults() -> None:
    assert Menu.parse("workers").knobs([3]) == Knobs(workers=8)


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ("", "no knob is named"),
        (",", "no knob is named"),
        (3, "no knob is named"),
        ("workers, threads", "'threads' is no knob; allowed: \"all\", or some of workers, batch_size"),
    ],
)
def test_what_is_no_knob_is_refused(tune: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Menu.parse(tune)
