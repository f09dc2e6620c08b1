"""Agents that learn a policy: which settings win under which conditions."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import orjson

from tunegym.core.errors import BudgetError, Problem
from tunegym.tuning.agents import policies
from tunegym.tuning.agents.base import BaseAgent
from tunegym.tuning.agents.config import AgentConfig
from tunegym.tuning.agents.policies import Choice
from tunegym.tuning.agents.sb3.config import PolicyConfig, out_of_bounds
from tunegym.tuning.agents.scaling import RewardScale
from tunegym.tuning.agents.warm import cold
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.space import Space
from tunegym.tuning.model.trial import Observation, Trial
from tunegym.tuning.model.values import Context
from tunegym.tuning.ports import Env

if TYPE_CHECKING:
    import numpy as np

    from tunegym.tuning.agents.sb3.checkpoints import Checkpoint
    from tunegym.tuning.agents.sb3.learner import Decision, Learner, Step
    from tunegym.tuning.envs.actions import ActionView
    from tunegym.tuning.envs.flattening import FlatObservations

logger = logging.getLogger(__name__)

TRAINING = "training.jsonl"
"""What every update said about itself, beside the policy."""


class TrainingError(Exception):
    """The algorithm itself failed. What was measured is safe."""


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


class PolicyAgent(BaseAgent, ABC):
    """Drives trials over all lanes, learns from each, and keeps its policy on the disk.

    The journal stays the truth: what a resumed agent knows comes from its last checkpoint and from recorded trials.
    Rewards are scaled for the policy, never in the record. An error of the algorithm ends the run with code 1 and its
    reason in ``failure``; every trial up to then is recorded.
    """

    Config: ClassVar[type[AgentConfig]] = PolicyConfig
    supports_variable_environment: ClassVar[bool] = True
    name: ClassVar[str]

    def __init__(self, env: Env, config: Any = None, seed: int = 0) -> None:
        super().__init__(env, config, seed)
        self._scale = RewardScale()
        self._warm: Sequence[Trial] = ()
        self._built: _Parts | None = None
        self._closed = 0
        self._saved = 0
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
        return [*out_of_bounds(experiment.agent_config), *cold(experiment.agent_config.warm_start, scenario_dir)]

    def warm_up(self, trials: Sequence[Trial]) -> None:
        """Keep another run's trials; a policy that has learned nothing yet is pre-trained on them."""
        self._warm = trials

    # the loop -----------------------------------------------------------------------------------------

    def run(self) -> int:
        """Train on trials until the budget is used up; 1 if the algorithm fails."""
        try:
            with self._training():
                self._prepare()
            self._drive()
        except TrainingError as error:
            self.failure = f"training failed after {self._closed} trials: {error}"
            while self.env.next_finished() is not None:  # they were paid for: record them
                pass
            return 1
        return 0

    def choose(self, context: Context) -> Choice | None:
        """What the policy prefers; None before there is one."""
        if self._built is None:
            return None
        # In a longer episode most trials follow a measured one, and that is where the policy has learned most.
        steps = self.env.experiment.episode_steps
        seen = self._built.flat.usual(context) if steps > 1 else self._built.flat.encode(Observation(0, context))
        chosen, chance = self._built.learner.greedy(seen)
        return Choice(self._built.view.decode(chosen), chance)

    def _drive(self) -> None:
        env, parts = self.env, self._parts
        free = deque(range(env.slots))
        flights: dict[int, _Flight] = {}
        while True:
            while free and env.exhausted(free[0]) is None:
                lane = free[0]
                taken = self._episodes.get(lane, 0)
                shown = env.observe(lane)
                with self._training():
                    seen = parts.flat.encode(shown if taken else Observation(shown.number, shown.context))
                    flights[lane] = _Flight(seen, self._decide(seen, shown.number), taken)
                    action = parts.view.decode(flights[lane].decision.chosen)
                try:
                    env.begin(action, lane)
                except BudgetError:  # it ran out, or the run was stopped, while the agent was thinking
                    break
                free.popleft()
            finished = env.next_finished()
            if finished is None:
                break
            lane, trial = finished
            with self._training():
                self._learn(lane, trial, flights.pop(lane))
            free.append(lane)
        with self._training():
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
        taken, steps = flight.taken + 1, self.env.experiment.episode_steps
        ended = taken >= steps
        self._episodes[lane] = 0 if ended else taken
        after = parts.flat.encode(self.env.observe(lane))
        single = steps == 1
        index = len(self._scale) - 1
        step = Step(index, lane, flight.seen, flight.decision, after, ended and single, ended and not single)
        parts.learner.take(step)
        if parts.learner.due():
            self._train()

    def _train(self, last: bool = False) -> None:
        told = self._parts.learner.train(self._closed, last=last)
        if told:
            self._tell(told)
            if self._closed - self._saved >= self.config.checkpoint_every:
                self._save()

    def _finish(self) -> None:
        """Learn from what is left, if the budget is used up; a run that was stopped goes on later."""
        self._train(last=True)
        if self._closed > self._saved:
            self._save()
        with self._kept("the model"):
            from tunegym.tuning.agents.sb3.checkpoints import MODEL

            self._parts.learner.model.save(self.env.folder / policies.FOLDER / MODEL)

    def _note(self, trial: Trial) -> None:
        """What every closed trial tells, whoever chose it."""
        self._closed += 1
        self._scaled(trial)

    def _scaled(self, trial: Trial) -> bool:
        """Let the scales of rewards and metrics know the trial; always True."""
        self._scale.add(trial.context, trial.reward, measured=trial.measured)
        if trial.measured:
            self._parts.flat.learn(trial.metrics)
        return True

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
        from tunegym.tuning.envs.flattening import FlatObservations

        checkpoint = self._last_checkpoint()
        view = self._view(checkpoint.actions if checkpoint is not None else None)
        flat = FlatObservations(self.env)
        trials = self.env.experiment.most_trials
        learner = build_learner(self.config, flat.space, view.space, self._scale, self.seed, trials)
        self._built = _Parts(view, flat, learner)
        old = [self._as_step(trial) for trial in self._warm if self._scaled(trial)]
        if learner.learns_from_the_past:
            for step in old:
                learner.take(step)
        restored = checkpoint is not None and self._restored(checkpoint)
        if not restored:
            learner.pretrain(old)
        self._saved = checkpoint.closed if checkpoint is not None and restored else 0
        for trial in self.env.history():
            if trial.action:  # a number that nobody used has nothing to learn from
                self._note(trial)
                if learner.learns_from_the_past:
                    learner.take(self._as_step(trial))
        self._say_where(self._saved)

    def _as_step(self, trial: Trial) -> Step:
        """A trial that this policy did not choose just now, the last one that the scale knows.

        What its lane saw before and after isn't on record, so it is an episode of its own.
        """
        from tunegym.tuning.agents.sb3.learner import Step

        parts = self._parts
        seen = parts.flat.encode(Observation(trial.number, trial.context))
        decision = parts.learner.judge(seen, parts.view.encode(trial.action))
        return Step(len(self._scale) - 1, 0, seen, decision, seen, terminated=True, truncated=False)

    # what is kept -------------------------------------------------------------------------------------

    def _last_checkpoint(self) -> Checkpoint | None:
        from tunegym.tuning.agents.sb3.checkpoints import CheckpointError, load

        try:
            checkpoint = load(self.env.folder)
        except CheckpointError as error:
            logger.warning("the policy starts anew: %s", error)
            return None
        return checkpoint if checkpoint is not None and checkpoint.agent == self.name else None

    def _restored(self, checkpoint: Checkpoint) -> bool:
        """Be what the checkpoint says; False, with a warning, if it is of another network."""
        try:
            self._parts.learner.restore(checkpoint.state)
        except (ValueError, KeyError, RuntimeError, AttributeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            logger.warning("the policy starts anew: its checkpoint doesn't fit: %s", reason)
            return False
        return True

    def _say_where(self, checkpoint: int) -> None:
        """Tell a resumed run's user what the policy knows."""
        if not self._closed:
            return
        where = f"from its checkpoint after {checkpoint} trials" if checkpoint else "from nothing"
        later = self._closed - checkpoint
        if self._parts.learner.learns_from_the_past:
            rest = f"; the {self._closed} recorded trials are in its replay buffer"
        else:
            rest = f"; {later} later trials are on record, and {self.name} can't learn from them" if later else ""
        logger.info("%s goes on %s%s", self.name, where, rest)

    def _save(self) -> None:
        from tunegym.tuning.agents.sb3.checkpoints import Checkpoint, save

        folder = self.env.folder
        self._saved = self._closed
        with self._kept("a checkpoint"):
            kind = type(self._parts.view.space).__name__
            save(folder, Checkpoint(self.name, self._closed, kind, self._parts.learner.parameters()))
            table = policies.table_of(self.name, self._closed, self.env.experiment.env_params, self.choose)
            policies.save(folder, table)

    def _tell(self, told: dict[str, float]) -> None:
        place = self.env.folder / policies.FOLDER / TRAINING
        with self._kept("the training's curves"):
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("ab") as file:
                line = {"trials": self._closed, "values": told}
                file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    @contextlib.contextmanager
    def _kept(self, what: str) -> Iterator[None]:
        """What can't be kept is no reason to lose trials."""
        try:
            yield
        except OSError as error:
            logger.warning("%s could not be written: %s", what, error.strerror or error)

    @contextlib.contextmanager
    def _training(self) -> Iterator[None]:
        """What the algorithm raises is a ``TrainingError``."""
        try:
            yield
        except Exception as error:
            logger.debug("training failed", exc_info=True)
            text = " ".join(str(error).split())
            raise TrainingError(f"{type(error).__name__}: {text[:300]}") from error
