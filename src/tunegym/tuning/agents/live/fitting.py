"""A server's spaces as the algorithms take them: one level, counted from 0, with bounds; and which of them they take.

Nothing is lost: a nested observation becomes a flat ``Dict`` whose keys are joined with slashes, what is counted from
another number is shifted, and single numbers become arrays of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces

from tunegym.tuning.spaces import Leaf, leaves

TAKES: Mapping[str, tuple[type[spaces.Space[Any]], ...]] = {
    "ppo": (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary),
    "a2c": (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary),
    "dqn": (spaces.Discrete,),
    "sac": (spaces.Box,),
}
"""The action spaces of each algorithm."""

Batch: TypeAlias = np.ndarray | dict[str, np.ndarray]
"""Observations of all lanes, as the library has them."""


def unfit(agent: str, actions: spaces.Space[Any], observations: spaces.Space[Any]) -> str | None:
    """Why an algorithm can't take these spaces, and who can; None if it can."""
    if not isinstance(actions, TAKES[agent]):
        others = [name for name, kinds in TAKES.items() if isinstance(actions, kinds)] or ["random_search"]
        kinds = _listed([kind.__name__ for kind in TAKES[agent]], "or")
        takes = f"{_listed(others, 'and')} take{'s' if len(others) == 1 else ''} it"
        return f"{agent} needs a {kinds} action space, and the server's is {_short(actions)}: {takes}"
    if isinstance(actions, spaces.Box) and not actions.is_bounded():
        return (
            f"{agent} needs bounds to every number of a Box action space, and the server's is {_short(actions)}: "
            "random_search takes it"
        )
    if not leaves(observations):
        return f"{agent} needs something to observe, and the server's observation space is {_short(observations)}"
    return None


def _listed(names: Sequence[str], word: str) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"


def _short(space: spaces.Space[Any]) -> str:
    text = " ".join(repr(space).split())
    return text if len(text) <= 120 else f"{text[:117]}..."


class Actions:
    """The server's action space, and the one that an algorithm chooses from."""

    def __init__(self, theirs: spaces.Space[Any], seed: int) -> None:
        self._theirs = theirs
        self._offset: Any = 0
        self._dtype = np.dtype(theirs.dtype)
        self._shape = tuple(theirs.shape or ())
        if isinstance(theirs, spaces.Discrete):
            self.space: spaces.Space[Any] = spaces.Discrete(int(theirs.n), seed=seed)
            self._offset = int(theirs.start)
        elif isinstance(theirs, spaces.MultiDiscrete):
            self.space = spaces.MultiDiscrete(theirs.nvec.reshape(-1), seed=seed)
            self._offset = theirs.start.reshape(-1)
        elif isinstance(theirs, spaces.MultiBinary):
            self.space = spaces.MultiBinary(int(np.prod(self._shape)), seed=seed)
        else:
            assert isinstance(theirs, spaces.Box)
            low, high = (bound.reshape(self._shape or (1,)).astype(np.float32) for bound in (theirs.low, theirs.high))
            self.space = spaces.Box(low, high, dtype=np.float32, seed=seed)
        self._shifted = bool(np.any(self._offset))

    def theirs(self, chosen: np.ndarray) -> list[Any]:
        """What the lanes' servers are given; ``chosen`` is a row for each lane."""
        theirs = self._theirs
        if isinstance(theirs, spaces.Discrete):
            return list(chosen + self._offset if self._shifted else chosen)
        chosen = (chosen + self._offset if self._shifted else chosen).reshape(-1, *self._shape)
        if isinstance(theirs, spaces.Box):
            if self._dtype.kind in "iu":
                chosen = np.rint(chosen)
            # Rounding must not lead out of bounds.
            return list(np.clip(chosen.astype(self._dtype), theirs.low, theirs.high))
        return list(chosen.astype(self._dtype))

    def ours(self, taken: Sequence[Any]) -> np.ndarray:
        """The way back: a row for each of the actions."""
        rows = np.stack([np.asarray(one) for one in taken]).reshape(len(taken), *(self.space.shape or ()))
        return (rows - self._offset).astype(self.space.dtype)


class Observations:
    """The server's observation space, and the one that a policy sees."""

    def __init__(self, theirs: spaces.Space[Any]) -> None:
        found = leaves(theirs)
        self._parts = [_Part(theirs, leaf, key) for leaf, key in zip(found, _keys(found), strict=True)]
        self._single = self._parts[0] if not self._parts[0].leaf.path else None
        if self._single is not None:
            self.space: spaces.Space[Any] = self._single.space
            self._plain = self._single.offset is None and isinstance(theirs, spaces.Box) and theirs.shape != ()
        else:
            self.space = spaces.Dict({part.key: part.space for part in self._parts})
            self._plain = False

    def ours(self, observations: Sequence[Any]) -> Batch:
        """A row for each of the observations; nobody else's memory."""
        if self._single is not None:
            rows = self._single.rows(len(observations))
            if self._plain:
                for at, one in enumerate(observations):
                    rows[at] = one
            else:
                self._single.fill(rows, observations)
            return rows
        batch = {part.key: part.rows(len(observations)) for part in self._parts}
        for part in self._parts:
            part.fill(batch[part.key], observations)
        return batch

    def one(self, observation: Any) -> Any:
        """A single observation, as a policy sees it."""
        batch = self.ours([observation])
        return {key: rows[0] for key, rows in batch.items()} if isinstance(batch, dict) else batch[0]


def _keys(found: Sequence[Leaf]) -> list[str]:
    """A name for each leaf that torch takes for a part of a network: no dots, and none that such a thing has itself."""
    from torch.nn import ModuleDict

    taken = ModuleDict()
    keys: list[str] = []
    for leaf in found:
        key = "/".join(str(part) for part in leaf.path).replace(".", "/")
        while not key or key in keys or hasattr(taken, key):
            key += "_"
        keys.append(key)
    return keys


class _Part:
    """One array of an observation."""

    def __init__(self, whole: spaces.Space[Any], leaf: Leaf, key: str) -> None:
        space: Any = whole
        for place in leaf.path:
            space = space.spaces[place]
        self.leaf = leaf
        self.key = key
        self.offset: Any = None
        if isinstance(space, spaces.Discrete):
            self.offset = int(space.start) or None
            space = spaces.Discrete(int(space.n))
        elif isinstance(space, spaces.MultiDiscrete):
            self.offset = space.start.reshape(-1) if space.start.any() else None
            space = spaces.MultiDiscrete(space.nvec.reshape(-1))
        elif isinstance(space, spaces.Box) and space.shape == ():
            space = spaces.Box(space.low.reshape(1), space.high.reshape(1), dtype=space.dtype.type)
        self.space: spaces.Space[Any] = space
        self._shape = tuple(space.shape or ())
        self._dtype = np.dtype(space.dtype)

    def rows(self, count: int) -> np.ndarray:
        return np.empty((count, *self._shape), dtype=self._dtype)

    def fill(self, rows: np.ndarray, observations: Sequence[Any]) -> None:
        for at, observation in enumerate(observations):
            found = np.reshape(self.leaf.of(observation), self._shape)
            rows[at] = found if self.offset is None else found - self.offset
