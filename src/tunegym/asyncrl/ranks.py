"""One version's update on data-parallel ranks: torch processes that sum their gradients (gloo), or this process alone.

Each rank reads its share of the rollouts from the plane itself. All ranks hold the same weights. The driver keeps a
copy of the state after each version: if a rank dies, all are started again from it, and the update is done again.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from tunegym import dataplane
from tunegym.asyncrl.collector import start_child
from tunegym.asyncrl.policy import ActorCritic
from tunegym.core.processes import Child
from tunegym.core.wire import Connection, ConnectionClosedError
from tunegym.dataplane import BatchMeta
from tunegym.tuning.agents.base import TrainingError
from tunegym.tuning.agents.live_learner import training

logger = logging.getLogger(__name__)

STDERR, LOOK_S = 2, 0.5
ATTEMPTS = 5
"""How often an update is tried on new ranks before it fails."""


class Ranks:
    """``dp_world`` ranks, each in its own process; one is in this process. ``plane`` has the arguments of ``attach``.

    ``state`` is that of ``Update`` after the last version: set it before the first.
    """

    def __init__(self, policy: ActorCritic, config: Any, seed: int, plane: Mapping[str, Any]) -> None:
        self._world: int = config.dp_world
        numbers = {name: one for name, one in vars(config).items() if isinstance(one, int | float)}
        self._setup = {"policy": asdict(policy), "config": numbers, "seed": seed, "plane": dict(plane)}
        self._ranks: list[tuple[Child, Connection]] = []
        self._own: Rank | None = None
        self.state: dict[str, Any] = {}
        self.restarts = 0

    def run(
        self,
        batch: BatchMeta,
        rewards: Sequence[Any] | None,
        version: int,
        rate: float,
        check: Callable[[], object] = lambda: None,
    ) -> dict[str, float]:
        """Make ``version`` from a batch; ``rewards`` replaces those of the rollouts.

        After the death of a rank ``check`` raises if the batch can't be read any more.
        """
        ends = list(accumulate(batch.sequence_lengths or ()))
        places = {one: at for at, one in enumerate(batch.sample_ids)}
        shards, _ = dataplane.shard_meta_for_dp(batch, self._world)
        orders = []
        for meta in (shard.meta for shard in shards):
            at = [places[one] for one in meta.sample_ids]
            own = {"ids": meta.sample_ids, "lengths": meta.sequence_lengths, "terminated": meta.tag("terminated")}
            own |= {"offsets": [ends[one - 1] if one else 0 for one in at], "total": ends[-1]}
            own |= {"rewards": None if rewards is None else [rewards[one] for one in at]}
            orders.append({"partition": batch.partition_id, **own, "version": version, "rate": rate})
        for _ in range(ATTEMPTS):
            try:
                answers = self._answers(orders)
            except ConnectionClosedError:
                self.restarts += 1
                logger.warning("a rank died: all %d are started again, and the update is repeated", self._world)
                self.close()
                check()
                continue
            if failed := next((one["failed"] for one in answers if "failed" in one), None):
                raise TrainingError(failed)
            self.state = answers[0]["state"]
            return answers[0]["values"]
        raise TrainingError(f"the ranks died {ATTEMPTS} times in one update; what they said is above")

    def _answers(self, orders: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        setup = {**self._setup, "state": self.state}
        if self._world == 1:
            self._own = self._own or Rank(setup)
            return [self._own.answer(orders[0])]
        if not self._ranks:
            self._place = tempfile.TemporaryDirectory(prefix="tunegym-ranks-")
            self._ranks = [start_child("tunegym.asyncrl.ranks:main", STDERR) for _ in range(self._world)]
            for rank, (_, connection) in enumerate(self._ranks):
                connection.send(
                    {**setup, "meeting": f"file://{self._place.name}/store", "rank": rank, "world_size": self._world}
                )
        for (_, connection), order in zip(self._ranks, orders, strict=True):
            connection.send(order)
        return [self._receive(connection) for _, connection in self._ranks]

    def _receive(self, connection: Connection) -> Any:
        """A rank's answer. One that waits for a dead rank may never have one."""
        while True:
            try:
                return connection.receive(time.monotonic() + LOOK_S)
            except TimeoutError:
                if any(child.has_ended() for child, _ in self._ranks):
                    raise ConnectionClosedError("a rank died") from None

    def close(self) -> None:
        """End the ranks."""
        for child, connection in self._ranks:
            connection.close()
            child.end(0.0)
        self._ranks.clear()
        if self._own is not None:
            self._own.plane.close()
            self._own = None


class Rank:
    """One rank."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        from tunegym.asyncrl.async_ppo import Update, read_batch  # which imports this module

        self._first, self._read = not setup.get("rank", 0), read_batch
        policy, config = ActorCritic(**setup["policy"]), SimpleNamespace(**setup["config"])
        self._update = Update(policy, config, setup["seed"], dist.all_reduce if "rank" in setup else lambda _: None)
        self._update.restore(setup["state"])
        self.plane = dataplane.attach(**setup["plane"])

    def answer(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Do an update; the first rank's answer has the state after it."""
        tags = tuple({"terminated": one} for one in order["terminated"])
        meta = BatchMeta(order["partition"], order["ids"], (), sequence_lengths=order["lengths"], tags=tags)
        batch = self._read(self.plane, meta, order["offsets"], order["rewards"])
        try:
            with training():
                values = self._update.run(batch, order["total"], order["version"], order["rate"])
        except TrainingError as error:
            return {"failed": str(error)}
        return {"values": values, "state": self._update.state() if self._first else None}


def main(descriptor: str) -> None:
    """A rank in its own process: does updates until the driver hangs up."""
    connection = Connection(socket.socket(fileno=int(descriptor)))
    setup = connection.receive()
    torch.set_num_threads(1)
    world = {name: setup[name] for name in ("rank", "world_size")}
    dist.init_process_group("gloo", init_method=setup["meeting"], **world)
    rank = Rank(setup)
    with contextlib.suppress(ConnectionClosedError):
        answer: dict[str, Any] = {}
        while "failed" not in answer:  # then it ends: the others may wait for its gradients
            answer = rank.answer(connection.receive())
            connection.send(answer)
