"""Steps on record as an agent learns from them: with what was seen before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from tunegym.tuning.envs.live.showing import Showing
from tunegym.tuning.model.context import EnvParams
from tunegym.tuning.ports import Transition
from tunegym.tuning.spaces import Leaf, leaves
from tunegym.tuning.stores.columns import leaf_values, row_type
from tunegym.tuning.stores.live import SIDES
from tunegym.tuning.stores.reader import JOURNAL, Lost, Steps, steps


@dataclass(frozen=True)
class Recalling:
    """How steps are read.

    Attributes:
        actions: the server's space.
        observations: the same.
        env_params: the experiment's.
        showing: what an agent is shown.
    """

    actions: spaces.Space[Any]
    observations: spaces.Space[Any]
    env_params: EnvParams
    showing: Showing

    def transitions(self, folder: Path, last: int) -> Iterable[Transition]:
        """The newest steps of a journal in which all are recorded, at most ``last``; see ``LiveEnv``."""
        journal = folder / JOURNAL
        skipped = max(0, sum(_count(journal)) - last)
        return islice(self._all(folder, journal), skipped, None)

    def _all(self, folder: Path, journal: Path) -> Iterator[Transition]:
        acted, seen = _Elements(folder, "action", self.actions), _Elements(folder, "observation", self.observations)
        before: dict[int, tuple[int, Any]] = {}
        for group in steps(journal):
            if isinstance(group, Lost):
                before.clear()
                continue
            chosen = acted.of(group.actions, group.action_row, len(group.numbers))
            found = seen.of(group.observations, group.observation_row, len(group.numbers))
            yield from self._of(group, chosen, found, before)

    def _of(
        self, group: Steps, actions: list[Any], observations: list[Any], before: dict[int, tuple[int, Any]]
    ) -> Iterable[Transition]:
        """The transitions of a group; ``before`` has the number and the observation of each episode's last step."""
        terminated, truncated = set(group.terminated), set(group.truncated)
        contexts, shown = group.context_of(), self.showing.shown
        for at, (number, episode) in enumerate(zip(group.numbers, group.episodes, strict=True)):
            previous = before.pop(episode, None)
            if at in group.unmeasured:
                continue  # what follows it is a new beginning, which isn't on record
            over = at in terminated or at in truncated
            if not over:
                before[episode] = number, observations[at]
            if previous is not None:
                last, seen = previous
                context = contexts[at]
                # Lanes take turns, so the next step of this one is as far away as the last one was.
                following = context if over else self.env_params.next_context(context, 2 * number - last)
                yield Transition(
                    shown(seen, context),
                    actions[at],
                    group.rewards[at],
                    shown(observations[at], following),
                    at in terminated,
                    at in truncated,
                )


def _count(journal: Path) -> Iterator[int]:
    """How many transitions there are in each group: counted first, so that none must be kept to find the newest."""
    begun: set[int] = set()
    for group in steps(journal):
        if isinstance(group, Lost):
            begun.clear()
            continue
        ends = {*group.terminated, *group.truncated}
        found = 0
        for at, episode in enumerate(group.episodes):
            found += at not in group.unmeasured and episode in begun
            if at in group.unmeasured or at in ends:
                begun.discard(episode)
            else:
                begun.add(episode)
        yield found


class _Elements:
    """The elements of one space, from records or from a file of their own."""

    def __init__(self, folder: Path, name: str, space: spaces.Space[Any]) -> None:
        self._space = space
        self._leaves = leaves(space)
        self._path = folder / SIDES[name]
        self._type = row_type(space)

    def of(self, inline: list[Any] | None, row: int, count: int) -> list[Any]:
        arrays = self._from_record(inline) if inline is not None else self._from_file(row, count)
        return [_element(self._space, self._leaves, [array[at] for array in arrays]) for at in range(count)]

    def _from_record(self, inline: list[Any]) -> list[np.ndarray]:
        return [leaf_values(leaf, values) for leaf, values in zip(self._leaves, inline, strict=True)]

    def _from_file(self, row: int, count: int) -> list[np.ndarray]:
        rows = np.fromfile(self._path, dtype=self._type, count=count, offset=row * self._type.itemsize)
        return [rows[name] for name in self._type.names or ()]


def _element(space: spaces.Space[Any], parts: list[Leaf], values: list[Any]) -> Any:
    """An element of ``space`` from the values of its leaves, in their order."""
    by_path = {leaf.path: value for leaf, value in zip(parts, values, strict=True)}

    def built(one: spaces.Space[Any], path: tuple[str | int, ...]) -> Any:
        if isinstance(one, spaces.Dict):
            return {key: built(part, (*path, str(key))) for key, part in one.spaces.items()}
        if isinstance(one, spaces.Tuple):
            return tuple(built(part, (*path, place)) for place, part in enumerate(one.spaces))
        return by_path[path]

    return built(space, ())
