"""RLlib's env runners over lanes of an experiment, in this process or in Ray actors.

The driver owns the engine, with its one counter and one journal, and steps it. An env runner decides for its lanes and
collects their episodes: it is told how the last steps went, shown what comes next, and answers with actions. So RLlib
resets nothing, and a run at any number of env runners is the same to the record.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from gymnasium import spaces
from ray.exceptions import RayActorError
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tunegym.tuning.agents.base import TrainingError
from tunegym.tuning.agents.training import Draws

for _noisy in ("ray.rllib", "ray._common.deprecation", "ray._private.authentication"):
    logging.getLogger(_noisy).setLevel(logging.ERROR)  # their warnings are not for users of an agent
LOOPBACK = "127.0.0.2"
"""Ray replaces 127.0.0.1 by the host's own address; this one it leaves alone."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a lane sees before step ``number``; ``forced`` is an action chosen elsewhere.

    ``epsilon`` is the probability of a random action, for algorithms that don't draw from their policy.
    """

    lane: int
    number: int
    seen: np.ndarray
    forced: Any = None
    epsilon: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """How a lane's step went; ``index`` says which step's reward it is, where rewards are known later only."""

    lane: int
    after: np.ndarray
    reward: float
    terminated: bool
    truncated: bool
    index: int = -1


class LaneRunner(EnvRunner):
    """Decides for some lanes with RLlib's module, and collects their episodes.

    Lanes don't wait for each other: what is decided and not yet known to have ended stays for a later ``sample``.
    """

    def __init__(
        self, config: Any, observations: spaces.Space[Any], actions: spaces.Space[Any], draws: Draws, index: int = 0
    ) -> None:
        super().__init__(config=config, worker_index=index)
        self._spaces = observations, actions
        self._draws = draws
        spec = config.get_multi_rl_module_spec(spaces={DEFAULT_MODULE_ID: self._spaces}, inference_only=True)
        with draws.stream("network"):
            self.module = spec.build()[DEFAULT_MODULE_ID]
        self._pending: dict[int, tuple[Shown, Any, dict[str, Any]]] = {}
        self._ongoing: dict[int, SingleAgentEpisode] = {}
        self._done: list[SingleAgentEpisode] = []

    def advance(self, results: Sequence[Result], shown: Sequence[Shown]) -> list[Any]:
        """Take in ``results``, then decide for the lanes ``shown``: an action each."""
        for result in results:
            self._collect(result)
        return self._decide(shown) if shown else []

    def _decide(self, shown: Sequence[Shown]) -> list[Any]:
        with self._draws.one_thread(), torch.no_grad(), self._draws.torch_stream("act", shown[0].number):
            inputs = self.module.forward_exploration({Columns.OBS: _seen(shown)})[Columns.ACTION_DIST_INPUTS]
            dist = self.module.get_exploration_action_dist_cls().from_logits(inputs)
            drawn = dist.sample()
            chosen = [_row(drawn, at) if one.forced is None else one.forced for at, one in enumerate(shown)]
            log_probs = dist.logp(_batch(chosen)).numpy()
        for at, one in enumerate(shown):
            extra = {Columns.ACTION_DIST_INPUTS: inputs[at].numpy(), Columns.ACTION_LOGP: log_probs[at]}
            self._pending[one.lane] = one, chosen[at], extra
        return chosen

    def _collect(self, result: Result) -> None:
        shown, chosen, extra = self._pending.pop(result.lane)
        episode = self._ongoing.pop(result.lane, None)
        if episode is None:
            episode = SingleAgentEpisode(observation_space=self._spaces[0], action_space=self._spaces[1])
            episode.add_env_reset(observation=shown.seen)
        over, cut = result.terminated, result.truncated and not result.terminated
        infos = {"index": result.index}
        episode.add_env_step(
            result.after, chosen, result.reward, infos, terminated=over, truncated=cut, extra_model_outputs=extra
        )
        if over or cut:
            self._done.append(episode)
        else:
            self._ongoing[result.lane] = episode

    def sample(self, results: Sequence[Result] = (), **kwargs: Any) -> list[SingleAgentEpisode]:
        """The episodes, and parts of episodes, since the last call."""
        del kwargs
        self.advance(results, [])
        parts = [episode for episode in self._ongoing.values() if len(episode)]
        self._ongoing = {lane: episode.cut() for lane, episode in self._ongoing.items()}
        collected, self._done = [*self._done, *parts], []
        return collected

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over the learner's weights."""
        self.module.set_state(state)

    def get_spaces(self) -> dict[str, Any]:
        """The spaces of observations and actions."""
        return {DEFAULT_MODULE_ID: self._spaces}

    def assert_healthy(self) -> None:
        """It is, once it is built."""


class GreedyRunner(LaneRunner):
    """Decides for the action of the highest value or, with the probability ``epsilon``, for a random one.

    It collects nothing: the driver has a replay buffer.
    """

    def _decide(self, shown: Sequence[Shown]) -> list[Any]:
        with self._draws.one_thread(), torch.no_grad():
            values = self.module.compute_q_values({Columns.OBS: _seen(shown)})["qf_preds"]
        best = values.argmax(dim=1).numpy()
        return [self._explored(one, int(best[at]), values.shape[1]) for at, one in enumerate(shown)]

    def _explored(self, shown: Shown, best: int, count: int) -> Any:
        if self._draws.unit("explore", shown.number) < shown.epsilon:
            return np.int64(self._draws.integer(count, "random", shown.number))
        return np.int64(best)


def _seen(shown: Sequence[Shown]) -> torch.Tensor:
    return torch.as_tensor(np.stack([one.seen for one in shown]))


def _row(batch: Any, at: int) -> Any:
    if isinstance(batch, tuple):
        return tuple(_row(part, at) for part in batch)
    return batch[at].numpy()


def _batch(rows: Sequence[Any]) -> Any:
    if isinstance(rows[0], tuple):
        return tuple(_batch(part) for part in zip(*rows, strict=True))
    return torch.as_tensor(np.stack([np.asarray(row) for row in rows]))


# where they run -----------------------------------------------------------------------------------------


class EnvRunners:
    """``count`` env runners over ``lanes``, which they share out; 0 is one in this process.

    ``arguments`` are those of the class ``kind``. Ray is used where this process uses it already (such as by the Ray
    runner), and otherwise started for as long as this is open, on this machine only.
    """

    def __init__(self, count: int, lanes: int, kind: type[LaneRunner], *arguments: Any) -> None:
        if count > lanes:
            raise TrainingError(
                f"num_env_runners = {count}, and there are lanes for {lanes}: each needs at least one; "
                f"write num_env_runners = {lanes} at most, or slots = {count} under [system]"
            )
        self._stack = contextlib.ExitStack()
        self._count = max(1, count)
        self._outbox: list[list[Result]] = [[] for _ in range(self._count)]
        self._remote = count > 0
        if self._remote:
            self._stack.enter_context(_ray(count))
            # Beside the driver, and without a CPU that a trial would have to wait for.
            here: Any = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
            remote = ray.remote(num_cpus=0, scheduling_strategy=here)(kind)
            self._runners: list[Any] = [remote.remote(*arguments, index) for index in range(count)]
        else:
            self._runners = [kind(*arguments)]

    def decide(self, shown: Sequence[Shown]) -> list[Any]:
        """An action for each of the lanes, decided by their env runners side by side."""
        parts: dict[int, list[Shown]] = {}
        for one in shown:
            parts.setdefault(one.lane % self._count, []).append(one)
        answers = self._call("advance", {index: (self._flush(index), part) for index, part in parts.items()})
        chosen = {
            one.lane: action for index, part in parts.items() for one, action in zip(part, answers[index], strict=True)
        }
        return [chosen[one.lane] for one in shown]

    def add(self, result: Result) -> None:
        """Tell the lane's env runner, when it is next asked."""
        self._outbox[result.lane % self._count].append(result)

    def sample(self) -> list[SingleAgentEpisode]:
        """The episodes of all since the last call."""
        answers = self._call("sample", {index: (self._flush(index),) for index in range(self._count)})
        return [episode for part in answers.values() for episode in part]

    def set_state(self, state: dict[str, Any]) -> None:
        """Give the learner's weights to all."""
        shared = ray.put(state) if self._remote else state
        self._call("set_state", dict.fromkeys(range(self._count), (shared,)))

    def close(self) -> None:
        """End the actors, and Ray if it was started here. Calling it twice is fine."""
        for runner in self._runners if self._remote else ():
            with contextlib.suppress(Exception):
                ray.kill(runner)
        self._runners = []
        self._stack.close()

    def _flush(self, index: int) -> list[Result]:
        results, self._outbox[index] = self._outbox[index], []
        return results

    def _call(self, method: str, arguments: dict[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Call some env runners, side by side; their answers."""
        if not self._remote:
            return {index: getattr(self._runners[index], method)(*given) for index, given in arguments.items()}
        asked = [getattr(self._runners[index], method).remote(*given) for index, given in arguments.items()]
        try:
            return dict(zip(arguments, ray.get(asked), strict=True))
        except RayActorError as error:
            raise TrainingError(f"an env runner was lost: {' '.join(str(error).split())[:200]}") from error


@contextlib.contextmanager
def _ray(count: int) -> Iterator[None]:
    """Ray is running inside: the one of this process, or one of our own."""
    if ray.is_initialized():
        yield
        return
    folder = Path(tempfile.mkdtemp(prefix="tg-", dir="/tmp"))
    theirs = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address="local",
            num_cpus=count,
            _temp_dir=str(folder),
            _node_ip_address=LOOPBACK,
            include_dashboard=False,
            configure_logging=False,
            log_to_driver=False,
        )
        signal.signal(signal.SIGTERM, theirs)  # Ray takes it away
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
