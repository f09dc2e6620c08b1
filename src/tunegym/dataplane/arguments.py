"""What a user gives to a client, checked: a wrong argument is an error that says so, before anything is done."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tunegym.dataplane.encoding import Column, encode
from tunegym.dataplane.errors import DataPlaneError, FieldError, SampleError, SpecError, TagError
from tunegym.dataplane.model import BatchMeta
from tunegym.dataplane.tags import check_tags, is_unicode

_LARGEST = 2**62


def checked_ids(sample_ids: Iterable[str]) -> list[str]:
    """Sample ids as plain texts. Raises ``SampleError``."""
    return _texts("sample_ids", sample_ids, SampleError)


def checked_groups(group_ids: Iterable[str] | None, count: int) -> list[str] | None:
    """Group ids as plain texts, one for each sample. Raises ``SampleError``."""
    if group_ids is None:
        return None
    groups = _texts("group_ids", group_ids, SampleError)
    if len(groups) != count:
        raise SampleError(f"{len(groups)} group_ids for {count} samples", hint="give one for each sample")
    return groups


def checked_names(what: str, names: Iterable[str]) -> list[str]:
    """Names of fields or tasks. Raises ``SpecError``."""
    return _texts(what, names, SpecError)


def checked_name(what: str, name: str) -> str:
    """One name. Raises ``SpecError``."""
    if not isinstance(name, str) or not name:
        raise SpecError(f"{what} is {name!r:.60}", hint="give a text")
    return _plain(what, [str(name)], SpecError)[0]


def checked_columns(fields: Mapping[str, Any], count: int) -> dict[str, Column]:
    """Fields, encoded, each with a row for each sample. Raises ``FieldError``."""
    if not isinstance(fields, Mapping):
        raise FieldError(f"fields is {type(fields).__name__}", hint="give a dict: by name a column")
    if not fields:
        raise FieldError("no field is given", hint="give at least one by name")
    columns: dict[str, Column] = {}
    for name, values in fields.items():
        checked_name("the name of a field", name)
        if not count and isinstance(values, list | tuple) and not values:
            continue  # of no sample, and so of no dtype
        try:
            column = encode(values)
        except FieldError as error:
            raise FieldError(f"field {name!r}: {error.message}", hint=error.hint) from None
        if column.rows != count:
            raise FieldError(f"field {name!r} has {column.rows} rows for {count} samples", hint="give a row for each")
        columns[name] = column
    return columns


def checked_lengths(lengths: Iterable[int] | None, count: int) -> list[int] | None:
    """Lengths as Python's integers, one for each sample. Raises ``SampleError``."""
    if lengths is None:
        return None
    try:
        found = [operator.index(one) for one in lengths]
    except TypeError:
        raise SampleError(f"lengths is {lengths!r:.60}", hint="give an integer for each sample") from None
    if len(found) != count:
        raise SampleError(f"{len(found)} lengths for {count} samples", hint="give one for each sample")
    if any(not 0 <= one < 2**31 for one in found):
        raise SampleError(f"lengths is {lengths!r:.60}", hint="give integers from 0 to 2**31 - 1")
    return found


def checked_tag_list(tags: Any, count: int) -> list[dict[str, Any]] | dict[str, Any] | None:
    """Tags of each sample, or of all, as plain values. Raises ``TagError``."""
    if tags is None:
        return None
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise TagError(f"tags is {tags!r:.60}", hint="give a dict for each sample, or one for all")
    if isinstance(tags, Mapping):
        return check_tags([tags])[0]
    each = list(tags)
    if len(each) != count:
        raise TagError(f"{len(each)} tags for {count} samples", hint="give a dict for each sample, or one for all")
    return list(check_tags(each))


def checked_batch(batch_size: int, min_batch: int | None) -> tuple[int, int]:
    """How many samples are wanted, at most and at least. Raises ``SpecError``."""
    most = checked_integer("batch_size", batch_size, 1)
    least = most if min_batch is None else checked_integer("min_batch", min_batch, 1)
    if least > most:
        raise SpecError(f"min_batch is {least}, and batch_size {most}", hint="give a min_batch of at most batch_size")
    return most, least


def checked_integer(what: str, value: int, least: int = -_LARGEST) -> int:
    """An integer as Python's own; numpy's are fine. Raises ``SpecError``."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise SpecError(f"{what} is {value!r:.60}", hint="give an integer")
    if not least <= int(value) <= _LARGEST:
        raise SpecError(
            f"{what} is {value!r:.60}", hint=f"give an integer of at least {least}" if value < least else "too large"
        )
    return int(value)


def checked_seconds(what: str, value: float | None) -> float | None:
    """How long to wait; None for ever. Raises ``SpecError``."""
    if value is None:
        return None
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise SpecError(f"{what} is {value!r:.60}", hint="give seconds, 0 for no wait, or None to wait for ever")
    if math.isnan(value) or value < 0:
        raise SpecError(f"{what} is {value!r}", hint="give 0 for no wait, or None to wait for ever")
    return None if math.isinf(value) else float(value)


def checked_meta(meta: BatchMeta) -> BatchMeta:
    """A batch. Raises ``SpecError``."""
    if not isinstance(meta, BatchMeta):
        raise SpecError(f"{meta!r:.60} is no BatchMeta", hint="give what put_samples or claim_meta gave")
    return meta


def _texts(what: str, given: Iterable[str], wrong: type[DataPlaneError]) -> list[str]:
    """Several texts, of at least one character each, as plain ones."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise wrong(f"{what} is {given!r:.60}", hint="give a list of texts")
    texts = given.tolist() if isinstance(given, np.ndarray) else list(given)
    kinds = set(map(type, texts))
    if kinds != {str} or "" in texts:
        for one in texts:
            if not isinstance(one, str) or not one:
                raise wrong(f"{what}: {one!r:.60} is no name", hint="give texts of at least one character")
        texts = [str(one) for one in texts]
    return _plain(what, texts, wrong)


def _plain(what: str, texts: Sequence[str], wrong: type[DataPlaneError]) -> list[str]:
    if not is_unicode("".join(texts)):
        bad = next(one for one in texts if not is_unicode(one))
        raise wrong(f"{what}: {bad!r:.60} is no Unicode", hint="it has half of a surrogate pair")
    return list(texts)
