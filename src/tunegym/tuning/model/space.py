"""Knobs and the space they span. Actions are native values, never indices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Any, Literal, TypeAlias

from tunegym.core.errors import ActionError
from tunegym.tuning.model.values import Action, Scalar, native, spelled


@dataclass(frozen=True)
class Choice:
    """A discrete knob: an ordered list of at least one candidate, all different by type and value."""

    values: tuple[Scalar, ...]

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
        """Return ``value`` as a candidate; raises ValueError with what is allowed."""
        index = self.index(value)
        if index is None:
            raise ValueError(f"{spelled(value)} is not one of {self.describe()}")
        return self.values[index]

    def describe(self) -> str:
        """Return the candidates as a user would write them."""
        return spelled(self.values)

    def spec(self) -> dict[str, Any]:
        """Return the knob as plain data, for the journal's head."""
        return {"values": list(self.values)}


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

    @property
    def size(self) -> int | None:
        """Number of values of a grid over the range; None without a step."""
        step = self.step
        if step is None:
            return None
        return round((self.high - self.low) / step) + 1

    def at(self, index: int) -> Scalar:
        """Return value number ``index`` of a range with a step."""
        assert self.step is not None
        return self.snap(self.low + index * self.step)

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
        count = self.size if self.step is not None else None
        if count is not None:
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
        product = 1
        for knob in self.knobs.values():
            size = knob.size
            if size is None:
                return None
            product *= size
        return product

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

    def accept(self, action: Action) -> dict[str, Scalar]:
        """Return ``action`` in the space's order with every value snapped.

        Raises:
            ActionError: keys are missing or extra, or a value is no candidate; it lists them.
        """
        if not isinstance(action, Mapping):
            raise ActionError(f"an action is a mapping, not {action!r}", hint=f"give {', '.join(self.knobs) or '{}'}")
        if self._names != action.keys():
            missing = [name for name in self.knobs if name not in action]
            extra = [str(name) for name in action if name not in self._names]
            parts = [f"missing: {', '.join(missing)}"] if missing else []
            parts += [f"extra: {', '.join(extra)}"] if extra else []
            raise ActionError(
                f"the action's keys don't match the knobs ({'; '.join(parts)})",
                hint=f"give exactly these: {', '.join(self.knobs) or 'none'}",
            )
        accepted: dict[str, Scalar] = {}
        for name, knob in self.knobs.items():
            try:
                accepted[name] = knob.accept(native(action[name]))
            except ValueError as error:
                raise ActionError(f"{name}: {error}") from None
        return accepted

    def spec(self) -> dict[str, Any]:
        """Return the knobs as plain data, for the journal's head."""
        return {name: knob.spec() for name, knob in self.knobs.items()}


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
