"""Agents that learn a policy: which settings win under which conditions."""

from __future__ import annotations

import importlib.util
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tunegym.core.errors import BudgetError, Problem
from tunegym.tuning.agents import policies
from tunegym.tuning.agents.base import BaseAgent
from tunegym.tuning.agents.config import AgentConfig
from tunegym.tuning.agents.policies import Choice
from tunegym.tuning.agents.sb3.config import PolicyConfig, out_of_bounds, starts_too_late
from tunegym.tuning.agents.sb3.failures import TrainingError, training
from tunegym.tuning.agents.sb3.keeping import PolicyFiles, restore
from tunegym.tuning.agents.scaling import RewardScale
from tunegym.tuning.agents.warm import cold
from tunegym.tuning.model.outcome import Cancelled, Pruned
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.space import Space
from tunegym.tuning.model.trial import Observation, Trial
from tunegym.tuning.model.values import Context
from tunegym.tuning.ports import Env

if TYPE_CHECKING:
    import numpy as np

    from tunegym.tuning.agents.sb3.learner import Decision, Learner, Step
    from tunegym.tuning.agents.sb3.tried import Tried
    from tunegym.tuning.envs.actions import ActionView
    from tunegym.tuning.envs.flattening import FlatObservations

logger = logging.getLogger(__name__)

ASKED_PER_TRIAL = 2
"""In how many contexts the policy is asked for its table, on average for each trial."""


@dataclass(frozen=True, slots=True)
class _Flight:
    """A trial that runs: what was seen, what was decided, and how far its episode is."""

    seen: np.ndarray
    decision: Decision
    taken: int


@dataclass(frozen=True)
class _Parts:
    """What is built when the run begins, since torch takes seconds to import."""

    view: ActionView
    flat: FlatObservations
    learner: Learner
    tried: Tried


class PolicyAgent(BaseAgent, ABC):
    """Drives trials over all lanes, learns from each, and keeps its policy on the disk.

    The journal stays the truth: what a resumed agent knows comes from its last checkpoint and from recorded trials.
    Rewards are scaled for the policy, never in the record. An error of the algorithm ends the run with code 1 and its
    reason in ``failure``; every trial up to then is recorded, and the policy is that of the last checkpoint.
    """

    Config: ClassVar[type[AgentConfig]] = PolicyConfig
    supports_variable_environment: ClassVar[bool] = True
    name: ClassVar[str]

    def __init__(self, env: Env, config: Any = None, seed: int = 0) -> None:
        super().__init__(env, config, seed)
        self._files = PolicyFiles(env.folder, self.name)
        self._scale = RewardScale()
        self._warm: Sequence[Trial] = ()
        self._built: _Parts | None = None
        self._closed = 0
        self._saved = 0
        self._tabled = 0
        self._contexts = len(policies.contexts_to_ask(env.experiment.env_params))
        self._episodes: dict[int, int] = {}

    @classmethod
    def refuse(cls, space: Space) -> Problem | None:
        """The algorithms must be there."""
        del space
        if importlib.util.find_spec("stable_baselines3") is None:
            what = f"the agent {cls.name} needs the package stable-baselines3"
            return Problem("agent", what, found=f'"{cls.name}"', hint="pip install 'tunegym[rl]'")
        return None

    @classmethod
    def check(cls, experiment: Experiment, scenario_dir: Path) -> list[Problem]:
        """Refuse settings that no algorithm can work with."""
        config: PolicyConfig = experiment.agent_config
        return [
            *out_of_bounds(config),
            *starts_too_late(config, experiment.most_trials),
            *cold(config.warm_start, scenario_dir),
        ]

    def warm_up(self, trials: Sequence[Trial]) -> None:
        """Keep another run's trials; a policy that has learned nothing yet is pre-trained on them."""
        self._warm = trials

    # the loop -----------------------------------------------------------------------------------------

    def run(self) -> int:
        """Train on trials until the budget is used up; 1 if the algorithm fails."""
        try:
            self._prepare()
            self._drive()
        except TrainingError as error:
            self.failure = f"training failed after {self._closed} trials: {error}"
            self._built = None  # nobody should follow what is left of it
            while self.env.next_finished() is not None:  # they were paid for: record them
                pass
            return 1
        return 0

    def choose(self, context: Context) -> Choice | None:
        """What the policy prefers, of what works as far as anybody knows; None before it has learned anything."""
        if self._built is None or not self._built.learner.trained:
            return None
        parts, seen = self._built, self._usual(context)
        element, chance = parts.learner.greedy(seen)
        action = parts.view.decode(element)
        if not parts.tried.works(context, action, element):
            others = parts.tried.working(context)
            if others:
                import numpy as np

                liked = parts.learner.preference(seen, np.stack([element for _, element in others]))
                best = int(liked.argmax())
                action, chance = others[best][0], None if chance is None else float(liked[best])
        return Choice(action, chance)

    def _usual(self, context: Context) -> np.ndarray:
        """What a lane sees when nothing is known but the context.

        In a longer episode most trials follow a measured one, and that is where the policy has learned most.
        """
        flat = self._parts.flat
        single = self.env.experiment.episode_steps == 1
        return flat.encode(Observation(0, context)) if single else flat.usual(context)

    def _drive(self) -> None:
        env, parts = self.env, self._parts
        free = deque(range(env.slots))
        flights: dict[int, _Flight] = {}
        while True:
            while free and env.exhausted(free[0]) is None:
                lane = free[0]
                taken = self._episodes.get(lane, 0)
                shown = env.observe(lane)
                seen = parts.flat.encode(shown if taken else Observation(shown.number, shown.context))
                with training():
                    flights[lane] = _Flight(seen, self._decide(seen, shown.number), taken)
                try:
                    env.begin(parts.view.decode(flights[lane].decision.chosen), lane)
                except BudgetError:  # it ran out, or the run was stopped, while the agent was thinking
                    break
                free.popleft()
            finished = env.next_finished()
            if finished is None:
                break
            lane, trial = finished
            self._learn(lane, trial, flights.pop(lane))
            free.append(lane)
        self._finish()

    def _decide(self, seen: np.ndarray, number: int) -> Decision:
        parts = self._parts
        if number == 1 and self.config.start_action == "first":
            first = {name: knob.from_unit(0.0) for name, knob in self.env.space.knobs.items()}
            return parts.learner.judge(seen, parts.view.encode(first))
        return parts.learner.act(seen, number)

    def _learn(self, lane: int, trial: Trial, flight: _Flight) -> None:
        from tunegym.tuning.agents.sb3.learner import Step

        parts = self._parts
        self._note(trial)
        self._closed += 1
        taken, steps = flight.taken + 1, self.env.experiment.episode_steps
        ended, single = taken >= steps, steps == 1
        self._episodes[lane] = 0 if ended else taken
        after = parts.flat.encode(self.env.observe(lane))
        index = len(self._scale) - 1
        step = Step(index, lane, flight.seen, flight.decision, after, ended and single, ended and not single)
        with training():
            parts.learner.take(step)
            due = parts.learner.due()
        if due:
            self._train()

    def _train(self, last: bool = False) -> None:
        with training():
            told = self._parts.learner.train(self._closed, last=last)
        if told:
            self._files.tell(self._closed, told)
            if self._closed - self._saved >= self.config.checkpoint_every:
                self._save()

    def _finish(self) -> None:
        """Learn from what is left, also of a run that was stopped: an on-policy agent couldn't do so later."""
        if self._closed > self._saved:
            self._train(last=True)
        if not self._parts.learner.trained:
            logger.warning("%s has learned nothing: %d trials are too few for an update", self.name, self._closed)
            return
        if self._closed > self._saved:
            self._save(last=True)
        self._files.save_model(self._parts.learner.model)

    def _save(self, last: bool = False) -> None:
        from tunegym.tuning.agents.sb3.checkpoints import Checkpoint

        self._saved = self._closed
        kind = type(self._parts.view.space).__name__
        self._files.save(Checkpoint(self.name, self._closed, kind, self._parts.learner.parameters()))
        # To ask in many contexts takes as long as to choose in many trials.
        if last or self._closed - self._tabled >= self._contexts / ASKED_PER_TRIAL:
            self._tabled = self._closed
            with training():
                table = policies.table_of(self.name, self._closed, self.env.experiment.env_params, self.choose)
            self._files.save_table(table)

    def _note(self, trial: Trial) -> None:
        """What every trial tells, whoever chose it: the scales of rewards and metrics, and whether it worked."""
        parts = self._parts
        pruned = isinstance(trial.outcome, Pruned)
        # A setting weighs once in a context: the more often the best is repeated, the less would all others differ.
        weighs = not parts.tried.measured(trial.context, trial.action)
        self._scale.add(trial.context, trial.reward, measured=trial.measured, pruned=pruned, weighs=weighs)
        if trial.measured and all(name in trial.metrics for name in self.env.experiment.agent_metrics):
            parts.flat.learn(trial.metrics)  # another run may not have measured all of them
        parts.tried.add(trial, parts.view.encode(trial.action))

    # before the first trial ---------------------------------------------------------------------------

    @property
    def _parts(self) -> _Parts:
        assert self._built is not None
        return self._built

    @abstractmethod
    def _view(self, kind: str | None) -> ActionView:
        """How the algorithm sees the knobs; ``kind`` is the action space of the policy that is to go on, if any."""

    def _prepare(self) -> None:
        """Build the policy, and bring it to where it was."""
        from tunegym.tuning.agents.sb3.building import build_learner
        from tunegym.tuning.agents.sb3.tried import Tried
        from tunegym.tuning.envs.flattening import FlatObservations

        with training():
            checkpoint = self._files.last()
        view = self._view(checkpoint.actions if checkpoint is not None else None)
        flat = FlatObservations(self.env)
        most = self.env.experiment.most_trials
        with training():
            learner = build_learner(self.config, flat.space, view.space, self._scale, self.seed, most)
            restored = checkpoint is not None and restore(learner, checkpoint)
            if checkpoint is not None and not restored:  # it may have become half of it
                learner = build_learner(self.config, flat.space, view.space, self._scale, self.seed, most)
        self._built = _Parts(view, flat, learner, Tried(between=learner.continuous))
        old: list[Step] = []
        for trial in self._warm:
            self._note(trial)
            old.append(self._past(trial))
        with training():
            learner.warm(old)
            if not restored:
                learner.pretrain(old)
        for trial in self.env.history():
            if isinstance(trial.outcome, Cancelled):  # what never ran has nothing to learn from
                continue
            self._closed += 1
            self._note(trial)
            if learner.learns_from_the_past:
                learner.take(self._past(trial))
        self._saved = min(checkpoint.closed, self._closed) if checkpoint is not None and restored else 0
        if self._closed:
            remembered = min(self._closed, self.config.buffer_size) if learner.learns_from_the_past else None
            self._files.say_where(self._closed, self._saved, remembered)

    def _past(self, trial: Trial) -> Step:
        """The last noted trial, if not chosen just now: what its lane saw before it isn't on record."""
        from tunegym.tuning.agents.sb3.learner import Step

        parts, single = self._parts, self.env.experiment.episode_steps == 1
        seen = self._usual(trial.context)
        after = seen if single else parts.flat.usual(self.env.context(trial.number + 1))
        with training():
            decision = parts.learner.judge(seen, parts.view.encode(trial.action))
        return Step(len(self._scale) - 1, 0, seen, decision, after, terminated=single, truncated=not single)
