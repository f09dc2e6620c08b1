"""Views of the knobs: actions come back as they were, and nothing else gets in."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import choices, ranges

from tunegym.core.errors import ActionError
from tunegym.tuning.envs.actions import LIMIT, BoxView, DiscreteView, MultiDiscreteView, binned
from tunegym.tuning.model.space import Choice, Knob, Range, Space
from tunegym.tuning.model.values import exact_key

INT64 = 2**63

MIXED = Space({"mode": Choice(("a", 1, 1.0, True)), "n": Range(1, 8, "int"), "f": Range(0.1, 10.0, log=True)})

spaces_of_anything = st.dictionaries(st.text(min_size=1, max_size=5), st.one_of(choices, ranges), max_size=4).map(Space)


# there and back ---------------------------------------------------------------------------------------------


@given(spaces_of_anything, st.data())
def test_every_element_is_an_action(space: Space, data: st.DataObject) -> None:
    view = MultiDiscreteView(space, data.draw(st.integers(2, 20)))
    assert isinstance(view.space, spaces.MultiDiscrete)
    indices = [data.draw(st.integers(0, int(size) - 1)) for size in view.space.nvec]
    action = view.decode(indices)
    assert exact_key(space.accept(action)) == exact_key(action)
    assert list(action) == list(space.knobs)
    assert view.encode(action).tolist() == indices


def test_last_knob_turns_fastest() -> None:
    space = Space({"a": Choice((1, 2)), "b": Choice(("x", "y", "z"))})
    view = DiscreteView(space)
    seen = [tuple(view.decode(number).values()) for number in range(view.size)]
    assert seen == [(1, "x"), (1, "y"), (1, "z"), (2, "x"), (2, "y"), (2, "z")]


@given(ranges, st.data())
def test_value_between_bins_is_the_nearest(knob: Range, data: st.DataObject) -> None:
    values = binned(knob)
    value = knob.from_unit(data.draw(st.floats(0.0, 1.0, exclude_max=True)))
    view = MultiDiscreteView(Space({"k": knob}))
    index = int(view.encode({"k": value})[0])
    below = values[index - 1] if index else knob.low
    above = values[index + 1] if index + 1 < len(values) else knob.high
    assert below <= value <= above


# bins -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("knob", "bins", "expected"),
    [
        (Range(0, 9, "int"), 10, range(10)),
        (Range(0, 10, "int"), 3, [0, 5, 10]),
        (Range(0, 100, "int", step=25), 10, [0, 25, 50, 75, 100]),
        (Range(0, 100, "int", step=10), 3, [0, 50, 100]),
        (Range(1, 1000, "int", log=True), 4, [1, 10, 100, 1000]),
        (Range(1, 4, "int", log=True), 10, [1, 2, 3, 4]),
        (Range(0.0, 1.0), 5, [0.0, 0.25, 0.5, 0.75, 1.0]),
        (Range(0.0, 0.3, step=0.1), 10, [0.0, 0.1, 0.2, 0.3]),
        (Range(0.001, 10.0, log=True), 5, [0.001, 0.01, 0.1, 1.0, 10.0]),
        (Range(2**60, 2**60 + 3, "int"), 10, [2**60, 2**60 + 1, 2**60 + 2, 2**60 + 3]),
        (Range(-INT64, INT64 - 1, "int"), 2, [-INT64, INT64 - 1]),
        (Choice(("x", 2, 3.0)), 2, ["x", 2, 3.0]),
    ],
)
def test_bins(knob: Knob, bins: int, expected: Any) -> None:
    values = list(binned(knob, bins))
    assert values == (pytest.approx(list(expected)) if isinstance(knob, Range) else list(expected))


@pytest.mark.parametrize("bins", [1, 0, -3, 2.0, True, "ten", None])
def test_bad_bins_are_refused(bins: Any) -> None:
    with pytest.raises(ActionError, match="bins must be an integer of at least 2"):
        MultiDiscreteView(MIXED, bins)


# refused ----------------------------------------------------------------------------------------------------

BOX = BoxView(Space({"a": Range(0.0, 1.0), "b": Range(1, 5, "int")}))
NOTHING = [[], None, "00", {}, [[0], [0, 0]], [True, False, True], [None, 0, 0]]
"""No element of any view."""
NO_INDICES = [[0, 0], [0, 0, 0, 0], 0, ["0", "0", "0"], [0.0, 0.0, 0.0], [math.nan, 0, 0], [10**30, 0, 0]]
NO_NUMBERS = [[0.0], [0.0] * 3, ["0", "0"], [math.nan, 0.0], [math.inf, 0.0], [1j, 0j]]


@pytest.mark.parametrize(
    ("view", "chosen", "message"),
    [
        *((MultiDiscreteView(MIXED), chosen, "is not 3 integers") for chosen in [*NOTHING, *NO_INDICES]),
        *((DiscreteView(MIXED), chosen, "is not 1 integer") for chosen in [*NOTHING, [0, 0], 0.0, math.inf, True]),
        *((BOX, chosen, "is not 2 finite numbers") for chosen in [*NOTHING, *NO_NUMBERS]),
        (MultiDiscreteView(MIXED), [4, 0, 0], "mode: index 4 is out of range"),
        (MultiDiscreteView(MIXED), [0, 0, -1], "f: index -1 is out of range"),
        *((DiscreteView(MIXED), number, f"action {number} is out of range") for number in (320, -1, 2**62)),
    ],
)
def test_other_elements_are_refused(view: Any, chosen: Any, message: str) -> None:
    with pytest.raises(ActionError, match=message) as caught:
        view.decode(chosen)
    assert "out of range" not in message or (caught.value.hint or "").startswith("0 to ")


def test_spaces_that_have_no_such_view() -> None:
    space = Space({f"k{index}": Choice(tuple(range(10))) for index in range(4)})
    with pytest.raises(ActionError, match="10000 combinations are more than 4096") as caught:
        DiscreteView(space)
    assert "fewer bins" in (caught.value.hint or "")
    assert (DiscreteView(space, limit=10_000).size, LIMIT) == (10_000, 4096)
    with pytest.raises(ActionError, match="combinations are more than"):
        DiscreteView(Space({f"k{index}": Range(0.0, 1.0) for index in range(300)}))
    with pytest.raises(ActionError, match="these knobs are lists: mode, other") as caught:
        BoxView(Space({"mode": Choice((1, 2)), "n": Range(1, 2, "int"), "other": Choice((1,))}))
    assert "MultiDiscrete" in (caught.value.hint or "")


# numbers ----------------------------------------------------------------------------------------------------


@given(ranges, st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_any_number_stays_in_the_range(knob: Range, number: float) -> None:
    view = BoxView(Space({"k": knob}))
    value = view.decode(np.array([number], dtype=np.float32))["k"]
    assert knob.low <= value <= knob.high  # type: ignore[operator]
    assert type(value) is (int if knob.dtype == "int" else float)
    if abs(number) >= 1.0:
        assert value == (knob.high if number > 0 else knob.low)


@given(st.integers(-INT64, INT64 - 2**20), st.integers(1, 2**20), st.integers(1, 9), st.data())
def test_integers_come_back_where_a_float32_holds_them(low: int, count: int, step: int, data: st.DataObject) -> None:
    high = min(low + count * step, INT64 - 1)
    knob = Range(low, high, "int") if (high - low) % step or step == 1 else Range(low, high, "int", step=step)
    if (high - low) // (knob.step or 1) > 2**22:
        return
    value = low + data.draw(st.integers(0, (high - low) // (knob.step or 1))) * int(knob.step or 1)
    view = BoxView(Space({"k": knob}))
    assert view.decode(view.encode({"k": value})) == {"k": value}
