"""Whether what a record of a live journal says fits together: JSON that is valid may still be damaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunegym.tuning.stores.records import Record

_NUMBERS = {int, float}
_EPISODE = (int, int, int, int, int, (int, float), str, dict)
_INTEGERS = {
    "reserve": ("upto",),
    "lost": ("first", "last"),
    "steps": ("upto", "count", "begun"),
}


def fault(record: Record) -> str | None:
    """What is wrong with a record, but for the elements of spaces in it; None if nothing is."""
    since = record.get("since", 0.0)
    if type(since) not in _NUMBERS:
        return "since is no number"
    kind = record["record"]
    for name in _INTEGERS.get(kind, ()):
        if type(record[name]) is not int or record[name] < 0:
            return f"{name} is no number"
    return _group_fault(record) if kind == "steps" else None


def _group_fault(record: Record) -> str | None:
    if type(record["largest"]) not in _NUMBERS or (
        record["worst"] is not None and type(record["worst"]) not in _NUMBERS
    ):
        return "worst or largest is no number"
    statuses = record["statuses"]
    if not isinstance(statuses, dict) or not _all(statuses.values(), {int}):
        return "statuses are no counts"
    episodes = record.get("episodes", [])
    if not isinstance(episodes, list) or not all(map(_is_episode, episodes)):
        return "an episode of it is incomplete"
    return _columns_fault(record, record["count"]) if record["count"] else None


def _is_episode(found: Any) -> bool:
    return (
        isinstance(found, list)
        and len(found) == len(_EPISODE)
        and all(isinstance(one, kind) for one, kind in zip(found, _EPISODE, strict=True))
    )


def _columns_fault(record: Record, count: int) -> str | None:
    """What is wrong with what is there for each step."""
    numbers = record.get("first") if "first" in record else record.get("numbers")
    if type(numbers) is not int and not _is_column(numbers, count, {int}):
        return f"it has not the numbers of {count} steps"
    kinds: dict[str, set[type]] = {"episode": {int}, "reward": _NUMBERS, "duration_s": _NUMBERS}
    for name, allowed in kinds.items():
        if not _is_column(record.get(name), count, allowed):
            return f"{name} has not {count} numbers"
    for name in ("terminated", "truncated"):
        if not _are_places(record.get(name), count):
            return f"{name} names no steps of it"
    for name in ("action", "observation"):
        if not _are_elements(record.get(name), count):
            return f"{name} has not {count} elements"
    return _further_fault(record, count)


def _further_fault(record: Record, count: int) -> str | None:
    """What is wrong with what only some records have."""
    metrics = record.get("metrics", {})
    if not isinstance(metrics, dict):
        return "metrics are no table"
    for name, column in metrics.items():
        if not _is_column(column, count, {*_NUMBERS, type(None)}):
            return f"the metric {name} has not {count} values"
    contexts = record.get("context", [])
    if not _are_rows(contexts, count, lambda one: len(one) == 2 and isinstance(one[1], dict)) or not _ascend(contexts):
        return "context is not that of its steps"
    if not _are_rows(record.get("unmeasured", []), count, lambda one: len(one) == 3 and _all(one[1:], {str})):
        return "unmeasured names no steps of it"
    return None


def _are_elements(found: Any, count: int) -> bool:
    """Whether there is a row for each step; what a row is made of, only the spaces tell."""
    if isinstance(found, dict):
        return type(found.get("row")) is int and found["row"] >= 0
    return isinstance(found, list) and all(isinstance(leaf, list) and len(leaf) == count for leaf in found)


def _is_column(found: Any, count: int, kinds: set[type]) -> bool:
    return isinstance(found, list) and len(found) == count and _all(found, kinds)


def _are_places(found: Any, count: int) -> bool:
    return isinstance(found, list) and _all(found, {int}) and all(0 <= at < count for at in found)


def _are_rows(found: Any, count: int, fits: Callable[[list[Any]], bool]) -> bool:
    return isinstance(found, list) and all(
        isinstance(one, list) and one and type(one[0]) is int and 0 <= one[0] < count and fits(one) for one in found
    )


def _ascend(contexts: list[Any]) -> bool:
    """Whether they hold from the first step on, one after another."""
    places = [one[0] for one in contexts]
    return not places or (places[0] == 0 and places == sorted(set(places)))


def _all(values: Any, kinds: set[type]) -> bool:
    return set(map(type, values)) <= kinds
