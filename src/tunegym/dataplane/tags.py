"""Tags as a user gives them: small scalars, by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tunegym.dataplane.errors import TagError

Tags: TypeAlias = Mapping[str, bool | int | float | str | None]


def is_unicode(text: str) -> bool:
    """Whether a text can be written down: halves of surrogate pairs can't."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_SCALARS = (bool, int, float, str)


def check_tags(tags: Sequence[Tags]) -> tuple[dict[str, Any], ...]:
    """Tags as plain Python values. Raises ``TagError`` for what is none."""
    checked: list[dict[str, Any]] = []
    last: object = None
    for at, one in enumerate(tags):
        if at and one is last:  # the same for all is looked at once
            checked.append(checked[-1].copy())
        else:
            checked.append(_plain_tags(at, one))
            last = one
    return tuple(checked)


def _plain_tags(at: int, tags: Tags) -> dict[str, Any]:
    if type(tags) is not dict and not isinstance(tags, Mapping):
        raise TagError(f"the tags of sample {at} are {type(tags).__name__}, not a dict")
    plain: dict[str, Any] = {}
    for name, value in tags.items():
        found = value.item() if isinstance(value, np.generic) else value
        if not isinstance(name, str) or not name:
            raise TagError(f"{name!r} is no name of a tag")
        if found is not None and not isinstance(found, _SCALARS):
            raise TagError(
                f"tag {name!r} of sample {at} is {type(value).__name__}",
                hint="tags are small: numbers, texts, True, False and None; larger things are fields",
            )
        if isinstance(found, float) and not math.isfinite(found):
            raise TagError(f"tag {name!r} of sample {at} is {found}", hint="leave it out, or use None or a field")
        if isinstance(found, int) and not -(2**63) <= found < 2**63:
            raise TagError(f"tag {name!r} of sample {at} is an integer beyond 64 bits")
        if not is_unicode(name) or (isinstance(found, str) and not is_unicode(found)):
            raise TagError(
                f"tag {name!r} of sample {at} is no Unicode: {found!r:.60}", hint="it has half of a surrogate pair"
            )
        plain[name] = found
    return plain
