"""What a scenario says of a live experiment: which server answers, where it lives, and what is written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

INJECTED = "<injected>"
"""In place of a reference: the server is an object that somebody gave in Python."""

IN_PROCESS = "in_process"
PROCESS = "process"
TCP = "tcp://"


@dataclass(frozen=True, slots=True)
class Recording:
    """Which steps are written down: ``all`` of them, ``every`` n-th, or those that end ``episodes``.

    A step without a measurement is always written down.
    """

    kind: Literal["all", "every", "episodes"] = "all"
    every: int = 1

    @property
    def spelled(self) -> str:
        """As it is written in a scenario."""
        return f"every:{self.every}" if self.kind == "every" else self.kind


@dataclass(frozen=True)
class LiveSpec:
    """A live experiment's server.

    Attributes:
        env_class: the reference of a ``GymServer`` class; ``INJECTED`` if an object is given in Python, and empty where
            ``server`` is elsewhere and the scenario leaves the class to it.
        arguments: what its constructor is given, by name.
        server: ``in_process``, ``process``, or ``tcp://HOST:PORT`` of a ``tunegym serve``.
        step_timeout_s: how long an answer may take; None for ever, which is all there is in process.
        restarts: how often in a row a server may be started again without a single measured step in between.
        recording: which steps are written down.
        token_file: holds the token that ``tunegym serve`` wants; None for the environment variable.
    """

    env_class: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    server: str = IN_PROCESS
    step_timeout_s: float | None = None
    restarts: int = 5
    recording: Recording = field(default_factory=Recording)
    token_file: str | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of a server elsewhere; None for one that is started here."""
        if not self.server.startswith(TCP):
            return None
        host, _, port = self.server.removeprefix(TCP).rpartition(":")
        return host.strip("[]"), int(port)
