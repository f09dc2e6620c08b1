"""A policy on disk: a table of an agent's choices by context, readable without the agent, and its training curves."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from tunegym.core.errors import StoreError
from tunegym.core.files import write_atomic
from tunegym.tuning.inference.recommendation import PolicyChoice, PolicyTable
from tunegym.tuning.model.space import Choice, EnvParams
from tunegym.tuning.model.values import Context, Scalar, exact_key, native

FOLDER = "policy"
FILE = "policy.json"
MODEL = "model.zip"
TRAINING = "training.jsonl"
FORMAT = 1
MOST_CONTEXTS = 1000
MOST_PLACES = 33
"""Most contexts of a table, and most values of one range."""
LONGEST_LINE = 2**16
"""Most bytes of a line of the training curves."""
MOST_DRAWS = 10 * MOST_CONTEXTS
"""Most contexts that are drawn to find ``MOST_CONTEXTS`` different ones."""


def contexts_to_ask(params: EnvParams) -> list[dict[str, Scalar]]:
    """The contexts of a table: all of them, with ranges at evenly spread values, or a draw if there are too many.

    Candidates of weight 0 are left out: a policy knows nothing of them.
    """
    from tunegym.tuning.envs.actions import binned

    lists: dict[str, tuple[Scalar, ...]] = {}
    for name, param in params.params.items():
        if isinstance(param.domain, Choice):
            weights = param.weights or (1.0,) * param.domain.size
            lists[name] = tuple(value for value, weight in zip(param.domain.values, weights, strict=True) if weight > 0)
    count = math.prod(len(values) for values in lists.values())
    ranges = len(params.params) - len(lists)
    places = MOST_PLACES
    if ranges:
        places = min(places, int((MOST_CONTEXTS / count) ** (1 / ranges) + 1e-9))
    if count > MOST_CONTEXTS or places < 3:
        return _drawn(params)
    axes = {name: lists.get(name) or binned(param.domain, places) for name, param in params.params.items()}
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _drawn(params: EnvParams) -> list[dict[str, Scalar]]:
    """The distinct contexts of the first trials."""
    distinct: dict[bytes, dict[str, Scalar]] = {}
    for number in range(1, MOST_DRAWS + 1):
        context = params.context(number)
        distinct.setdefault(exact_key(context), context)
        if len(distinct) == MOST_CONTEXTS:
            break
    return list(distinct.values())


def table_of(
    agent: str, trials: int, params: EnvParams, choose: Callable[[Context], PolicyChoice | None]
) -> PolicyTable:
    """Ask a policy in every context; contexts without an answer are left out."""
    choices = []
    for context in contexts_to_ask(params):
        choice = choose(context)
        if choice is not None:
            chance = None if choice.chance is None else float(choice.chance)
            action = {name: native(value) for name, value in choice.action.items()}
            finite = chance is not None and math.isfinite(chance)
            choices.append(PolicyChoice(action, chance if finite else None, context))
    return PolicyTable(agent, trials, tuple(choices))


def save(folder: Path, table: PolicyTable) -> None:
    """Write the table atomically into an experiment's results. Raises ``OSError``."""
    document = {"format": FORMAT, **msgspec.to_builtins(table)}
    path = folder / FOLDER / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


def load(folder: Path) -> PolicyTable | None:
    """The table in an experiment's results; None if there is none.

    Raises:
        StoreError: it can't be read, or ``save`` didn't write it.
    """
    path = folder / FOLDER / FILE
    try:
        text = path.read_bytes()
        form = msgspec.json.decode(text, type=_Format).format
        if form != FORMAT:
            fault = f"{path} has format {form}, and only {FORMAT} is known here"
            raise StoreError(fault, hint="use a newer tunegym")
        return msgspec.json.decode(text, type=PolicyTable)
    except FileNotFoundError:
        return None
    except OSError as error:
        fault = f"{path} can't be read: {error.strerror}"
        raise StoreError(fault, hint="give yourself the right to read it") from error
    except (RecursionError, ValueError) as error:
        raise StoreError(f"{path} is damaged: {error}", hint="resume the run, and it is written again") from error


class _Format(msgspec.Struct):
    format: int


class _Update(msgspec.Struct):
    """A line of the training curves."""

    trials: Annotated[int, msgspec.Meta(ge=0)]
    values: dict[str, float | None]


def add_training(folder: Path, trials: int, values: Mapping[str, float]) -> None:
    """Append the values of an update to an experiment's training curves, as one line of JSON. Raises ``OSError``.

    A line that a killed writer left torn is cut off first, so that every line can be read.

    Args:
        folder: the experiment's results.
        trials: closed trials so far; not less than in the line before.
        values: by name, such as ``train/loss``. Values that are not finite become null.
    """
    path = folder / FOLDER / TRAINING
    path.parent.mkdir(parents=True, exist_ok=True)
    plain: dict[str, float | None] = {name: float(value) for name, value in values.items()}
    with path.open("ab+") as file:
        size = file.seek(0, os.SEEK_END)
        start = file.seek(max(0, size - LONGEST_LINE))
        file.truncate(start + file.read().rfind(b"\n") + 1)
        file.write(msgspec.json.encode(_Update(trials, plain)) + b"\n")


def read_training(folder: Path, start: int = 0) -> tuple[list[tuple[int, dict[str, float]]], int]:
    """The training values in an experiment's results: trials and finite values of each update, and where it stopped.

    Lines that are no update are skipped; a last line without an end, which is being written, is left for later.
    ``start`` is where an earlier call stopped.
    """
    updates: list[tuple[int, dict[str, float]]] = []
    with contextlib.suppress(OSError), (folder / FOLDER / TRAINING).open("rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                break
            start += len(line)
            with contextlib.suppress(RecursionError, ValueError):
                update = msgspec.json.decode(line, type=_Update)
                known = {name: value for name, value in update.values.items() if value is not None}
                updates.append((update.trials, known))
    return updates, start
