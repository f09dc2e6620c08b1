"""What a saved policy chooses in a context."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tunegym.core.errors import ActionError, StoreError
from tunegym.tuning.agents import policies
from tunegym.tuning.model.space import Knob, Range, Space
from tunegym.tuning.model.values import Action, Context, Scalar, exact_key
from tunegym.tuning.reports.asking import domain, matches, pairs
from tunegym.tuning.reports.nearby import distance, domains_of
from tunegym.tuning.reports.results import ExperimentResults


@dataclass(frozen=True)
class Chosen:
    """What the policy of an experiment chooses.

    Attributes:
        action: one value for every knob, as the journal would have it.
        chance: as in ``policies.Choice``.
        context: where the policy was asked; of a range the nearest place to the one that was wanted.
    """

    action: Action
    chance: float | None
    context: Context


@dataclass(frozen=True)
class SavedPolicy:
    """A policy's table, checked against the journal that it belongs to: it has this experiment's knobs and contexts.

    Attributes:
        trials: how many trials it had learned from.
        choices: one for each context that it was asked for.
    """

    trials: int
    choices: tuple[Chosen, ...]

    def at(self, wanted: Context, domains: Mapping[str, Knob]) -> Chosen | None:
        """What it chooses in a whole context, of a range at the nearest place; None if it wasn't asked there."""
        ranges = {name: knob for name, knob in domains.items() if isinstance(knob, Range)}
        exact = {name: value for name, value in wanted.items() if name not in ranges}
        away = distance(ranges, wanted)
        there = (one for one in self.choices if matches(one.context, exact))
        return min(there, key=lambda one: away(one.context), default=None)

    def mostly(self, wanted: Context) -> tuple[Action, int, int] | None:
        """What it chooses most often where ``wanted`` holds, how often, and of how many; None if nowhere."""
        there = [one for one in self.choices if matches(one.context, wanted)]
        counts = Counter(exact_key(one.action) for one in there)
        if not counts:
            return None
        ((key, count),) = counts.most_common(1)
        return next(one.action for one in there if exact_key(one.action) == key), count, len(there)


def saved_policy(results: ExperimentResults) -> SavedPolicy | None:
    """The policy in an experiment's results; None if there is none.

    Raises:
        StoreError: it can't be read, or belongs to other knobs or env_params.
    """
    table = policies.load(results.folder)
    head = results.journal.head
    if table is None or head is None:
        return None
    knobs = Space({name: domain(spec) for name, spec in head["knobs"].items()})
    drawn = Space(domains_of(results))
    return SavedPolicy(table.trials, tuple(_checked(one, knobs, drawn, results) for one in table.choices))


def _checked(choice: policies.Choice, knobs: Space, drawn: Space, results: ExperimentResults) -> Chosen:
    try:
        context: dict[str, Scalar] = drawn.accept(choice.context)
        return Chosen(knobs.accept(choice.action), choice.chance, context)
    except ActionError as error:
        place = results.folder / policies.FOLDER / policies.FILE
        raise StoreError(
            f"{place} doesn't belong to this journal: it has {pairs(choice.action)} at {pairs(choice.context) or '{}'}",
            hint="resume the run, and it is written again",
        ) from error
