"""Policy agents: PPO, A2C, DQN and SAC, for trials and for live experiments.

On trials the agent owns the loop (ADR 15): lanes never wait for each other, numbers and contexts are the store's, and a
resume needs nothing but the journal and the last checkpoint. On a live system the library's own loop runs (ADR 22), in
``live``. Torch takes seconds to import, so it is imported when a run begins.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tunegym.core.errors import BudgetError, Problem
from tunegym.tuning.agents import policies
from tunegym.tuning.agents.base import (
    AgentConfig,
    BaseAgent,
    LiveAgent,
    LiveConfig,
    TrainingError,
    UnfitError,
    warm_start_problems,
)
from tunegym.tuning.agents.policies import Choice
from tunegym.tuning.agents.reward_scale import RewardScale
from tunegym.tuning.agents.sb3.checkpoints import Checkpoint, PolicyFiles
from tunegym.tuning.agents.sb3.config import (
    A2cConfig,
    DqnConfig,
    LiveA2cConfig,
    LiveDqnConfig,
    LivePolicyConfig,
    LivePpoConfig,
    LiveSacConfig,
    PolicyConfig,
    PpoConfig,
    SacConfig,
    problems,
)
from tunegym.tuning.model import space as knobs
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.space import Space
from tunegym.tuning.model.trial import Cancelled, Observation, Pruned, Trial
from tunegym.tuning.model.values import Action, Context, exact_key
from tunegym.tuning.ports import Env

if TYPE_CHECKING:
    from tunegym.tuning.agents.sb3.learners import Decision, Learner, Step
    from tunegym.tuning.envs.actions import ActionView
    from tunegym.tuning.envs.wrappers import FlatObservations

logger = logging.getLogger(__name__)

ASKED_PER_TRIAL = 2
"""The policy's table is written when there were this many times fewer trials than contexts since the last time."""
MOST_COMPARED = 1000
"""Most settings that are compared where the policy's own choice is known to fail."""
FEW = 16
TRIALS_EACH = 20
"""Knobs are one choice where there are few combinations, or this many trials for each."""


@dataclass(frozen=True, slots=True)
class _Flight:
    """A running trial: its observation, the decision, and the trials of its episode before it."""

    seen: np.ndarray
    decision: Decision
    taken: int


@dataclass(frozen=True)
class _Policy:
    """What a run builds first: how the policy sees knobs and observations, the learner, and the settings tried."""

    view: ActionView
    flat: FlatObservations
    learner: Learner
    history: SettingHistory


class PolicyAgent(BaseAgent, ABC):
    """Drives trials over all lanes, learns from each, and keeps its policy on disk.

    The journal is the truth: a resumed agent learns from its last checkpoint and the recorded trials. Rewards are
    scaled for the policy, never in the record. An error of the algorithm ends the run with code 1 and its reason in
    ``failure``; every trial up to then is recorded, and the policy is that of the last checkpoint.
    """

    Config: ClassVar[type[AgentConfig]] = PolicyConfig
    supports_variable_environment: ClassVar[bool] = True
    name: ClassVar[str]

    def __init__(self, env: Env, config: Any = None, seed: int = 0) -> None:
        super().__init__(env, config, seed)
        self._files = PolicyFiles(env.folder, self.name)
        self._scale = RewardScale()
        self._warm: Sequence[Trial] = ()
        self._built: _Policy | None = None
        self._closed = 0
        self._saved = 0
        self._tabled = 0
        self._contexts = len(policies.contexts_to_ask(env.experiment.env_params))
        self._episodes: dict[int, int] = {}

    @classmethod
    def refuse(cls, space: Space) -> Problem | None:
        """Stable-Baselines3 must be installed."""
        del space
        return _missing(cls.name)

    @classmethod
    def check(cls, experiment: Experiment, scenario_dir: Path) -> list[Problem]:
        """Refuse settings that no algorithm can work with."""
        config: PolicyConfig = experiment.agent_config
        return [*problems(config, experiment.most_trials), *warm_start_problems(config.warm_start, scenario_dir)]

    def warm_up(self, trials: Sequence[Trial]) -> None:
        """Keep another run's trials; a policy without a checkpoint is pre-trained on them."""
        self._warm = trials

    def run(self) -> int:
        """Train on trials until the budget is used up; 1 if the algorithm fails."""
        try:
            self._prepare()
            self._drive()
        except TrainingError as error:
            self.failure = f"training failed after {self._closed} trials: {error}"
            self._built = None  # a broken policy must not be asked
            while self.env.next_finished() is not None:  # running trials are still recorded
                pass
            return 1
        return 0

    def choose(self, context: Context) -> Choice | None:
        """The policy's preferred setting, of those that are known to work; None before it has learned anything."""
        if self._built is None or not self._built.learner.trained:
            return None
        policy, seen = self._built, self._typical(context)
        element, chance = policy.learner.greedy(seen)
        action = policy.view.decode(element)
        if not policy.history.works(context, action, element):
            others = policy.history.working(context)
            if others:
                liked = policy.learner.preference(seen, np.stack([element for _, element in others]))
                best = int(liked.argmax())
                action, chance = others[best][0], None if chance is None else float(liked[best])
        return Choice(action, chance)

    def _typical(self, context: Context) -> np.ndarray:
        """A lane's observation if only the context is known.

        In a longer episode most trials follow a measured one, and that is where the policy has learned most.
        """
        flat = self._policy.flat
        single = self.env.experiment.episode_steps == 1
        return flat.encode(Observation(0, context)) if single else flat.usual(context)

    # the loop -----------------------------------------------------------------------------------------

    def _drive(self) -> None:
        from tunegym.tuning.agents.sb3.algorithms import training

        env, policy = self.env, self._policy
        free = deque(range(env.slots))
        flights: dict[int, _Flight] = {}
        while True:
            while free and env.exhausted(free[0]) is None:
                lane = free[0]
                taken = self._episodes.get(lane, 0)
                shown = env.observe(lane)
                seen = policy.flat.encode(shown if taken else Observation(shown.number, shown.context))
                with training():
                    flights[lane] = _Flight(seen, self._decide(seen, shown.number), taken)
                try:
                    env.begin(policy.view.decode(flights[lane].decision.chosen), lane)
                except BudgetError:  # used up, or the run was stopped, since the last look
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
        policy = self._policy
        if number == 1 and self.config.start_action == "first":
            first = {name: knob.from_unit(0.0) for name, knob in self.env.space.knobs.items()}
            return policy.learner.judge(seen, policy.view.encode(first))
        return policy.learner.act(seen, number)

    def _learn(self, lane: int, trial: Trial, flight: _Flight) -> None:
        from tunegym.tuning.agents.sb3.algorithms import training
        from tunegym.tuning.agents.sb3.learners import Step

        policy = self._policy
        self._record(trial)
        self._closed += 1
        taken, steps = flight.taken + 1, self.env.experiment.episode_steps
        ended, single = taken >= steps, steps == 1
        self._episodes[lane] = 0 if ended else taken
        after = policy.flat.encode(self.env.observe(lane))
        index = len(self._scale) - 1
        step = Step(index, lane, flight.seen, flight.decision, after, ended and single, ended and not single)
        with training():
            policy.learner.take(step)
            due = policy.learner.due()
        if due:
            self._train()

    def _train(self, last: bool = False) -> None:
        from tunegym.tuning.agents.sb3.algorithms import training

        with training():
            values = self._policy.learner.train(self._closed, last=last)
        if values:
            self._files.log(self._closed, values)
            if self._closed - self._saved >= self.config.checkpoint_every:
                self._save()

    def _finish(self) -> None:
        """Learn from the rest, also of a stopped run: an on-policy agent couldn't do so later."""
        if self._closed > self._saved:
            self._train(last=True)
        if not self._policy.learner.trained:
            logger.warning("%s has learned nothing: %d trials are too few for an update", self.name, self._closed)
            return
        if self._closed > self._saved:
            self._save(last=True)
        self._files.save_model(self._policy.learner.model)

    def _save(self, last: bool = False) -> None:
        from tunegym.tuning.agents.sb3.algorithms import state_of, training

        self._saved = self._closed
        kind = type(self._policy.view.space).__name__
        self._files.save(Checkpoint(self.name, self._closed, kind, state_of(self._policy.learner.model)))
        # Asking in many contexts takes as long as choosing in many trials.
        if last or self._closed - self._tabled >= self._contexts / ASKED_PER_TRIAL:
            self._tabled = self._closed
            with training():
                table = policies.table_of(self.name, self._closed, self.env.experiment.env_params, self.choose)
            self._files.save_table(table)

    def _record(self, trial: Trial) -> None:
        """Learn the scales of rewards and metrics from a trial, and whether it worked."""
        policy = self._policy
        pruned = isinstance(trial.outcome, Pruned)
        # A setting weighs once in a context: repeating the best one must not shrink the differences of the others.
        weighs = not policy.history.measured(trial.context, trial.action)
        self._scale.add(trial.context, trial.reward, measured=trial.measured, pruned=pruned, weighs=weighs)
        if trial.measured and all(name in trial.metrics for name in self.env.experiment.agent_metrics):
            policy.flat.learn(trial.metrics)  # another run may not have measured all of them
        policy.history.add(trial, policy.view.encode(trial.action))

    # before the first trial ---------------------------------------------------------------------------

    @property
    def _policy(self) -> _Policy:
        assert self._built is not None
        return self._built

    @abstractmethod
    def _view(self, kind: str | None) -> ActionView:
        """How the algorithm sees the knobs; ``kind`` is the action space of the checkpoint, if there is one."""

    def _prepare(self) -> None:
        """Build the policy, and bring it to where it was."""
        from tunegym.tuning.agents.sb3.algorithms import training
        from tunegym.tuning.agents.sb3.learners import build_learner
        from tunegym.tuning.envs.wrappers import FlatObservations

        with training():
            checkpoint = self._files.last()
        view = self._view(checkpoint.actions if checkpoint is not None else None)
        flat = FlatObservations(self.env)
        most = self.env.experiment.most_trials
        with training():
            learner = build_learner(self.config, flat.space, view.space, self._scale, self.seed, most)
            restored = checkpoint is not None and self._files.restore(learner, checkpoint)
            if checkpoint is not None and not restored:  # it may be restored in part
                learner = build_learner(self.config, flat.space, view.space, self._scale, self.seed, most)
        self._built = _Policy(view, flat, learner, SettingHistory(continuous=learner.continuous))
        old: list[Step] = []
        for trial in self._warm:
            self._record(trial)
            old.append(self._past(trial))
        with training():
            learner.warm_up(old)
            if not restored:
                learner.pretrain(old)
        for trial in self.env.history():
            if isinstance(trial.outcome, Cancelled):  # it never ran
                continue
            self._closed += 1
            self._record(trial)
            if learner.off_policy:
                learner.take(self._past(trial))
        self._saved = min(checkpoint.closed, self._closed) if checkpoint is not None and restored else 0
        if self._closed:
            remembered = min(self._closed, self.config.buffer_size) if learner.off_policy else None
            self._files.report_resume(self._closed, self._saved, remembered)

    def _past(self, trial: Trial) -> Step:
        """The trial recorded last as a step; what its lane saw before it isn't on record."""
        from tunegym.tuning.agents.sb3.algorithms import training
        from tunegym.tuning.agents.sb3.learners import Step

        policy, single = self._policy, self.env.experiment.episode_steps == 1
        seen = self._typical(trial.context)
        after = seen if single else policy.flat.usual(self.env.context(trial.number + 1))
        with training():
            decision = policy.learner.judge(seen, policy.view.encode(trial.action))
        return Step(len(self._scale) - 1, 0, seen, decision, after, terminated=single, truncated=not single)


class SettingHistory:
    """The settings of closed trials and how they ended: a recommended setting should be one that worked.

    Args:
        continuous: judge an untried setting by its nearest neighbour; otherwise it isn't known to work.
    """

    def __init__(self, *, continuous: bool) -> None:
        self._continuous = continuous
        self._settings: dict[bytes, tuple[Action, np.ndarray]] = {}
        self._worked: set[bytes] = set()
        self._balance: dict[tuple[bytes, bytes], int] = {}
        self._measured: set[tuple[bytes, bytes]] = set()
        self._elements: np.ndarray | None = None

    def add(self, trial: Trial, element: Any) -> None:
        """Add a closed trial; ``element`` is its action in the policy's action space."""
        key = exact_key(trial.action)
        if key not in self._settings:
            self._settings[key] = trial.action, np.asarray(element)
            self._elements = None
        if isinstance(trial.outcome, Pruned):  # it ran, and was ended because it was slow
            return
        place = exact_key(trial.context), key
        self._balance[place] = self._balance.get(place, 0) + (1 if trial.measured else -1)
        if trial.measured:
            self._worked.add(key)
            self._measured.add(place)

    def measured(self, context: Context, action: Action) -> bool:
        """Whether a setting was measured in this context."""
        return (exact_key(context), exact_key(action)) in self._measured

    def works(self, context: Context, action: Action, element: Any) -> bool:
        """Whether a setting can be expected to work in a context."""
        key = exact_key(action)
        if self._continuous and key not in self._settings and self._settings:
            key = self._nearest(np.asarray(element))
        return self._usable(exact_key(context), key)

    def working(self, context: Context) -> list[tuple[Action, np.ndarray]]:
        """The newest settings that worked, with their elements, without those that failed in this context."""
        here = exact_key(context)
        usable = (one for key, one in reversed(self._settings.items()) if self._usable(here, key))
        return list(itertools.islice(usable, MOST_COMPARED))

    def _usable(self, here: bytes, key: bytes) -> bool:
        return key in self._worked and self._balance.get((here, key), 0) >= 0

    def _nearest(self, element: np.ndarray) -> bytes:
        if self._elements is None:
            self._elements = np.stack([one for _, one in self._settings.values()])
        away = self._elements - element
        nearest = int(np.argmin((away * away).sum(axis=1)))
        return next(itertools.islice(self._settings, nearest, None))


# agents of trials -------------------------------------------------------------------------------------


def _missing(name: str) -> Problem | None:
    if importlib.util.find_spec("stable_baselines3") is not None:
        return None
    what = f"the agent {name} needs the package stable-baselines3"
    return Problem("agent", what, found=f'"{name}"', hint="pip install 'tunegym[rl]'")


def _combinations(space: Space, bins: int) -> int:
    from tunegym.tuning.envs.actions import binned

    return math.prod(len(binned(knob, bins)) for knob in space.knobs.values())


class _OnPolicy(PolicyAgent):
    """Chooses among combinations where there are few, otherwise every knob by itself."""

    @classmethod
    def check(cls, experiment: Experiment, scenario_dir: Path) -> list[Problem]:
        """Refuse ``joint`` with too many combinations."""
        found = super().check(experiment, scenario_dir)
        if found or not experiment.agent_config.joint:
            return found
        from tunegym.tuning.envs.actions import LIMIT

        count = _combinations(experiment.space, experiment.agent_config.bins)
        if count <= LIMIT:
            return []
        what = f"there are {count} combinations to choose among"
        allowed = f"joint = true with up to {LIMIT} combinations"
        hint = "write joint = false, or give lists fewer candidates or ranges fewer bins"
        return [Problem("agent_config.joint", what, "true", allowed, hint)]

    def _view(self, kind: str | None) -> ActionView:
        from tunegym.tuning.agents.sb3.learners import HORIZON
        from tunegym.tuning.envs.actions import DiscreteView, MultiDiscreteView

        space, bins, joint = self.env.space, self.config.bins, self.config.joint
        if kind is not None:
            joint = kind == "Discrete"
        elif joint is None:
            trials = self.env.experiment.most_trials or HORIZON
            joint = _combinations(space, bins) <= max(FEW, trials // TRIALS_EACH)
        return DiscreteView(space, bins) if joint else MultiDiscreteView(space, bins)


class Ppo(_OnPolicy):
    """PPO: learns a policy for knobs of any kind; ranges are binned."""

    Config: ClassVar[type[AgentConfig]] = PpoConfig
    kinds: ClassVar[Mapping[str, str | None]] = {"trials": None, "live": f"{__name__}:LivePpo"}
    name: ClassVar[str] = "ppo"


class A2c(_OnPolicy):
    """A2C: like PPO, in smaller steps."""

    Config: ClassVar[type[AgentConfig]] = A2cConfig
    kinds: ClassVar[Mapping[str, str | None]] = {"trials": None, "live": f"{__name__}:LiveA2c"}
    name: ClassVar[str] = "a2c"


class Dqn(PolicyAgent):
    """DQN: learns the value of every combination, from all trials again and again; a few thousand at most."""

    Config: ClassVar[type[AgentConfig]] = DqnConfig
    kinds: ClassVar[Mapping[str, str | None]] = {"trials": None, "live": f"{__name__}:LiveDqn"}
    name: ClassVar[str] = "dqn"

    @classmethod
    def check(cls, experiment: Experiment, scenario_dir: Path) -> list[Problem]:
        """Refuse too many combinations."""
        config: DqnConfig = experiment.agent_config
        found = super().check(experiment, scenario_dir)
        count = 0 if found else _combinations(experiment.space, config.bins)
        if count <= config.max_actions:
            return found
        what = f"dqn numbers every combination, and there are {count}"
        allowed = f"up to max_actions = {config.max_actions}, or one of ppo, a2c, contextual_bandit"
        hint = 'give lists fewer candidates or ranges fewer bins (agent_config.bins), or write agent = "ppo"'
        return [Problem("agent", what, '"dqn"', allowed, hint)]

    def _view(self, kind: str | None) -> ActionView:
        from tunegym.tuning.envs.actions import DiscreteView

        return DiscreteView(self.env.space, self.config.bins, self.config.max_actions)


class Sac(PolicyAgent):
    """SAC: learns a policy over ranges."""

    Config: ClassVar[type[AgentConfig]] = SacConfig
    kinds: ClassVar[Mapping[str, str | None]] = {"trials": None, "live": f"{__name__}:LiveSac"}
    name: ClassVar[str] = "sac"

    @classmethod
    def refuse(cls, space: Space) -> Problem | None:
        """It moves through ranges."""
        lists = [name for name, knob in space.knobs.items() if isinstance(knob, knobs.Choice)]
        if not lists:
            return super().refuse(space)
        what = f"sac moves through ranges, and these knobs are lists: {', '.join(lists)}"
        allowed = "sac with ranges only; ppo, a2c, dqn and contextual_bandit take lists"
        return Problem("agent", what, '"sac"', allowed, 'write agent = "ppo", or make the lists ranges')

    def _view(self, kind: str | None) -> ActionView:
        from tunegym.tuning.envs.actions import BoxView

        return BoxView(self.env.space)


# agents of live experiments ---------------------------------------------------------------------------


class LivePolicy(LiveAgent):
    """Learns with an algorithm of Stable-Baselines3 in the library's own loop, and keeps its policy on disk.

    A resume continues from ``policy/checkpoint.pt``; the library's ``load`` takes ``policy/model.zip``.
    """

    Config: ClassVar[type[LiveConfig]] = LivePolicyConfig

    @classmethod
    def check(cls, experiment: Experiment, scenario_dir: Path) -> list[Problem]:
        """Stable-Baselines3 must be installed, and able to work with the settings."""
        del scenario_dir
        missing = _missing(cls.name)
        return [missing] if missing else problems(experiment.agent_config, experiment.most_trials)

    def _drive(self) -> None:
        from tunegym.tuning.agents.sb3.live import LiveTraining
        from tunegym.tuning.agents.sb3.vector import unfit

        reason = unfit(self.name, self.env.action_space, self.env.observation_space)
        if reason is not None:
            raise UnfitError(reason)
        LiveTraining(self.env, self.name, self.config, self.seed).run()


class LivePpo(LivePolicy):
    """PPO on a live system."""

    Config: ClassVar[type[LiveConfig]] = LivePpoConfig
    name: ClassVar[str] = "ppo"


class LiveA2c(LivePolicy):
    """A2C on a live system."""

    Config: ClassVar[type[LiveConfig]] = LiveA2cConfig
    name: ClassVar[str] = "a2c"


class LiveDqn(LivePolicy):
    """DQN on a live system."""

    Config: ClassVar[type[LiveConfig]] = LiveDqnConfig
    name: ClassVar[str] = "dqn"


class LiveSac(LivePolicy):
    """SAC on a live system."""

    Config: ClassVar[type[LiveConfig]] = LiveSacConfig
    name: ClassVar[str] = "sac"
