"""The engine of a live experiment: a server answers each step, one counter numbers them, the journal records them.

Numbers are reserved ahead, in blocks of less than half a second. An interrupt in the middle of a step ends the
episodes; steps that were not on record by then are lost.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy import ndarray

from tunegym.core.clock import Clock
from tunegym.core.errors import ActionError, BudgetError, StoreError, TunegymError
from tunegym.core.text import printable
from tunegym.tuning.envs.live.lane import Lane, Running, own_info, own_observation, start_all
from tunegym.tuning.envs.live.replay import Display, transitions
from tunegym.tuning.envs.score import NO_METRICS, BudgetClock, StepScore, StepTally
from tunegym.tuning.envs.structure import FindEncoding
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.trial import EpisodeEnd, JobHandle
from tunegym.tuning.model.values import Context
from tunegym.tuning.ports import Reward, Transition
from tunegym.tuning.servers.host import RAISED, ServerFailure, ServerHost, StepAnswer, failure_of
from tunegym.tuning.spaces import SHORT, SpaceError, element_of, has_nan
from tunegym.tuning.stores.columns import Step
from tunegym.tuning.stores.steps import StepStore

logger = logging.getLogger(__name__)

AHEAD_S = 0.4
MOST_AHEAD = 100_000
SHARE = 100
"""A block of reserved numbers is at most this part of the budget: a crash must not use it up."""


@dataclass(frozen=True)
class LiveParts:
    """The seams of a live engine."""

    experiment: Experiment
    hosts: Sequence[ServerHost]  # a server for each lane; not started yet
    store: StepStore
    folder: Path
    seed: int
    reward: Reward | None = None  # of a step's metrics; None if the server's own reward counts
    encodings: FindEncoding | None = None  # finds a class of encodings by its name; None for the built-in ones
    # ends servers that a killed driver left running; returns how many
    end_leftovers: Callable[[Sequence[JobHandle]], int] = lambda _: 0


class LiveEngine:
    """Implements ``LiveEnv``. One thread drives it, or after ``separate`` one for each lane. ``take_over`` comes first.

    ``stopping`` is asked before every step; of a quick system before some. Earlier sessions used ``spent_s`` of
    ``max_time``.
    """

    def __init__(
        self,
        parts: LiveParts,
        *,
        stopping: Callable[[], bool] = lambda: False,
        spent_s: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        self._parts = parts
        self.experiment = parts.experiment
        self.folder = parts.folder
        self.slots = len(parts.hosts)
        self._store = parts.store
        self._stopping = stopping
        self.tally = StepTally(parts.store.past)
        self.budget = BudgetClock(self.experiment.budget, self.tally, clock or Clock(), spent_s)
        self._env_params = self.experiment.env_params
        self._drawn, self._varies = bool(self._env_params), self._env_params.vary_in_episodes
        self._timed = self.experiment.budget.max_time_s is not None
        self._next = parts.store.upto + 1
        self._bound = 0
        self._block, self._reserved_at = 0, 0.0
        self._closed = self._interrupted = False
        self._lanes: list[Lane] = []
        self._lock = threading.RLock()
        self._separate = False
        self._recorded = 0  # of separate lanes: every number up to this one is recorded
        self._version: int | None = None  # of the policy that chose the step that is recorded now
        self._late: dict[int, list[Callable[[], None]]] = {}  # what to record once all earlier numbers are

    # before the first step ----------------------------------------------------------------------------

    def take_over(self) -> None:
        """End leftovers of a killed driver, start the servers, and count lost steps.

        Raises:
            ServerLostError: a server can't be started, or can't do what the experiment asks of it.
            StoreError: its spaces are not those on record.
        """
        parts, store = self._parts, self._store
        ended = parts.end_leftovers(store.leftovers())
        if ended:
            logger.warning("ended %d processes that a killed run had left behind", ended)
        start_all(parts.hosts, self.experiment)
        first = parts.hosts[0]
        actions, observations = store.declare(first.action_space, first.observation_space)
        self._display = Display(self.experiment, observations, parts.encodings)
        self._shown = self._display.shown if self._display.shows else None
        self.action_space: spaces.Space[Any] = actions
        self.observation_space = self._display.space
        self._score = StepScore(self.experiment, parts.reward, store)
        self._prepare(actions, observations)
        restarts = self.experiment.live.restarts if self.experiment.live is not None else 0
        self._lanes = [
            Lane(place, host, restarts, parts.seed, self._own, self._stopping) for place, host in enumerate(parts.hosts)
        ]
        if store.lost > 0:
            self.tally.others["cancelled"] += store.lost
            self.tally.done = store.upto
        self._next = store.upto + 1
        self.budget.pause()

    def _prepare(self, actions: spaces.Space[Any], observations: spaces.Space[Any]) -> None:
        """What depends on the spaces. The most common ones, with quick systems behind them, are checked inline."""
        self._observed = observations
        self._own = element_of(observations)
        self._own_action = element_of(actions)
        self._copies = not isinstance(actions, spaces.Discrete)  # a server may change what it is given
        self._lowest, self._highest = 0, -1
        if isinstance(actions, spaces.Discrete):
            self._lowest = int(actions.start)
            self._highest = self._lowest + int(actions.n) - 1
        short = isinstance(observations, spaces.Box) and len(observations.shape) == 1 and observations.shape[0] < SHORT
        floats = short and np.dtype(observations.dtype).kind == "f"
        self._dtype, self._shape = (np.dtype(observations.dtype), observations.shape) if floats else (None, None)
        self._add, self._pack, recording = self._store.add, self._store.pack, self._store.recording
        self._all, self._ends_only, self._every = recording.kind == "all", recording.kind == "episodes", recording.every

    # the port -----------------------------------------------------------------------------------------

    @property
    def shows_contexts(self) -> bool:
        """Whether an observation has its context beside it: then ``info`` has an episode's ``final_observation``."""
        return self._display.shows

    @property
    def taken(self) -> int:
        """How many numbers are used up."""
        return self._next - 1

    def exhausted(self) -> str | None:
        """Why no further step may be taken, or None."""
        return "the run is stopping" if self._stopping() else self.budget.exhausted(self._next)

    def reset(
        self, lane: int = 0, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin the lane's next episode."""
        one = self._lanes[lane]
        with self._lock:
            self._check_open()
            self._settle()
            self._finish(one, "reset")
            number = self._next + lane
            if self._separate:
                number = one.held = one.held or self._take()
        context = self._env_params.context(number)
        observation, info = self._begin(one, context, number, seed, options)
        with self._lock:
            self._store.begun += 1
            one.episode = Running(self._store.begun, number, context, self._pack(observation))
        told = {**info, "step": number, "episode_number": one.episode.number, "next_env_params": dict(context)}
        return self._display.shown(observation, context), told

    def step(self, action: Any, lane: int = 0) -> StepAnswer:
        """One step, recorded."""
        one = self._lanes[lane]
        if self.slots > 1:
            raise TunegymError("with several lanes each of them takes a step", hint="call step_all()")
        chosen = action
        if one.episode is None or type(action) is not int or not self._lowest <= action <= self._highest:
            chosen = self._accepted(action, one)
        number = self._next
        if number > self._bound or self._timed or not number & 31:  # whether to stop is asked now and then
            number = self._go_on(1)
        context = self._step_context(one, number) if self._varies else one.context
        began = perf_counter()
        self._next = number + 1
        try:
            try:
                if context is not one.context:
                    one.apply(context)
                answer = one.host.step(self._own_action(chosen) if self._copies else chosen)
            except RAISED as error:
                return _unless_stopped(self._failed(one, number, chosen, context, failure_of(error), began))
            try:
                return self._took(one, number, chosen, context, answer, began)
            except ServerFailure as failure:
                return _unless_stopped(self._failed(one, number, chosen, context, failure, began))
        except BaseException as error:
            self._cut_off(error)
            raise

    def step_all(self, actions: Sequence[Any]) -> list[StepAnswer]:
        """A step in each lane from 0."""
        lanes = self._lanes[: len(actions)]
        chosen = [self._accepted(action, one) for one, action in zip(lanes, actions, strict=True)]
        first, last = self._next, self._next + len(lanes) - 1
        if len(lanes) < self.slots and last != self.experiment.budget.agent_steps:
            what = f"{len(lanes)} actions for {self.slots} lanes"
            raise TunegymError(what, hint="only the last steps of the budget may be fewer")
        if last > self._bound or self._timed or self._stopping():
            self._go_on(len(lanes))
        contexts = [self._step_context(one, first + at) for at, one in enumerate(lanes)]
        self._next = last + 1
        try:
            begun = [self._send(one, chosen[at], contexts[at]) for at, one in enumerate(lanes)]
            answers = [
                self._receive(one, first + at, chosen[at], contexts[at], *begun[at]) for at, one in enumerate(lanes)
            ]
            return [*map(_unless_stopped, answers)]  # every lane's step is on record before this may raise
        except BaseException as error:
            self._cut_off(error)
            raise

    def separate(self) -> None:
        """Let each lane take its steps by itself."""
        self._separate, self._recorded = True, self._next - 1
        self._add = self._add_in_order

    def lane_step(self, action: Any, lane: int, weight_version: int | None = None) -> StepAnswer:
        """One step of one lane, recorded, while others take theirs."""
        one = self._lanes[lane]
        with self._lock:
            chosen = self._accepted(action, one)
            if one.held and self._stopping():
                raise BudgetError(f"step {one.held} may not be taken: the run is stopping")
            number, one.held = one.held or self._take(), 0
        began, failure, answer = perf_counter(), None, None
        try:
            answer = one.host.step(self._own_action(chosen))
        except RAISED as error:
            failure = failure_of(error)
        with self._lock:
            self._version = weight_version
            try:
                if failure is not None:
                    raise failure
                assert answer is not None
                return self._took(one, number, chosen, one.context, answer, began)
            except ServerFailure as found:
                return _unless_stopped(self._failed(one, number, chosen, one.context, found, began))

    def _take(self) -> int:
        number = self._go_on(1)
        self._next = number + 1
        return number

    def _add_in_order(self, step: Step) -> None:
        step.version = self._version
        self._in_order(step.number, partial(self._store.add, step))

    def _in_order(self, number: int, record: Callable[[], None]) -> None:
        """Record something of a step after everything of earlier numbers."""
        if number <= self._recorded:
            record()
            return
        self._late.setdefault(number, []).append(record)
        while found := self._late.pop(self._recorded + 1, None):
            self._recorded += 1
            for one in found:
                one()

    def _settle_separate(self) -> None:
        """All lanes are at rest: numbers that were held and not used are lost, or free again if none follows."""
        if self._separate:
            self._next = max(self._late, default=self._recorded) + 1
        while self._late:
            missing = self._recorded + 1
            self.tally.others["cancelled"] += self._store.lose(missing)
            self._in_order(missing, lambda: None)

    def transitions(self, last: int) -> Iterable[Transition]:
        """The newest recorded steps."""
        if self._store.recording.kind != "all":
            return ()
        self._store.flush()
        after = self.taken - last
        return transitions(self.folder, self.action_space, self._observed, self._env_params, self._display, after)

    def close(self, *, interrupted: bool = False) -> None:
        """Let go of the servers; open episodes are cut. Calling it twice is fine."""
        del interrupted  # a live step is never taken again
        if self._closed:
            return
        self._closed = True
        try:
            self._settle()
            self._settle_separate()
        finally:
            for one in self._lanes:
                self._finish(one, "cut")
            for host in self._parts.hosts:
                host.close()

    # before a step ------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise TunegymError("the environment is closed", hint="make another one: with resume= it continues this run")

    def _accepted(self, action: Any, one: Lane) -> Any:
        if one.episode is None:
            self._check_open()
            raise _no_episode()
        try:
            return self._own_action(action)
        except SpaceError as error:
            raise ActionError(f"the action is not of action_space: {error}", hint=str(self.action_space)) from error

    def _go_on(self, count: int) -> int:
        """The number of the next step; those of ``count`` steps are reserved. Raises if they may not be taken."""
        if self._interrupted:
            self._settle()
            raise _no_episode()
        last = self._next + count - 1
        reason = "the run is stopping" if self._stopping() else self.budget.exhausted(last)
        if reason is not None:
            raise BudgetError(f"step {last} may not be taken: {reason}")
        if last > self._bound:
            idle = self.budget.start()
            if idle:
                self._store.forgive(idle)
            self._bound = self._reserve(last)
        return self._next

    def _reserve(self, needed: int) -> int:
        """The last number that may be used now, at least ``needed``.

        A slow system's numbers are reserved one by one, right before use; a quick one's in blocks of ``AHEAD_S``.
        """
        reserved, limit = self._store.reserved, self.experiment.budget.agent_steps
        if needed <= reserved:
            return reserved
        now = perf_counter()
        took, self._reserved_at = now - self._reserved_at, now
        fits = int(self._block * AHEAD_S / took) if took > 0 else MOST_AHEAD
        most = MOST_AHEAD if limit is None else min(MOST_AHEAD, max(1, limit // SHARE))
        self._block = max(1, min(fits, 2 * self._block + 1, most))
        last = reserved + self._block
        last = max(needed, last if limit is None else min(last, limit))
        self._store.reserve(last)
        return last

    def _begin(
        self, one: Lane, context: Context, number: int, seed: int | None, options: dict[str, Any] | None
    ) -> tuple[Any, dict[str, Any]]:
        begun = one.begin(context, number, seed, options)
        self.tally.restarts = sum(each.restarted for each in self._lanes)
        return begun

    def _step_context(self, one: Lane, number: int) -> Context:
        episode = one.episode
        assert episode is not None
        if not self._varies or not episode.length:
            return one.context
        return self._env_params.step_context(episode.first, number)

    def _following(self, one: Lane, first: int, over: bool) -> Context:
        """The context that the lane's next step will have; ``first`` is its episode's first number."""
        number = self._next + one.place
        if over:
            return self._env_params.context(number)
        return self._env_params.step_context(first, number) if self._varies else dict(one.context)

    # the answer ---------------------------------------------------------------------------------------

    def _send(self, one: Lane, action: Any, context: Context) -> tuple[ServerFailure | None, float]:
        began = perf_counter()
        try:
            if context is not one.context:
                one.apply(context)
            one.host.send(self._own_action(action))
        except ServerFailure as failure:
            return failure, began
        return None, began

    def _receive(
        self, one: Lane, number: int, action: Any, context: Context, failure: ServerFailure | None, began: float
    ) -> StepAnswer | None:
        try:
            if failure is not None:
                raise failure
            answer = one.host.receive()
            began = perf_counter() - one.host.seconds  # as if it had been waited for alone
            return self._took(one, number, action, context, answer, began)
        except ServerFailure as found:
            return self._failed(one, number, action, context, found, began)

    def _took(
        self, one: Lane, number: int, action: Any, context: Context, answer: StepAnswer, began: float
    ) -> StepAnswer:
        """Record an answered step.

        Raises ``ServerFailure`` if the answer is no measurement: nothing is recorded. The episode then knows as much as
        the answer tells: whether it ends, and its last observation.
        """
        duration = perf_counter() - began
        episode = one.episode
        assert episode is not None
        try:
            observation, reward, terminated, truncated, info = answer
        except RAISED:
            raise ServerFailure("step: it did not return five values") from None
        over = False
        if terminated is not False or truncated is not False:
            episode.terminated, episode.truncated = terminated, truncated = _flag(terminated), _flag(truncated)
            over = terminated or truncated
        if type(observation) is ndarray and observation.dtype is self._dtype and observation.shape == self._shape:
            total = sum(observation.tolist())
            if total != total and has_nan(observation):  # only then: a call costs as much as the sum
                raise ServerFailure("step: the observation is not of observation_space: it holds NaN")
            observation = observation.copy()
            episode.seen = observation.tobytes()
        else:
            observation = own_observation(self._own, observation, "step")
            episode.seen = self._pack(observation)
        score, metrics = self._score, NO_METRICS
        if type(info) is not dict:
            info = own_info(info, "step")
        if type(reward) is not float or not score.low <= reward <= score.high:
            reward, metrics = score.score(reward, info)
        one.failures = 0
        episode.last = number
        episode.length += 1
        episode.total += reward
        if self._all or (over if self._ends_only else number % self._every == 0):
            step = Step(
                number=number,
                episode=episode.number,
                action=action,
                observation=episode.seen,
                reward=reward,
                duration=duration,
                terminated=terminated,
                truncated=truncated,
                context=context,
                metrics=metrics,
            )
            self._add(step)
        elif self._separate:
            self._in_order(number, partial(setattr, self._store, "upto", number))
        else:
            self._store.upto = number
        return self._answer(
            one, episode, number, observation, reward, terminated, truncated, info, context, metrics, "measured", ""
        )

    def _failed(
        self, one: Lane, number: int, action: Any, context: Context, failure: ServerFailure, began: float
    ) -> StepAnswer | None:
        """Record a step without a measurement, which ends its episode; None if the run was stopped meanwhile."""
        stopped = self._stopping()
        self._bound = 0  # the next step asks whether it may be taken
        status, reason = ("cancelled", "the run was stopped while it ran") if stopped else ("failed", str(failure))
        penalty, duration = self._score.penalty(), perf_counter() - began
        one.lost = failure if failure.lost else None
        episode = one.episode
        assert episode is not None
        episode.last = number
        episode.length += 1
        episode.total += penalty
        if self.tally.statuses["measured"]:  # counted here: a measured step has no time for it
            self.budget.failures.add("measured")
        self.budget.failures.add(status, reason)
        self.tally.failure = self.tally.failure if stopped else reason
        terminated = episode.terminated
        truncated = episode.truncated or not (terminated or stopped)
        step = Step(
            number=number,
            episode=episode.number,
            action=action,
            observation=episode.seen,
            reward=penalty,
            duration=duration,
            terminated=terminated,
            truncated=truncated,
            context=context,
            metrics={},
            unmeasured=(status, printable(reason)),
        )
        self._add(step)
        self.tally.others[status] += 1
        last = self._own(self._store.unpack(episode.seen))
        told = self._answer(one, episode, number, last, penalty, terminated, truncated, {}, context, {}, status, reason)
        return None if stopped else told

    def _answer(
        self,
        one: Lane,
        episode: Running,
        number: int,
        observation: Any,
        reward: float,
        terminated: bool,
        truncated: bool,
        info: dict[str, Any],
        context: Context,
        metrics: Mapping[str, float],
        status: str,
        reason: str,
    ) -> StepAnswer:
        """What the caller gets of a step that is on record, which may end its episode."""
        over = terminated or truncated
        self.tally.done = number
        following: Context = self._following(one, episode.first, over) if self._drawn else {}
        told: dict[str, Any] = {
            "step": number,
            "episode_number": episode.number,
            "status": status,
            "reason": reason,
            "cached": False,
            "metrics": {**metrics} if metrics else {},
            "env_params": {**context} if context else {},
            "next_env_params": following,
        }
        told = {**info, **told} if info else told
        if over:
            failed = status == "failed" and not episode.truncated
            self._finish(one, "terminated" if terminated else "failed" if failed else "truncated")
        if self._shown is not None:
            if over:  # the last observation belongs to its own conditions, not to the next ones
                told["final_observation"] = self._shown(self._own(observation), context)
            observation = self._shown(observation, following)
        return observation, reward, terminated, truncated, told

    def _finish(self, one: Lane, end: EpisodeEnd) -> None:
        """The lane's episode is over, if there is one."""
        finished = one.finished(end)
        if finished is not None:
            self._in_order(finished.last if self._separate else 0, partial(self._store.episode_over, finished))
            self.tally.episodes += 1
            if end in ("terminated", "truncated"):
                self.tally.returns.append(finished.total)

    # an interrupt -------------------------------------------------------------------------------------

    def _cut_off(self, error: BaseException) -> None:
        """A step ended with an exception. An error of ours leaves every number on record; an interrupt may not."""
        self._bound = 0  # the next step asks whether it may be taken
        if not isinstance(error, TunegymError):
            self._interrupted = True
            with contextlib.suppress(StoreError):  # the next call raises it; now the interrupt is raised
                self._settle()

    def _settle(self) -> None:
        """After an interrupt: cut the episodes, and record numbers as lost. Interrupted itself, it is done again."""
        if not self._interrupted:
            return
        for one in self._lanes:
            self._finish(one, "cut")
        self.tally.others["cancelled"] += self._store.lose(self._next - 1)
        self.tally.done = self._next - 1
        self._interrupted = False


def _no_episode() -> TunegymError:
    return TunegymError("the episode is over, or none has begun", hint="call reset() first")


def _unless_stopped(answer: StepAnswer | None) -> StepAnswer:
    if answer is None:
        raise BudgetError("the run was stopped while the step ran")
    return answer


def _flag(found: Any) -> bool:
    try:
        return bool(found)
    except RAISED:
        raise ServerFailure(f"step: {found!r:.60} is neither true nor false") from None
