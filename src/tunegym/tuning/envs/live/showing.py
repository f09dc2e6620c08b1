"""What an agent sees of a live system: the server's own observation, and of the context what is to be shown."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from tunegym.tuning.envs.context_leaves import ContextLeaves, FindEncoding
from tunegym.tuning.envs.structure import leaf_space
from tunegym.tuning.model.context import EnvParams
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.values import Context


class Showing:
    """Observations pass unchanged, unless an env_param has an encoding: it is shown beside them then.

    Attributes:
        space: of what is shown.
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
        """An element of ``space``; ``context`` is that of the step which comes next."""
        if self._leaves is None:
            return observation
        leaves = self._leaves.encode(context)
        own = {name: leaf.copy() if isinstance(leaf, np.ndarray) else leaf for name, leaf in leaves.items()}
        return {"observation": observation, "context": own}
