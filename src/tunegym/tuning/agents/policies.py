"""A policy as a table: what an agent would choose in each context, readable without the agent."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tunegym.core.errors import StoreError
from tunegym.tuning.model.context import EnvParams
from tunegym.tuning.model.space import Choice as Candidates
from tunegym.tuning.model.space import Range
from tunegym.tuning.model.values import Action, Context, Scalar, exact_key

FOLDER = "policy"
FILE = "policy.json"
FORMAT = 1
MOST_CONTEXTS = 1000
MOST_PLACES = 33
"""In how many contexts a policy is asked, and at how many places of one range."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a policy chooses.

    Attributes:
        action: one value for every knob.
        chance: how likely the policy is to choose it when it explores; None if it can't be said.
        context: what it was asked for.
    """

    action: Action
    chance: float | None = None
    context: Context = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PolicyTable:
    """What an agent would choose, by context.

    Attributes:
        agent: its name.
        trials: how many closed trials it had learned from.
        choices: one for each context that it was asked for.
    """

    agent: str
    trials: int
    choices: tuple[Choice, ...]


def contexts_to_ask(params: EnvParams) -> list[dict[str, Scalar]]:
    """The contexts that a table has: all of them, ranges at evenly spread places, or as many draws as it may hold."""
    lists = {name: param.domain for name, param in params.params.items() if isinstance(param.domain, Candidates)}
    ranges = {name: param.domain for name, param in params.params.items() if isinstance(param.domain, Range)}
    count = 1
    for domain in lists.values():
        count *= domain.size
    places = MOST_PLACES
    if ranges:
        places = min(places, int((MOST_CONTEXTS / count) ** (1 / len(ranges))))
    if count > MOST_CONTEXTS or places < 3:
        drawn = (params.context(number) for number in range(1, 10 * MOST_CONTEXTS))
        distinct = {exact_key(context): context for context in itertools.islice(drawn, 10 * MOST_CONTEXTS)}
        return list(distinct.values())[:MOST_CONTEXTS]
    axes: dict[str, tuple[Scalar, ...]] = {}
    for name, param in params.params.items():
        domain = param.domain
        if isinstance(domain, Candidates):
            axes[name] = domain.values
        else:
            axes[name] = tuple(dict.fromkeys(domain.at_position(index / (places - 1)) for index in range(places)))
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def table_of(agent: str, trials: int, params: EnvParams, choose: Callable[[Context], Choice | None]) -> PolicyTable:
    """Ask a policy in every context; contexts that it has no answer for are left out."""
    asked = [(context, choose(context)) for context in contexts_to_ask(params)]
    choices = (Choice(dict(one.action), one.chance, context) for context, one in asked if one is not None)
    return PolicyTable(agent, trials, tuple(choices))


def save(folder: Path, table: PolicyTable) -> None:
    """Write the table into an experiment's results; whole or not at all. Raises ``OSError``."""
    document = {
        "format": FORMAT,
        "agent": table.agent,
        "trials": table.trials,
        "choices": [
            {"context": dict(one.context), "action": dict(one.action), "chance": one.chance} for one in table.choices
        ],
    }
    place = folder / FOLDER / FILE
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = place.with_suffix(".new")
    fresh.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    fresh.replace(place)


def load(folder: Path) -> PolicyTable | None:
    """The table in an experiment's results; None if there is none.

    Raises:
        StoreError: it can't be read.
    """
    place = folder / FOLDER / FILE
    try:
        document: Any = orjson.loads(place.read_bytes())
        if document["format"] != FORMAT:
            raise StoreError(f"{place} has format {document['format']!r}, and only {FORMAT} is known here")
        choices = tuple(Choice(one["action"], one["chance"], one["context"]) for one in document["choices"])
        return PolicyTable(document["agent"], document["trials"], choices)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{place} can't be read: {error.strerror}") from error
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise StoreError(f"{place} is damaged: {error}", hint="resume the run, and it is written again") from error
