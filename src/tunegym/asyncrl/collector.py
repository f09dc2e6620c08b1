"""``RolloutCollector``: an environment, a copy of the policy, and rollouts into the data plane.

It runs in a thread, as a Ray actor (``ray.remote(RolloutCollector)``), or for an experiment of a scenario in its own
process (``main``), where its environment is a lane that the driver steps. It imports no torch.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import msgspec
import numpy as np
from gymnasium.spaces.utils import flatten

from tunegym import dataplane
from tunegym.asyncrl import weights
from tunegym.asyncrl.admission import Gate, RemoteGate
from tunegym.asyncrl.policy import ActorCritic
from tunegym.core.errors import BudgetError
from tunegym.core.processes import Child, start_python
from tunegym.core.wire import Connection
from tunegym.dataplane import BatchMeta, DataPlaneClient
from tunegym.dataplane.client import RolloutToken
from tunegym.dataplane.errors import EpochError, LostError, SampleError, UnknownPartitionError
from tunegym.dataplane.model import WEIGHT_VERSION
from tunegym.tuning.envs.actions import server_action

FIELDS = ("observation", "action", "log_prob", "reward", "number")
"""Of a rollout: observations, one more than steps; choices; their log-probabilities; rewards; numbers of the steps."""
REFIT_PAUSE_S = 0.05
MOST = 1 << 40
"""Rollouts with one version of the weights."""


def flat(space: gymnasium.Space[Any], observation: Any) -> np.ndarray:
    """An observation as one vector."""
    return np.asarray(flatten(space, observation), dtype=np.float32).reshape(-1)


class FlatEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Any environment for a collector: its observations are flat, and it takes the policy's choices."""

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset(**options)
        return flat(self.env.observation_space, observation), info

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step."""
        observation, *rest = self.env.step(server_action(self.env.action_space, action))
        return flat(self.env.observation_space, observation), *rest  # type: ignore[return-value]


class RolloutCollector:
    """Makes rollouts: pieces of one episode, of up to ``n_steps`` steps, each under one version of the weights.

    ``plane`` is a client, or the URL of a plane that is there. ``env`` has ``reset`` and ``step`` as a ``FlatEnv``, or
    makes such an environment. ``info`` of a reset may have ``episode``, ``context`` and ``return`` (so far), that of a
    step its ``number``; ``BudgetError`` ends it. ``seed`` is for the choices.
    """

    def __init__(
        self, plane: DataPlaneClient | str, env: Any, policy: ActorCritic, *, n_steps: int = 128, seed: int = 0
    ) -> None:
        self._plane = dataplane.attach(plane) if isinstance(plane, str) else plane
        self._env: Any = env() if callable(env) else env
        self._policy = policy
        self._n_steps = n_steps
        self._rng = np.random.default_rng(seed)
        self._weights = np.zeros(0, dtype=np.float32)
        self._version = -1
        self._token: RolloutToken | None = None
        self._seen: Any = None  # the last observation; None between episodes
        self._episode: dict[str, Any] = {}
        self.over = False  # whether the environment has no more steps
        self.lost: list[str] = []  # samples of it that the plane has lost

    @property
    def weight_version(self) -> int:
        """The version of its weights; -1 before the first."""
        return self._version

    def policy_refit(self, weights: np.ndarray, version: int) -> None:
        """Act with other weights from the next rollout on."""
        self._weights = np.asarray(weights)
        self.set_weight_version(version)

    def set_weight_version(self, version: int) -> None:
        """The only writer of the version that rollouts are tagged with."""
        self._version = int(version)

    def rollout_to_plane(self, partition_id: str, sample_ids: Sequence[str]) -> BatchMeta | None:
        """Make a rollout for each id and put them; None if the environment had no step left for any.

        Raises ``EpochError`` if the weights vanished in a rewind meanwhile. ``lost`` names earlier ones that are lost.
        """
        producer = self._plane.producer(partition_id)
        token = self._token or producer.start(len(sample_ids))
        made = [one for one in (self._rollout() for _ in sample_ids) if one is not None]
        if not made:
            return None
        columns = {name: [row[name] for row, _ in made] for name in FIELDS}
        tags = [one for _, one in made]
        put = partial(producer.put_samples, token, list(sample_ids)[: len(made)], columns, tags, lengths="reward")
        while True:
            try:
                return put()
            except LostError as error:
                self.lost += error.sample_ids

    def _rollout(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        steps: list[tuple[np.ndarray, float, float, int]] = []
        observations: list[np.ndarray] = []
        terminated = truncated = False
        try:
            if self._seen is None:
                self._seen, info = self._env.reset()
                self._episode = {"return": 0.0, "episode": 0, "context": {}, **info}
            observations.append(self._seen)
            while len(steps) < self._n_steps and not (terminated or truncated):
                chosen, log_prob = self._policy.act(self._weights, observations[-1], self._rng)
                seen, reward, terminated, truncated, info = self._env.step(chosen)
                observations.append(seen)
                steps.append((chosen, log_prob, float(reward), info.get("number", 0)))
                self._episode["return"] += float(reward)
        except BudgetError:
            self.over = True
            if not steps:
                return None
        self._seen = None if terminated or truncated or self.over else observations[-1]
        actions, log_probs, rewards, numbers = zip(*steps, strict=True)
        floats = (np.array(one, dtype=np.float32) for one in (log_probs, rewards))
        columns = np.stack(observations), np.stack(actions), *floats, np.array(numbers, dtype=np.int64)
        tags = {WEIGHT_VERSION: self._version, "length": len(steps), "terminated": bool(terminated)}
        tags |= {"episode": int(self._episode["episode"]), "return": float(self._episode["return"])}
        tags |= {"context": msgspec.json.encode(self._episode["context"]).decode(), "produced_at": time.time()}
        return dict(zip(FIELDS, columns, strict=True)), tags

    def run(self, partition_id: str, gate: Gate | RemoteGate | LaneLink, name: str) -> None:
        """Make rollouts for as long as the gate admits them: no more than the trainer can use."""
        for number in itertools.count(1):
            sample = [f"{name}-{number}"]
            while not (asked := gate.start(name, sample, self.weight_version))[0]:
                version = asked[1]
                if version is None:
                    return
                if version != self.weight_version:
                    self._token = self._plane.producer(partition_id).start(MOST)  # of the weights' own epoch
                    try:
                        self.policy_refit(weights.fetch(self._plane, version), version)
                    except (SampleError, UnknownPartitionError):  # there is a newer version already
                        time.sleep(REFIT_PAUSE_S)
            try:
                meta = self.rollout_to_plane(partition_id, sample)
            except EpochError:
                meta = None
                self.set_weight_version(-1)
            if meta is None:
                gate.abandon(name, sample)
            else:
                gate.ready(meta.sample_ids)
            if self.lost:
                gate.lose(self.lost)
                self.lost = []
            if self.over:
                return


# a collector of an experiment, in its own process -----------------------------------------------------


class LaneLink:
    """A lane of the driver's, and its ``Gate``, at the collector's end: the driver answers each call by its name."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getattr__(self, call: str) -> Callable[..., Any]:
        return partial(self._ask, call)

    def _ask(self, call: str, *arguments: Any) -> Any:
        self._connection.send([call, *arguments])
        answer = self._connection.receive()
        if isinstance(answer, Mapping):
            raise BudgetError(answer["over"])
        return answer


def start_child(target: str, output: int) -> tuple[Child, Connection]:
    """Start a process that is told the descriptor of a socket, and our side of it. ``output`` takes what it prints."""
    ours, theirs = socket.socketpair()
    with theirs:
        end = theirs.fileno()
        child = start_python(target, str(end), marker="", fds=[end], stdout=output, stderr=output)
    return child, Connection(ours, watched=child.pidfd)


def main(descriptor: str) -> None:
    """Collect for the driver at the other end of a socket until there is nothing more to do."""
    connection = Connection(socket.socket(fileno=int(descriptor)))
    setup = connection.receive()
    link = LaneLink(connection)
    with dataplane.attach(**setup["plane"]) as plane:
        policy = ActorCritic(**setup["policy"])
        collector = RolloutCollector(plane, link, policy, n_steps=setup["n_steps"], seed=setup["seed"])
        collector.run(setup["partition"], link, setup["name"])
