"""What an agent sees of steps: the observation of the moment, and recorded steps read back as transitions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gymnasium import spaces
from numpy import ndarray

from tunegym.tuning.envs.structure import ContextLeaves, FindEncoding, leaf_space
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.space import EnvParams
from tunegym.tuning.model.values import Context
from tunegym.tuning.ports import Transition
from tunegym.tuning.stores.columns import SIDES, Elements
from tunegym.tuning.stores.reader import JOURNAL, Lost, steps


class Display:
    """What an agent sees: the server's own observation, and beside it the env_params that have an encoding.

    Attributes:
        space: of shown observations.
        shows: whether that is more than the server's own observation.
    """

    def __init__(self, experiment: Experiment, observations: spaces.Space[Any], encodings: FindEncoding | None) -> None:
        encoded = {name: one for name, one in experiment.env_params.params.items() if one.encoding is not None}
        self._leaves = ContextLeaves(EnvParams(encoded, experiment.env_params.seed), encodings) if encoded else None
        self.space = observations
        self.shows = self._leaves is not None
        if self._leaves is not None:
            context: dict[str, spaces.Space[Any]] = {
                name: leaf_space(leaf) for name, leaf in self._leaves.descriptors().items()
            }
            self.space = spaces.Dict({"observation": observations, "context": spaces.Dict(context)})

    def shown(self, observation: Any, context: Context) -> Any:
        """An element of ``space``; ``context`` is that of the next step."""
        if self._leaves is None:
            return observation
        encoded = self._leaves.encode(context)
        own = {name: leaf.copy() if isinstance(leaf, ndarray) else leaf for name, leaf in encoded.items()}
        return {"observation": observation, "context": own}


def transitions(
    folder: Path,
    actions: spaces.Space[Any],
    observations: spaces.Space[Any],
    env_params: EnvParams,
    display: Display,
    after: int,
) -> Iterator[Transition]:
    """Recorded steps with numbers above ``after``, each with the observation before it.

    The first step of an episode has none on record, nor has one that follows a lost step. A failed step ends its
    episode; a cancelled one doesn't, and is left out. Memory doesn't grow with the steps.
    """
    acted, seen = Elements(actions), Elements(observations)
    begun: dict[int, tuple[int, Any]] = {}  # by open episode: its last step's number and observation
    for group in steps(folder / JOURNAL):
        if isinstance(group, Lost) or group.numbers[-1] <= after:
            begun.clear()
            continue
        count = len(group.numbers)
        chosen = acted.read(group.actions, folder / SIDES["action"], group.action_row, count)
        shown = seen.read(group.observations, folder / SIDES["observation"], group.observation_row, count)
        contexts = group.context_of()
        for at, (number, episode) in enumerate(zip(group.numbers, group.episodes, strict=True)):
            previous = begun.pop(episode, None)
            context = following = contexts[at]
            terminated, truncated = at in group.terminated, at in group.truncated
            if not terminated and not truncated:
                if at in group.unmeasured:
                    continue
                begun[episode] = number, shown[at]
            if previous is None or number <= after:
                continue
            last, before = previous
            if episode in begun:  # lanes take turns, so this lane's next step is as far away as its last one was
                following = env_params.next_context(context, 2 * number - last)
            yield Transition(
                display.shown(before, context),
                chosen[at],
                group.rewards[at],
                display.shown(shown[at], following),
                terminated,
                truncated,
            )
