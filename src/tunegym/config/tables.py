"""From a plain table to a checked one: pydantic's verdicts in our own words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from tunegym.config.findings import Findings
from tunegym.config.schema import Says, Table
from tunegym.config.spelling import did_you_mean, kind

TableT = TypeVar("TableT", bound=Table)

_QUOTED_CHOICES = "literal_error"


def checked(
    model: type[TableT],
    table: Mapping[str, Any],
    findings: Findings,
    stray: Callable[[str], str | None] = lambda _key: None,
) -> TableT:
    """``table`` as ``model``. Keys with a problem are noted and left at their defaults.

    ``stray`` may give the hint for an unknown key that belongs somewhere else.
    """
    try:
        return model(**table)
    except ValidationError as error:
        bad = _note(model, table, error, findings, stray)
        return model(**{key: value for key, value in table.items() if key not in bad})


def _note(
    model: type[Table],
    table: Mapping[str, Any],
    error: ValidationError,
    findings: Findings,
    stray: Callable[[str], str | None],
) -> set[str]:
    """Note one problem for each wrong place; returns the keys of ``table`` that are wrong."""
    fields = {field.alias or name: name for name, field in model.model_fields.items()}
    items = error.errors(include_url=False)
    places = [_place(findings.at(str(item["loc"][0])), table[str(item["loc"][0])], item["loc"][1:]) for item in items]
    done: list[str] = []
    for item, (place, value) in zip(items, places, strict=True):
        key = str(item["loc"][0])
        if item["type"] == "extra_forbidden":
            findings.unknown(key, value, fields, stray(key) or did_you_mean(key, fields, "remove it"))
        elif place.where not in done and not any(_below(other.where, place.where) for other, _ in places):
            # A union complains once per branch; the deepest place is the one that the user meant.
            _note_value(place, value, item, model.says(fields[key]))
        done.append(place.where)
    return {str(item["loc"][0]) for item in items}


def _below(where: str, parent: str) -> bool:
    return where.startswith((f"{parent}.", f"{parent}["))


def _place(findings: Findings, value: Any, loc: tuple[int | str, ...]) -> tuple[Findings, Any]:
    """Follow a location into the value; what names a branch of a union is no part of the key path."""
    for part in loc:
        if (isinstance(value, list) and isinstance(part, int)) or (isinstance(value, dict) and part in value):
            findings, value = findings.at(part), value[part]  # type: ignore[index]
    return findings, value


def _note_value(findings: Findings, value: Any, item: Mapping[str, Any], says: Says) -> None:
    kind_of_error = item["type"]
    hint = says.hint
    if kind_of_error == "value_error":
        what = str(item["ctx"]["error"])
    elif kind_of_error.startswith(("greater_than", "less_than")):
        what = "the value is out of bounds"
    elif kind_of_error == _QUOTED_CHOICES:
        what = "not one of the possible values"
        hint = did_you_mean(value, item["ctx"]["expected"].split("'")[1::2], says.hint)
    else:
        what = f"{kind(value)} can't stand here"
    findings.add(what, found=value, allowed=says.allowed, hint=hint)
