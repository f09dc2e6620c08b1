"""RLlib's env runners over lanes of an experiment, in this process or in Ray actors.

The driver owns the engine, with its one counter and one journal, and steps it. An env runner is shown what lanes see,
and answers with decisions. So RLlib resets nothing, and a run at any number of env runners is the same to the record.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import ray
import torch
import tree
from gymnasium import spaces
from ray.exceptions import RayActorError
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tunegym.tuning.agents.base import TrainingError
from tunegym.tuning.agents.live_learner import Draws
from tunegym.tuning.agents.trial_learner import Decision
from tunegym.tuning.runners.ray import Cluster

for _noisy in ("ray.rllib", "ray._common.deprecation", "ray._private.authentication"):
    logging.getLogger(_noisy).setLevel(logging.ERROR)  # their warnings are not for users of an agent


class LaneRunner:
    """Decides with RLlib's module: draws from its policy, or takes the action of the highest value."""

    def __init__(self, config: Any, observations: spaces.Space[Any], actions: spaces.Space[Any], draws: Draws) -> None:
        self._draws = draws
        seen = {DEFAULT_MODULE_ID: (observations, actions)}
        spec = config.get_multi_rl_module_spec(spaces=seen, inference_only=True)
        with draws.stream("network"):
            self.module = spec.build()[DEFAULT_MODULE_ID]

    def sample(self, number: int, seen: np.ndarray) -> list[Decision]:
        """A decision for each row of ``seen``; the first is for step ``number``."""
        with self._draws.one_thread(), torch.no_grad(), self._draws.torch_stream("act", number):
            told = self.module.forward_inference({Columns.OBS: torch.as_tensor(seen)})
            chosen, log_probs = told.get(Columns.ACTIONS), torch.zeros(len(seen))
            if chosen is None:
                policy = self.module.get_inference_action_dist_cls().from_logits(told[Columns.ACTION_DIST_INPUTS])
                chosen = policy.sample()
                log_probs = policy.logp(chosen)
        rows = (tree.map_structure(lambda part, at=at: part[at].numpy(), chosen) for at in range(len(seen)))
        return [Decision(row, log_prob=float(log_prob)) for row, log_prob in zip(rows, log_probs, strict=True)]

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over the learner's weights."""
        self.module.set_state(state)


class EnvRunners:
    """``count`` env runners, which share out the steps of ``lanes``; 0 is one in this process.

    ``arguments`` are those of ``LaneRunner``. Ray is used where this process uses it already (such as by the Ray
    runner), and otherwise started for as long as this is open, on this machine only.
    """

    def __init__(self, count: int, lanes: int, *arguments: Any) -> None:
        if count > lanes:
            raise TrainingError(
                f"num_env_runners = {count}, and there are lanes for {lanes}: each needs at least one; "
                f"write num_env_runners = {lanes} at most, or slots = {count} under [system]"
            )
        self._cluster = Cluster(None)
        self._actors: list[Any] = []
        if count == 0:
            self._local = LaneRunner(*arguments)
            return
        self._cluster.connect()
        # Beside the driver, and without a CPU that a trial would have to wait for.
        here: Any = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        remote = ray.remote(num_cpus=0, scheduling_strategy=here)(LaneRunner)
        self._actors += [remote.remote(*arguments) for _ in range(count)]

    def decide(self, number: int, seen: np.ndarray) -> list[Decision]:
        """A decision for each row of ``seen``, side by side; the first is for step ``number``."""
        if not self._actors:
            return self._local.sample(number, seen)
        count = len(self._actors)
        places = range(min(count, len(seen)))
        asked = [self._actors[(number + at) % count].sample.remote(number + at, seen[at::count]) for at in places]
        decisions: list[Any] = [None] * len(seen)
        for at, answer in zip(places, self._answers(asked), strict=True):
            decisions[at::count] = answer
        return decisions

    def set_state(self, state: dict[str, Any]) -> None:
        """Give the learner's weights to all."""
        if self._actors:
            shared = ray.put(state)
            self._answers([actor.set_state.remote(shared) for actor in self._actors])
        else:
            self._local.set_state(state)

    def close(self) -> None:
        """End the actors, and Ray if it was started here. Calling it twice is fine."""
        self._actors.clear()  # an actor ends with its last handle
        self._cluster.close()

    @staticmethod
    def _answers(asked: list[Any]) -> list[Any]:
        try:
            return ray.get(asked)
        except RayActorError as error:
            raise TrainingError(f"an env runner was lost: {' '.join(str(error).split())[:200]}") from error
