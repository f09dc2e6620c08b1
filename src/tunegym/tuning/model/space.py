"""Knobs and the space they span, and env_params with the contexts they draw. All values are native, never indices."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from itertools import accumulate, product
from typing import Any, Literal, TypeAlias

from tunegym.core.errors import ActionError
from tunegym.core.randomness import even_unit, unit
from tunegym.tuning.model.values import Action, Context, Scalar, exact_key, native, spelled


@dataclass(frozen=True)
class Choice:
    """A discrete knob: an ordered list of at least one candidate, all different by type and value."""

    values: tuple[Scalar, ...]
    default: Scalar | None = None  # the candidate in use today, for a baseline that doesn't say

    @cached_property
    def _index(self) -> dict[tuple[type, Scalar], int]:
        return {(type(value), value): index for index, value in enumerate(self.values)}

    @property
    def size(self) -> int:
        """Number of candidates."""
        return len(self.values)

    def index(self, value: object) -> int | None:
        """Return the position of ``value``, by exact type, or None if it is no candidate."""
        try:
            return self._index.get((type(value), value))  # type: ignore[arg-type]
        except TypeError:  # unhashable: certainly no candidate
            return None

    def at(self, index: int) -> Scalar:
        """Return the candidate at ``index``."""
        return self.values[index]

    def from_unit(self, unit: float) -> Scalar:
        """Map ``unit`` in [0, 1) to a candidate, all equally likely."""
        return self.values[int(unit * len(self.values))]

    def accept(self, value: object) -> Scalar:
        """Return ``value`` as a candidate; raises ValueError with the allowed ones."""
        index = self.index(value)
        if index is None:
            raise ValueError(f"{spelled(value)} is not one of {self.describe()}")
        return self.values[index]

    def describe(self) -> str:
        """Return the candidates as a user would write them."""
        return spelled(self.values)

    def spec(self) -> dict[str, Any]:
        """Return the knob as plain data, for the journal's head."""
        return {"values": self.values}


@dataclass(frozen=True)
class Range:
    """A continuous or integer knob from ``low`` to ``high``, both included.

    The constructor trusts its caller: low < high, finite, ``step`` divides the width, ``log`` means low > 0
    and no step. Configuration checks that.
    """

    low: int | float
    high: int | float
    dtype: Literal["int", "float"] = "float"
    log: bool = False
    step: int | float | None = None
    default: Scalar | None = None  # the value in use today, for a baseline that doesn't say

    @property
    def size(self) -> int | None:
        """Number of values of a grid over the range; None without a step."""
        return None if self.step is None else round((self.high - self.low) / self.step) + 1

    def at(self, index: int) -> Scalar:
        """Return value number ``index`` of a range with a step."""
        assert self.step is not None
        return self.snap(self.low + index * self.step)

    def index(self, value: float) -> int:
        """Return the number of a value of a range with a step."""
        assert self.step is not None
        return round((value - self.low) / self.step)

    def snap(self, value: float) -> Scalar:
        """Return the nearest value of the range: clamped, then rounded to the step or the integer. Idempotent."""
        value = min(max(value, self.low), self.high)
        step = self.step
        if step is None:
            return round(value) if self.dtype == "int" else float(value)
        if isinstance(value, int) and isinstance(step, int) and isinstance(self.low, int):
            index = (2 * (value - self.low) + step) // (2 * step)  # no float: it can't hold every integer
        else:
            index = round((value - self.low) / step)
        if self.dtype == "int":
            return round(self.low + index * step)
        # In decimal, so that there is no dust: 0.1 + 2 * 0.1 is 0.3.
        low, width = self._decimal
        return min(max(float(low + index * width), self.low), self.high)

    @cached_property
    def _decimal(self) -> tuple[Decimal, Decimal]:
        """Low and step as they are written."""
        return Decimal(repr(self.low)), Decimal(repr(self.step))

    def from_unit(self, unit: float) -> Scalar:
        """Map ``unit`` in [0, 1) to a value; those of an integer or stepped range are equally likely."""
        if (count := self.size) is not None:
            return self.at(min(int(unit * count), count - 1))
        if self.log:
            edge = 0.5 if self.dtype == "int" else 0.0
            low, high = math.log(self.low - edge), math.log(self.high + edge)
            return self.snap(math.exp(low + unit * (high - low)))
        if self.dtype == "int":
            return self.snap(self.low + math.floor(unit * (self.high - self.low + 1)))
        return self.snap(self.low + unit * (self.high - self.low))

    def position(self, value: float) -> float:
        """Return the position of ``value`` from 0 (``low``) to 1 (``high``), on the range's scale."""
        if self.log:
            low, high, value = math.log(self.low), math.log(self.high), math.log(value)
        elif self.dtype == "int":  # exact: a float can't hold every integer
            low, high = self.low, self.high
        else:  # halved, because the width itself may be too large for a float
            low, high, value = self.low / 2, self.high / 2, value / 2
        return (value - low) / (high - low) if high > low else 0.0

    def at_position(self, position: float) -> Scalar:
        """Return the value nearest to ``position``; 0 and below is exactly ``low``, 1 and above ``high``."""
        if position <= 0.0:
            return self.snap(self.low)
        if position >= 1.0:
            return self.snap(self.high)
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return self.snap(math.exp(low + position * (high - low)))
        if self.dtype == "int":
            step = self.step or 1
            return self.snap(self.low + round(position * ((self.high - self.low) // step)) * step)
        return self.snap(self.low * (1.0 - position) + self.high * position)

    def accept(self, value: object) -> Scalar:
        """Return ``value`` snapped to the range; raises ValueError if it is no number or outside."""
        # Compared before anything is computed: an integer may be too large for a float. A NaN is nowhere.
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise ValueError(f"{spelled(value)} is not a number in {self.describe()}")
        if not self.low <= value <= self.high:
            raise ValueError(f"{spelled(value)} is outside {self.describe()}")
        return self.snap(value)

    def describe(self) -> str:
        """Return the range as a user would write it."""
        return spelled(self.spec())

    def spec(self) -> dict[str, Any]:
        """Return the knob as plain data, for the journal's head."""
        spec: dict[str, Any] = {"low": self.low, "high": self.high, "dtype": self.dtype}
        if self.log:
            spec["log"] = True
        if self.step is not None:
            spec["step"] = self.step
        return spec


Knob: TypeAlias = Choice | Range


@dataclass(frozen=True)
class Space:
    """The tunable knobs by address, in the order of the scenario, and the parameters that are fixed."""

    knobs: Mapping[str, Knob]
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.knobs)

    @property
    def size(self) -> int | None:
        """Number of actions of a grid; None when a knob is continuous."""
        sizes = [knob.size for knob in self.knobs.values()]
        return None if None in sizes else math.prod(size or 0 for size in sizes)

    def point(self, index: int) -> dict[str, Scalar]:
        """Return action number ``index`` of the grid; the last knob changes fastest."""
        action: dict[str, Scalar] = {}
        for name in reversed(list(self.knobs)):
            knob = self.knobs[name]
            size = knob.size
            assert size is not None
            index, digit = divmod(index, size)
            action[name] = knob.at(digit)
        return {name: action[name] for name in self.knobs}

    def draw(self, seed: int, name: str, *numbers: int) -> dict[str, Scalar]:
        """Draw a random setting. It depends on the arguments alone."""
        return {knob: domain.from_unit(unit(seed, name, knob, *numbers)) for knob, domain in self.knobs.items()}

    def accept(self, action: Action) -> dict[str, Scalar]:
        """Return ``action`` in the space's order with every value snapped.

        Raises:
            ActionError: keys are missing or extra, or a value is no candidate; it lists them.
        """
        self.check_keys(action)
        accepted: dict[str, Scalar] = {}
        for name, knob in self.knobs.items():
            try:
                accepted[name] = knob.accept(native(action[name]))
            except ValueError as error:
                raise ActionError(f"{name}: {error}") from None
        return accepted

    def check_keys(self, action: Any) -> None:
        """Raise ``ActionError`` unless ``action`` is a mapping with exactly the knobs for keys."""
        hint = f"give exactly these: {', '.join(self.knobs) or 'none'}"
        if not isinstance(action, Mapping):
            raise ActionError(f"an action is a mapping, not {action!r}", hint=hint)
        if self._names != action.keys():
            missing = [name for name in self.knobs if name not in action]
            extra = [str(name) for name in action if name not in self._names]
            parts = [f"missing: {', '.join(missing)}"] if missing else []
            parts += [f"extra: {', '.join(extra)}"] if extra else []
            raise ActionError(f"the action's keys don't match the knobs ({'; '.join(parts)})", hint=hint)


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Turn addresses into tables: ``{"a.b": 1}`` becomes ``{"a": {"b": 1}}``."""
    tree: dict[str, Any] = {}
    for address, value in flat.items():
        *path, leaf = address.split(".")
        branch = tree
        for part in path:
            branch = branch.setdefault(part, {})
        branch[leaf] = value
    return tree


@dataclass(frozen=True)
class EnvParam:
    """One parameter of the environment."""

    domain: Knob  # its candidates, or a range
    weights: tuple[float, ...] | None = None  # how often each candidate is drawn; None for equally often
    encoding: str | None = None  # how the agent sees it
    every_step: bool = False  # in a live experiment, draw for each step instead of each episode

    @cached_property
    def _edges(self) -> list[float]:
        return list(accumulate(self.weights or ()))

    def draw(self, seed: int, name: str, number: int) -> Scalar:
        """Draw the value of trial ``number``. It depends on these three arguments and nothing else.

        Draws are random, but even: a context that came too rarely would be known too little.
        """
        return self.from_unit(even_unit(seed, number, "env_params", name))

    def from_unit(self, u: float) -> Scalar:
        """Map ``u`` in [0, 1) to a value, by the weights."""
        if self.weights is None:
            return self.domain.from_unit(u)
        assert isinstance(self.domain, Choice)
        edges = self._edges
        index = bisect_right(edges, u * edges[-1])
        return self.domain.values[min(index, len(edges) - 1)]

    def candidates(self) -> list[tuple[Scalar, float]] | None:
        """The values that can be drawn, each with its share; None for a range."""
        if not isinstance(self.domain, Choice):
            return None
        weights = self.weights or (1.0,) * self.domain.size
        total = math.fsum(weights)
        return [(value, weight / total) for value, weight in zip(self.domain.values, weights, strict=True) if weight]


MOST_REPRESENTED, POINTS = 12, 6
"""Settings are compared in at most so many contexts; ranges have so many points, with lists beside them fewer each."""
STEP = 0.64
"""Steps of its squares put the points so that in most strata of one parameter those of another differ."""


@dataclass(frozen=True)
class EnvParams:
    """All env_params of an experiment; draws the context of any trial number."""

    params: Mapping[str, EnvParam]
    seed: int = 0

    def __bool__(self) -> bool:
        return bool(self.params)

    @cached_property
    def vary_in_episodes(self) -> bool:
        """Whether a parameter is drawn for each step of an episode."""
        return any(param.every_step for param in self.params.values())

    @property
    def size(self) -> int | None:
        """How many contexts can be drawn; None with a range."""
        each = [param.candidates() for param in self.params.values()]
        return math.prod(len(one or ()) for one in each) if all(each) else None

    def represented(self) -> tuple[tuple[dict[str, Scalar], float], ...]:
        """The contexts in which settings are compared, with weights that sum to 1: every one, or a few spread points.

        All combinations of lists where they are few, each at the same points of the ranges; else a Latin hypercube of
        the draws, in which every parameter takes its values as often as they are drawn.
        """
        each = {name: param.candidates() for name, param in self.params.items()}
        lists = {name: found for name, found in each.items() if found}
        ranges = [name for name in each if name not in lists]
        size = math.prod(map(len, lists.values()))
        if size > MOST_REPRESENTED:
            size, lists, ranges = MOST_REPRESENTED, {}, list(each)
            groups = [({}, 1.0 / size)] * size
        else:
            groups = [
                ({name: value for name, (value, _) in zip(lists, one, strict=True)}, math.prod(w for _, w in one))
                for one in product(*lists.values())
            ]
        points = math.ceil(POINTS / size) if ranges else 1
        found: dict[bytes, tuple[dict[str, Scalar], float]] = {}
        for at, (values, weight) in enumerate(groups):
            for point in range(points):
                index, count = (point, points) if points > 1 else (at, size)
                drawn = {
                    name: self.params[name].from_unit(_stratum(index, place + bool(lists and points == 1), count))
                    for place, name in enumerate(ranges)
                }
                context = {name: (values | drawn)[name] for name in self.params}
                key = exact_key(context)
                found[key] = context, weight / points + (found[key][1] if key in found else 0.0)
        return tuple(found.values())

    def context(self, number: int) -> dict[str, Scalar]:
        """The context of trial ``number``, the same in any process and at any width."""
        return self.step_context(number, number)

    def step_context(self, first: int, number: int) -> dict[str, Scalar]:
        """The context of step ``number`` in an episode whose first number is ``first``."""
        return {
            name: param.draw(self.seed, name, number if param.every_step else first)
            for name, param in self.params.items()
        }

    def next_context(self, context: Context, number: int) -> Context:
        """The context of step ``number`` in an episode that has had a step under ``context``."""
        if not self.vary_in_episodes:
            return context
        drawn = {name: one.draw(self.seed, name, number) for name, one in self.params.items() if one.every_step}
        return {**context, **drawn}


@dataclass(frozen=True, slots=True)
class ObsLeafDescriptor:
    """Shape of one leaf of a structured observation: the result of an encoding.

    Raises:
        ValueError: the values contradict each other.
    """

    kind: Literal["box", "discrete"]  # ``box``, a float32 vector, or ``discrete``, one of the integers from 0
    dim: int = 1  # a box's length; 1 for a discrete leaf
    n: int | None = None  # number of integers of a discrete leaf; None for a box
    low: float = -math.inf  # a box's smallest number
    high: float = math.inf  # a box's largest number

    def __post_init__(self) -> None:
        if self.kind not in ("box", "discrete"):
            raise ValueError(f'kind must be "box" or "discrete", not {self.kind!r}')
        if type(self.dim) is not int or self.dim < 1:
            raise ValueError(f"dim must be an integer of at least 1, not {self.dim!r}")
        if self.kind == "box":
            if self.n is not None:
                raise ValueError(f"a box has a dim and no n, here n={self.n!r}")
            numbers = all(isinstance(one, int | float) for one in (self.low, self.high))
            if not (numbers and self.low < self.high):
                raise ValueError(f"low must be below high, here {self.low!r} and {self.high!r}")
        elif type(self.n) is not int or self.n < 1:
            raise ValueError(f"a discrete leaf needs n, an integer of at least 1, not {self.n!r}")
        elif self.dim != 1 or (self.low, self.high) != (-math.inf, math.inf):
            raise ValueError("a discrete leaf has an n, and neither dim nor bounds")


def _stratum(at: int, place: int, count: int) -> float:
    """Coordinate ``place`` of a point: the middle of one of ``count`` strata, each of which one point has."""
    ranks = sorted(range(count), key=lambda one: one * place**2 * STEP % 1.0)
    return (ranks.index(at) + 0.5) / count
