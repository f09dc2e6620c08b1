"""One session of training on a live system: from the last checkpoint to the end of the budget."""

from __future__ import annotations

import logging
import math
from itertools import islice
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecTransposeImage

from tunegym.core.errors import ActionError, BudgetError, ServerLostError
from tunegym.tuning.agents.live.building import MemoryShortError, build_model
from tunegym.tuning.agents.live.config import LiveOffPolicyConfig, LiveOnPolicyConfig, LivePolicyConfig
from tunegym.tuning.agents.live.fitting import Actions, Observations
from tunegym.tuning.agents.live.models import Ours
from tunegym.tuning.agents.live.vector import LeftError, LiveVector
from tunegym.tuning.agents.sb3.borrowing import Borrowed
from tunegym.tuning.agents.sb3.checkpoints import Checkpoint
from tunegym.tuning.agents.sb3.config import FEWEST
from tunegym.tuning.agents.sb3.failures import DIVERGED, TrainingError, training
from tunegym.tuning.agents.sb3.keeping import PolicyFiles, restore
from tunegym.tuning.ports import LiveEnv, Transition

logger = logging.getLogger(__name__)

HORIZON = 100_000
"""What is taken for the budget where only time bounds it."""
LINES = 1000
"""How many lines the training's curves have, roughly, in a budget."""
ENDLESS = 2**62


class Training:
    """Learns until no further step may be taken, and keeps what it learned.

    Torch runs on one thread meanwhile, because the networks are small. ``run`` raises what ``LiveAgent.run`` expects.
    """

    def __init__(self, env: LiveEnv, name: str, config: LivePolicyConfig, seed: int) -> None:
        self._env = env
        self._name = name
        self._config = config
        self._files = PolicyFiles(env.folder, name, unit="step")
        self._borrowed = Borrowed(seed, name)
        self._most = env.experiment.most_trials
        self._horizon = self._most or HORIZON
        first = env.taken
        self._actions = Actions(env.action_space, self._borrowed.integer(2**31, "random", first))
        self._observations = Observations(env.observation_space)
        self._model: Any = None
        self._trained = False
        self._first = self._saved = self._told = self._updated_at = first

    def run(self) -> None:
        """Learn to the end, whatever ends it; what was collected by then is learned from."""
        with self._borrowed.one_thread():
            with training():
                self._prepare()
            self._warn_of_few_updates()
            cause = self._learn()
            if isinstance(cause, ActionError):  # only a policy that is no longer of numbers chooses such
                raise TrainingError(f"{DIVERGED} ({cause.message})") from cause
            if cause is not None and not isinstance(cause, BudgetError | ServerLostError):
                raise cause
            with training():
                self._finish()
        if isinstance(cause, ServerLostError):
            raise cause

    def restore(self, state: dict[str, Any]) -> None:
        """Be again what a checkpoint says."""
        self._model.set_parameters(state["model"], device="cpu")
        if "log_ent_coef" in state:
            self._model.log_ent_coef.data.copy_(state["log_ent_coef"])

    # before the first step ----------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Build the algorithm, and bring it to where it was."""
        self._model = self._built()
        checkpoint = self._files.last()
        if checkpoint is not None:
            self._trained = restore(self, checkpoint)
            if not self._trained:  # it may have become half of it
                self._model = self._built()
        self._model.num_timesteps = self._first
        self._model._update_current_progress_remaining(self._first, self._horizon)
        if self._first:
            remembered = self._remember() if isinstance(self._config, LiveOffPolicyConfig) else None
            saved = min(checkpoint.closed, self._first) if checkpoint is not None and self._trained else 0
            self._files.say_where(self._first, saved, remembered)

    def _built(self) -> Any:
        left = None if self._most is None else max(0, self._most - self._first)
        vector = LiveVector(self._env, self._actions, self._observations, left)
        rng = self._borrowed.generator("train", self._first)
        ours = Ours(rng, self._horizon, self._updated)
        try:
            return build_model(self._config, vector, self._borrowed, ours, self._first)
        except MemoryShortError as error:
            raise TrainingError(str(error)) from error

    def _remember(self) -> int:
        """Fill the replay buffer from the record; how many steps it got."""
        buffer = self._model.replay_buffer
        lanes = self._model.n_envs
        steps = iter(self._env.transitions(buffer.buffer_size * lanes))
        count = 0
        while len(row := list(islice(steps, lanes))) == lanes:
            self._add(row)
            count += lanes
        return count

    def _add(self, row: list[Transition]) -> None:
        model = self._model
        seen, after = ([getattr(step, name) for step in row] for name in ("observation", "after"))
        batches = [self._observations.ours(one) for one in (seen, after)]
        if isinstance(model.env, VecTransposeImage):
            batches = [model.env.transpose_observations(one) for one in batches]
        chosen = self._actions.ours([step.action for step in row])
        if self._name == "sac":
            chosen = model.policy.scale_action(chosen)
        ended = np.array([step.terminated or step.truncated for step in row])
        infos = [{"TimeLimit.truncated": step.truncated and not step.terminated} for step in row]
        model.replay_buffer.add(*batches, chosen, np.array([step.reward for step in row]), ended, infos)

    def _warn_of_few_updates(self) -> None:
        config = self._config
        if isinstance(config, LiveOnPolicyConfig) and self._most is not None:
            each = config.n_steps * self._env.slots
            if each > self._most:
                text = "%s updates its policy every %d steps, and the budget is %d: a smaller n_steps learns more often"
                logger.warning(text, self._name, each, self._most)

    # the loop -----------------------------------------------------------------------------------------

    def _learn(self) -> Exception | None:
        """The library's own loop; what the live system raised to end it, if anything."""
        steps = ENDLESS if self._most is None else self._most - self._first
        with training():
            try:
                self._model.learn(steps, log_interval=None, reset_num_timesteps=False)
            except LeftError as left:
                return left.cause
        return None

    def _updated(self) -> None:
        """After each update of the policy."""
        model = self._model
        self._trained = True
        self._updated_at = model.num_timesteps
        values: dict[str, Any] = model.logger.name_to_value
        if not all(math.isfinite(value) for name, value in values.items() if name.endswith("loss")):
            raise TrainingError(DIVERGED)
        taken = self._env.taken
        if taken - self._told >= max(self._horizon, taken) // LINES:
            self._told = taken
            self._files.tell(taken, {**_episodes(model.ep_info_buffer), **values})
        if taken - self._saved >= self._config.checkpoint_every:
            self._save()

    def _save(self) -> None:
        model = self._model
        if not all(bool(torch.isfinite(one).all()) for one in model.policy.parameters()):
            raise TrainingError(DIVERGED)
        self._saved = self._env.taken
        state: dict[str, Any] = {"model": model.get_parameters()}
        entropy = getattr(model, "log_ent_coef", None)
        if entropy is not None:
            state["log_ent_coef"] = entropy.detach().clone()
        kind = type(self._env.action_space).__name__
        self._files.save(Checkpoint(self._name, self._saved, kind, state))
        self._files.save_model(model)

    # the end ------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Learn from what is left, also of a run that was stopped: an on-policy agent couldn't do so later."""
        model = self._model
        model._update_current_progress_remaining(model.num_timesteps, self._horizon)
        if isinstance(self._config, LiveOnPolicyConfig):
            self._train_on_part()
        elif model.num_timesteps > max(self._updated_at, model.learning_starts):
            each = model.train_freq.frequency * model.n_envs
            collected = (model.num_timesteps - self._first) % each  # since the library's loop had an update last
            steps = model.gradient_steps if model.gradient_steps > 0 else collected
            if steps:
                model.train(gradient_steps=steps, batch_size=model.batch_size)
        if not self._trained:
            logger.warning("%s has learned nothing: %d steps are too few for an update", self._name, self._env.taken)
        elif self._env.taken > self._saved:
            self._save()

    def _train_on_part(self) -> None:
        """An update on a rollout that didn't become whole."""
        model, buffer = self._model, self._model.rollout_buffer
        if buffer.full or buffer.pos * buffer.n_envs < FEWEST:
            return
        buffer.cut()
        with torch.no_grad():
            values = model.policy.predict_values(obs_as_tensor(model._last_obs, model.device))
        buffer.compute_returns_and_advantage(last_values=values, dones=model._last_episode_starts)
        model.train()


def _episodes(ended: Any) -> dict[str, float]:
    """The mean return and length of the last episodes."""
    if not ended:
        return {}
    count = len(ended)
    return {
        "rollout/ep_rew_mean": sum(one["r"] for one in ended) / count,
        "rollout/ep_len_mean": sum(one["l"] for one in ended) / count,
    }
