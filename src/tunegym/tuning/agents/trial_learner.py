"""Training on trials: the loop is ours (ADR 15).

Lanes never wait for each other, numbers and contexts are the store's, and a resume needs nothing but the journal, which
is the truth, and the last checkpoint. Rewards are scaled for the policy, never in the record.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from tunegym.core.errors import BudgetError
from tunegym.tuning.agents import policies
from tunegym.tuning.agents.checkpoints import PolicyFiles
from tunegym.tuning.agents.live_learner import Draws, training
from tunegym.tuning.agents.policies import PolicyChoice
from tunegym.tuning.envs.actions import ActionView
from tunegym.tuning.envs.wrappers import FlatObservations
from tunegym.tuning.inference.experience import Experience
from tunegym.tuning.inference.observations import Question
from tunegym.tuning.model.trial import SEARCH, Observation, Trial
from tunegym.tuning.model.values import Action, Context
from tunegym.tuning.ports import Env

logger = logging.getLogger(__name__)

ASKED_PER_TRIAL = 2
"""The policy's table is written when there were this many times fewer trials than contexts since the last time."""
PRETRAIN_EPOCHS = 100
PRETRAIN_ROUNDS = 100
"""Passes (on-policy) and updates (off-policy) over the trials of a warm start."""
TEMPERATURE = 0.5
"""Pre-training imitates old trials, the better ones more: e times more for each such step on the reward scale."""
HIGHEST = 4.0
"""Better trials are outliers on the reward scale; they count as this one."""
PRETRAIN_ENTROPY = 0.05
"""Entropy bonus of pre-training, so that there is something left to explore."""
LEAST_DRAWN = 256
"""A larger batch than this has no more trials than there are: repeating them ten times teaches nothing."""
MOST_COMPARED = 1000
"""Most settings that are compared where the policy's own choice is known to fail."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A policy's choice, its expected reward and its log-probability; 0 where that isn't known."""

    chosen: Any
    value: float = 0.0
    log_prob: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """One closed trial as an algorithm sees it; ``index`` is its place in the ``Experience``, which has its reward."""

    index: int
    lane: int
    seen: np.ndarray
    decision: Decision
    after: np.ndarray
    terminated: bool
    truncated: bool
    reward: float = 0.0  # of a live system's step, which is in no ``Experience``


def imitate(
    steps: Sequence[Step],
    rewards: np.ndarray,
    evaluate: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
    optimizer: torch.optim.Optimizer,
    config: Any,
) -> None:
    """Pre-train an on-policy algorithm: imitate the better trials, and fit the value function.

    ``evaluate`` gives the values, log-probabilities and entropies of observations and choices.
    """
    likened = np.minimum(rewards, HIGHEST)
    weights = torch.as_tensor(np.exp((likened - likened.max()) / TEMPERATURE), dtype=torch.float32)
    targets = torch.as_tensor(rewards, dtype=torch.float32)
    seen = torch.as_tensor(np.stack([step.seen for step in steps]))
    chosen = torch.as_tensor(np.stack([step.decision.chosen for step in steps]))
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    for _ in range(PRETRAIN_EPOCHS):
        values, log_probs, entropy = evaluate(seen, chosen)
        imitation = -(weights * log_probs).sum() / weights.sum()
        error = torch.nn.functional.mse_loss(values.flatten(), targets)
        loss = imitation - PRETRAIN_ENTROPY * entropy.mean() + config.vf_coef * error
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
        optimizer.step()


class TrialLearner(ABC):
    """An algorithm without its loop: it acts, is given closed trials, and trains when it is due.

    One with its own loop leaves ``act``, ``take``, ``due``, ``train`` and ``pretrain`` as they are here.

    Attributes:
        off_policy: whether trials that it didn't choose itself can teach it.
        continuous: whether it chooses from a continuous space.
        trained: whether it has learned anything.
        capacity: how many trials it can learn from again, if it is ``off_policy``.
    """

    off_policy: bool
    continuous: bool = False
    capacity: int = 0

    def __init__(self) -> None:
        self.trained = False

    def act(self, seen: np.ndarray, number: int) -> Decision:
        """The choice for trial ``number``; the same for the same policy and number."""
        raise NotImplementedError

    def judge(self, seen: np.ndarray, chosen: Any) -> Decision:
        """The decision for a choice made elsewhere, which an on-policy algorithm has an opinion of."""
        del seen
        return Decision(np.asarray(chosen))

    @abstractmethod
    def greedy(self, seen: np.ndarray) -> tuple[Any, float | None]:
        """The best choice, and its probability if it is known."""

    @abstractmethod
    def preference(self, seen: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """How much it prefers each of ``elements``: more is better."""

    def take(self, step: Step) -> None:  # noqa: B027
        """Add a closed trial."""

    def due(self) -> bool:
        """Whether it is time to train."""
        return False

    def train(self, closed: int, last: bool = False) -> dict[str, float]:
        """Train on the trials that were added, ``closed`` so far; no trial follows the ``last`` call.

        Returns values for the training curves. Raises ``TrainingError`` if the network diverged.
        """
        return {}

    def warm_up(self, steps: Sequence[Step]) -> None:  # noqa: B027
        """Add another run's trials before any of this one; an on-policy algorithm can't learn from them later on."""

    def pretrain(self, steps: Sequence[Step]) -> None:  # noqa: B027
        """Learn from another run's trials, which were added, before the first one of this run."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Everything that a checkpoint needs, as plain tensors and numbers."""

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> None:
        """The reverse of ``state``. Raises an exception if the state doesn't fit."""

    def save_model(self, files: PolicyFiles) -> None:  # noqa: B027
        """Write the policy in the library's own form."""


class OffPolicy(TrialLearner):
    """Learns from trials again and again: every ``train_freq`` of them, after the first ``random_trials``."""

    off_policy = True
    random_trials: int
    train_freq: int
    _taken = _since = _head_start = 0

    @abstractmethod
    def update(self, name: str, number: int) -> dict[str, float]:
        """One update on draws from the replay buffer, which depend on ``name`` and ``number``."""

    def take(self, step: Step) -> None:
        """Count it; a subclass adds it to the replay buffer, in place of the oldest if that is full."""
        del step
        self._taken += 1
        self._since += 1

    def warm_up(self, steps: Sequence[Step]) -> None:
        """Add them to the replay buffer, and explore that much less."""
        for step in steps:
            self.take(step)
        self._head_start = len(steps)

    def due(self) -> bool:
        """Every ``train_freq`` trials, after the random ones."""
        return self._taken > self.random_trials and self._since >= self.train_freq

    def train(self, closed: int, last: bool = False) -> dict[str, float]:
        """One update on draws from the buffer."""
        if self._taken <= self.random_trials:
            return {}
        self._since = 0
        return self.update("train", closed)

    def pretrain(self, steps: Sequence[Step]) -> None:
        """As many updates as a run of some hundred trials has."""
        if steps:
            for at in range(PRETRAIN_ROUNDS):
                self.update("pretrain", at)
            self._since = 0

    def trials_by(self, number: int) -> int:
        """The trial's number, counted from the start of the run that it was warmed up with."""
        return number + self._head_start


class EpsilonGreedy(OffPolicy):
    """Chooses at random with a probability that falls from ``first`` to ``final`` over ``fades`` trials."""

    draws: Draws
    first: float = 1.0
    final: float
    fades: float

    def explored(self, number: int, count: int) -> Decision | None:
        """One of ``count`` choices for trial ``number`` if that is a random one."""
        random = self.trials_by(number) <= self.random_trials
        if random or self.draws.unit("explore", number) < self.epsilon(number):
            return Decision(np.int64(self.draws.integer(count, "random", number)))
        return None

    def epsilon(self, number: int) -> float:
        """The probability of a random choice in trial ``number``."""
        return max(self.first - (self.first - self.final) * self.trials_by(number) / self.fades, self.final)

    def train(self, closed: int, last: bool = False) -> dict[str, float]:
        """One update, and the present ``epsilon`` in the training curves."""
        told = super().train(closed, last)
        return {**told, "exploration/epsilon": self.epsilon(closed)} if told else told


class TrialTraining:
    """Drives trials over all lanes, learns from each, and keeps the policy on disk.

    ``view`` tells how the algorithm sees the knobs, by the kind of its checkpoint's action space, if there is one.
    ``learner`` builds it from the spaces of observations and actions, and the trials that it will be given.
    """

    _view: ActionView

    def __init__(
        self,
        env: Env,
        name: str,
        config: Any,
        view: Callable[[str | None], ActionView],
        learner: Callable[[spaces.Space[Any], spaces.Space[Any], Experience], TrialLearner],
    ) -> None:
        self._env = env
        self._name = name
        self._config = config
        self._single = env.experiment.episode_steps == 1
        self._files = PolicyFiles(env.folder, name)
        self._experience = Experience(Question.of(env.experiment))
        self._flat = FlatObservations(env)
        self._elements: dict[int, np.ndarray] = {}  # by setting
        self._contexts = len(policies.contexts_to_ask(env.experiment.env_params))
        self._episodes: dict[int, int] = {}  # trials of each lane's episode
        self.closed = 0
        self._tabled = 0

        def build(kind: str | None) -> TrialLearner:
            self._view = view(kind)
            return learner(self._flat.space, self._view.space, self._experience)

        with training():
            self._learner, self._saved = self._files.restored(build, lambda learner, state: learner.restore(state))

    def run(self, warm: Sequence[Trial]) -> None:
        """Learn from another run's trials and those on record, then train to the end of the budget."""
        self._recall(warm)
        env = self._env
        free = deque(range(env.slots))
        flights: dict[int, tuple[np.ndarray, Decision]] = {}
        while True:
            while free and env.exhausted(free[0]) is None:
                lane = free[0]
                shown = env.observe(lane)
                begun = self._episodes.get(lane, 0) > 0
                seen = self._flat.encode(shown if begun else Observation(shown.number, shown.context))
                with training():
                    flights[lane] = seen, self._decide(seen, shown.number)
                try:
                    env.begin(self._view.decode(flights[lane][1].chosen), lane)
                except BudgetError:  # used up, or the run was stopped, since the last look
                    break
                free.popleft()
            finished = env.next_finished()
            if finished is None:
                break
            lane, trial = finished
            self._learn(lane, trial, *flights.pop(lane))
            free.append(lane)
        self._finish()

    def choose(self, context: Context) -> PolicyChoice | None:
        """The policy's preferred setting, of those that are known to work; None before it has learned anything."""
        if not self._learner.trained:
            return None
        seen = self._typical(context)
        element, chance = self._learner.greedy(seen)
        action = self._view.decode(element)
        working = self._experience.working(context)
        if not working or self._known(action, element) in working:
            return PolicyChoice(action, chance)
        others = [setting for setting in reversed(self._elements) if setting in working][:MOST_COMPARED]
        liked = self._learner.preference(seen, np.stack([self._elements[setting] for setting in others]))
        best = int(liked.argmax())
        action = self._experience.observations.actions[others[best]]
        return PolicyChoice(action, None if chance is None else float(liked[best]))

    def _known(self, action: Action, element: np.ndarray) -> int | None:
        """The setting to judge an action by: in a continuous space that is the nearest one tried."""
        setting = self._experience.observations.find(action)
        if not self._learner.continuous or setting in self._elements:
            return setting
        away = ((np.stack(list(self._elements.values())) - element) ** 2).sum(axis=1)
        return list(self._elements)[int(away.argmin())]

    def _typical(self, context: Context) -> np.ndarray:
        """A lane's observation if only the context is known.

        In a longer episode most trials follow a measured one, and that is where the policy has learned most.
        """
        return self._flat.encode(Observation(0, context)) if self._single else self._flat.usual(context)

    # the past -----------------------------------------------------------------------------------------

    def _recall(self, warm: Sequence[Trial]) -> None:
        """Bring the policy to where it was."""
        learner = self._learner
        old: list[Step] = []
        for trial in warm:
            self._record(trial)
            old.append(self._past(trial))
        with training():
            learner.warm_up(old)
            if not learner.trained:
                learner.pretrain(old)
        for trial in self._env.history():
            if trial.status != "cancelled":  # it never ran
                self.closed += 1
                self._record(trial)
                if learner.off_policy:
                    learner.take(self._past(trial))
        self._saved = min(self._saved, self.closed)
        if sum(trial.phase == SEARCH for trial in self._env.history()) > len(self._env.experiment.enqueue):
            remembered = min(self.closed, learner.capacity) if learner.off_policy else None
            self._files.report_resume(self.closed, self._saved, remembered)

    def _past(self, trial: Trial) -> Step:
        """The trial recorded last as a step; what its lane saw before it isn't on record."""
        seen = self._typical(trial.context)
        after = seen if self._single else self._flat.usual(self._env.context(trial.number + 1))
        with training():
            decision = self._learner.judge(seen, self._view.encode(trial.action))
        return Step(len(self._experience) - 1, 0, seen, decision, after, self._single, not self._single)

    def _record(self, trial: Trial) -> None:
        """Learn the scales of rewards and metrics from a trial, and whether it worked."""
        setting = self._experience.add(trial)
        self._elements.setdefault(setting, np.asarray(self._view.encode(trial.action)))
        if trial.measured and all(name in trial.metrics for name in self._env.experiment.agent_metrics):
            self._flat.learn(trial.metrics)  # another run may not have measured all of them

    # the loop -----------------------------------------------------------------------------------------

    def _decide(self, seen: np.ndarray, number: int) -> Decision:
        if number == self._env.first and self._config.start_action == "first":
            first = {name: knob.from_unit(0.0) for name, knob in self._env.space.knobs.items()}
            return self._learner.judge(seen, self._view.encode(first))
        return self._learner.act(seen, number)

    def _learn(self, lane: int, trial: Trial, seen: np.ndarray, decision: Decision) -> None:
        self._record(trial)
        self.closed += 1
        taken = self._episodes.get(lane, 0) + 1
        ended = taken >= self._env.experiment.episode_steps
        self._episodes[lane] = 0 if ended else taken
        after = self._flat.encode(self._env.observe(lane))
        over, cut = ended and self._single, ended and not self._single
        step = Step(len(self._experience) - 1, lane, seen, decision, after, terminated=over, truncated=cut)
        with training():
            self._learner.take(step)
        if self._learner.due():
            self._train()

    def _train(self, last: bool = False) -> None:
        with training():
            values = self._learner.train(self.closed, last=last)
        if values:
            self._files.log(self.closed, values)
            if self.closed - self._saved >= self._config.checkpoint_every:
                self._save()

    def _finish(self) -> None:
        """Learn from the rest, also of a stopped run: an on-policy agent couldn't do so later."""
        if self.closed > self._saved:
            self._train(last=True)
        if not self._learner.trained:
            logger.warning("%s has learned nothing: %d trials are too few for an update", self._name, self.closed)
            return
        if self.closed > self._saved:
            self._save(last=True)
        self._learner.save_model(self._files)

    def _save(self, last: bool = False) -> bool:
        self._saved = self.closed
        written = self._files.save(type(self._view.space).__name__, self._learner.state(), self.closed)
        # Asking in many contexts takes as long as choosing in many trials.
        if last or self.closed - self._tabled >= self._contexts / ASKED_PER_TRIAL:
            self._tabled = self.closed
            with training():
                table = policies.table_of(self._name, self.closed, self._env.experiment.env_params, self.choose)
            self._files.save_table(table)
        return written
