"""What a live engine is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tunegym.tuning.envs.context_leaves import FindEncoding
from tunegym.tuning.model.job import JobHandle
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.ports import Reward
from tunegym.tuning.servers.hosting import Host
from tunegym.tuning.stores.live import LiveStore


@dataclass(frozen=True)
class LiveParts:
    """What a live engine is made of.

    Attributes:
        hosts: a server for each lane; not started yet.
        reward: of a step's metrics; None if the server's own reward counts.
        encodings: finds a class of encodings by its name; None for the built-in ones.
        end_leftovers: ends servers that a killed driver left running; how many there were.
    """

    experiment: Experiment
    hosts: Sequence[Host]
    store: LiveStore
    folder: Path
    seed: int
    reward: Reward | None = None
    encodings: FindEncoding | None = None
    end_leftovers: Callable[[Sequence[JobHandle]], int] = lambda _: 0
