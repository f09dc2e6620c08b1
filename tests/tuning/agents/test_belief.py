from __future__ import annotations

import math

import numpy as np
import pytest

from tunegym.tuning.agents.bandit import DRAWN, CandidateSource
from tunegym.tuning.agents.belief import JITTER, Axis, Belief, Told
from tunegym.tuning.model.space import Choice, Knob, Range, Space

# axes -------------------------------------------------------------------------------------------------


def test_places() -> None:
    assert [Axis(Choice((1, 1.0, True))).place(value) for value in (1, 1.0, True)] == [0.0, 0.5, 1.0]
    assert Axis(Choice(("only",))).place("only") == 0.0
    assert Axis(Range(1, 100, log=True)).place(10) == pytest.approx(0.5)
    strangers = [(Choice((1, 2)), 3), (Choice((1, 2)), None), (Range(1, 100, log=True), 0), (Range(0.0, 1.0), "x")]
    assert all(math.isnan(Axis(knob).place(value)) for knob, value in strangers)


# belief -----------------------------------------------------------------------------------------------

KNOBS: list[Knob] = [Choice(("a", "b", "c")), Range(0.0, 1.0)]


def believing(cells: np.ndarray) -> Belief:
    belief = Belief([Axis(Choice(("idle", "busy")))], [Axis(knob) for knob in KNOBS])
    for cell in cells:
        belief.add(cell)
    return belief


def cells_of(count: int) -> np.ndarray:
    draw = np.random.default_rng(1)
    return np.stack([draw.integers(2, size=count), draw.integers(3, size=count) / 2, draw.random(count)], axis=1)


def told_of(cells: np.ndarray) -> Told:
    draw = np.random.default_rng(2)
    means = 2.0 * cells[:, 0] * cells[:, 2] - cells[:, 1] + 0.1 * draw.standard_normal(len(cells))
    return Told(means, draw.integers(1, 5, size=len(cells)).astype(float), 0.3)


def by_the_book(belief: Belief, told: Told, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of a Gaussian process, as textbooks have them; the covariance without its scale."""

    def alike(ones: np.ndarray, others: np.ndarray) -> np.ndarray:
        factors = [shape.likeness(ones[:, i], others[:, i]) for i, shape in enumerate(belief.shapes)]
        return np.prod(factors, axis=0)

    seen = np.linalg.inv(alike(belief.places, belief.places) + np.diag(belief.noise / told.counts + JITTER))
    across = alike(asked, belief.places)
    centre = told.means.mean()
    return centre + across @ seen @ (told.means - centre), alike(asked, asked) - across @ seen @ across.T


@pytest.mark.parametrize("fitted", [False, True])
def test_it_is_a_gaussian_process(fitted: bool) -> None:
    cells = cells_of(40)
    told = told_of(cells)
    belief = believing(cells)
    if fitted:
        belief.fit(told)
    settings = np.array([[0.0, 0.1], [0.5, 0.7], [1.0, 0.7]])
    mean, covariance = by_the_book(belief, told, np.hstack([np.ones((3, 1)), settings]))
    context = np.array([1.0])
    expected = belief.drawn(context, settings, told, np.zeros((3, 1)))[:, 0]
    assert expected == pytest.approx(mean, abs=1e-5)
    root = belief.drawn(context, settings, told, np.eye(3)) - expected[:, None]
    scale = (root @ root.T)[0, 0] / (covariance[0, 0] + JITTER)
    assert root @ root.T == pytest.approx(scale * (covariance + JITTER * np.eye(3)), abs=1e-6)
    everywhere, _ = by_the_book(belief, told, np.hstack([np.ones((40, 1)), cells[:, 1:]]))
    assert belief.expected(context, told, belief.weights(told)) == pytest.approx(everywhere, abs=1e-5)


def test_forgotten_cells_leave_no_trace() -> None:
    cells = cells_of(30)
    belief = believing(cells)
    belief.fit(told_of(cells))
    few = believing(cells[::3])
    few.shapes, few.noise = list(belief.shapes), belief.noise
    kept = np.arange(0, 30, 3)
    belief.keep(kept)
    few.fit(told_of(cells[::3]))
    belief.fit(told_of(cells[::3]))
    told = told_of(cells[::3])
    assert np.array_equal(belief.weights(told), few.weights(told))


def test_a_fit_finds_the_axes_that_matter() -> None:
    """The list is of no consequence, the range matters and is smooth, and there is little noise."""
    draw = np.random.default_rng(3)
    cells = cells_of(60)
    belief = believing(cells)
    told = Told(np.sin(6.0 * cells[:, 2]) + 0.05 * draw.standard_normal(60), np.ones(60), 0.0)
    for _ in range(3):
        belief.fit(told)
    assert [belief.shapes[0].floor, belief.shapes[1].floor] == [0.98, 0.98]
    assert belief.shapes[2].floor < 0.9
    assert belief.noise < 0.1


def test_repeats_tell_the_noise() -> None:
    cells = cells_of(60)
    quiet, loud = believing(cells), believing(cells)
    counts = np.full(60, 4.0)
    means = told_of(cells).means
    for _ in range(3):
        quiet.fit(Told(means, counts, 180 * 0.01**2))
        loud.fit(Told(means, counts, 180 * 1.0**2))
    assert quiet.noise < 0.01 < loud.noise


def test_repeats_of_a_cell_say_nothing_about_others() -> None:
    cells = cells_of(20)
    belief = believing(cells)
    told = told_of(cells)
    elsewhere = np.array([[0.5, 0.95]])

    def doubt(counts: np.ndarray) -> float:
        drawn = belief.drawn(np.array([1.0]), elsewhere, Told(told.means, counts, 0.0), np.array([[0.0, 1.0]]))
        return float(drawn[0, 1] - drawn[0, 0])

    once = np.ones(20)
    often = once.copy()
    often[0] = 10_000.0
    assert doubt(often) > 0.8 * doubt(once)


# candidates -------------------------------------------------------------------------------------------


def test_large_spaces_are_drawn_from_and_searched_around_good_settings() -> None:
    space = Space({**{f"k{i}": Choice(tuple(range(12))) for i in range(6)}, "r": Range(0.0, 1.0)})
    source = CandidateSource(space, 10)
    good = {**{f"k{i}": i for i in range(6)}, "r": 0.123}
    found = source.make(np.random.default_rng(0), [good])
    near = [found.action(row) for row in range(DRAWN, len(found))]
    assert near[0] == good
    assert all(sum(one[name] != good[name] for name in good) <= 1 for one in near)
    assert all(space.accept(one) == one for one in near)
    assert len({one["r"] for one in near}) == 7
    assert found.places[DRAWN].tolist() == source.place(good)


def test_values_between_bins_are_only_tried_near_good_settings() -> None:
    source = CandidateSource(Space({"r": Range(0.0, 1.0)}), 3)
    found = source.make(np.random.default_rng(0), [])
    assert [found.action(row)["r"] for row in range(len(found))] == [0.0, 0.5, 1.0]
    assert not source.complete
    assert len(source.make(np.random.default_rng(0), [{"r": 0.5}])) == 3 + 1 + 6
