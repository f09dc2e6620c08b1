"""What ``agent_config`` may hold for every agent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tunegym.tuning.model.scenario import Penalties


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """Common to all agents; an agent with more keys derives from it.

    Attributes:
        random_seed: seeds the agent's own draws; by default the scenario's seed.
        start_action: ``first`` starts with every knob's first value, ``random`` with a drawn one.
        rewards: the rewards of trials without a measurement.
    """

    random_seed: int | None = None
    start_action: Literal["random", "first"] = "random"
    rewards: Penalties = field(default_factory=Penalties)
