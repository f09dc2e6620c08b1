"""The engine of a live experiment: a server answers each step, one counter numbers them, the journal records them.

Numbers are reserved ahead, in blocks of less than half a second. An interrupt in the middle of a step ends the
episodes; steps that were not on record by then are lost.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from gymnasium import spaces

from tunegym.core.clock import Clock, SystemClock
from tunegym.core.errors import ActionError, BudgetError, StoreError, TunegymError
from tunegym.core.randomness import integer
from tunegym.tuning.envs.live.lane import Lane, Running, start_all
from tunegym.tuning.envs.live.record import Display, Recorder, transitions
from tunegym.tuning.envs.score import BudgetClock, StepScore, StepTally
from tunegym.tuning.envs.structure import FindEncoding
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.trial import JobHandle
from tunegym.tuning.model.values import Context
from tunegym.tuning.ports import Reward, Transition
from tunegym.tuning.servers.host import RAISED, ServerFailure, ServerHost, StepAnswer, failure_of
from tunegym.tuning.spaces import SpaceError, element_of
from tunegym.tuning.stores.steps import StepStore

logger = logging.getLogger(__name__)

AHEAD_S = 0.4
MOST_AHEAD = 100_000
SHARE = 100
"""A block of reserved numbers is at most this part of the budget: a crash must not use it up."""


@dataclass(frozen=True)
class LiveParts:
    """The seams of a live engine.

    Attributes:
        hosts: a server for each lane; not started yet.
        reward: of a step's metrics; None if the server's own reward counts.
        encodings: finds a class of encodings by its name; None for the built-in ones.
        end_leftovers: ends servers that a killed driver left running; returns how many.
    """

    experiment: Experiment
    hosts: Sequence[ServerHost]
    store: StepStore
    folder: Path
    seed: int
    reward: Reward | None = None
    encodings: FindEncoding | None = None
    end_leftovers: Callable[[Sequence[JobHandle]], int] = lambda _: 0


class _Reservation:
    """Reserves blocks of numbers in the store, as large as the pace of steps asks for.

    A slow system's numbers are reserved one by one, right before use; a quick one's in blocks of ``AHEAD_S``.
    """

    def __init__(self, store: StepStore, limit: int | None) -> None:
        self._store = store
        self._limit = limit
        self._most = MOST_AHEAD if limit is None else min(MOST_AHEAD, max(1, limit // SHARE))
        self._size = 0
        self._at = 0.0

    def upto(self, needed: int) -> int:
        """The last number that may be used now; at least ``needed``."""
        if needed <= self._store.reserved:
            return self._store.reserved
        now = perf_counter()
        took = now - self._at
        fits = int(self._size * AHEAD_S / took) if took > 0 else MOST_AHEAD
        self._at = now
        self._size = max(1, min(fits, 2 * self._size + 1, self._most))
        last = max(needed, self._store.reserved + self._size)
        if self._limit is not None:
            last = max(needed, min(last, self._limit))
        self._store.reserve(last)
        return last


class LiveEngine:
    """Implements ``LiveEnv``. One thread drives it. ``take_over`` comes before everything else.

    Args:
        parts: the seams.
        stopping: True means that no step may be taken; asked before every one, of a quick system before some.
        spent_s: time that earlier sessions used of ``max_time``.
        clock: for the budget.
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
        self._store = store = parts.store
        self._stopping = stopping
        self.tally = StepTally(store.past)
        self._clock = clock or SystemClock()
        self.budget = BudgetClock(self.experiment.budget, self.tally, self._clock, spent_s)
        self._env_params = self.experiment.env_params
        self._varies = self._env_params.vary_in_episodes
        self._reservation = _Reservation(store, self.experiment.budget.agent_steps)
        self._timed = self.experiment.budget.max_time_s is not None
        self._next = store.upto + 1
        self._bound = 0
        self._closed = False
        self._lowest, self._highest = 0, -1
        self._lanes: list[Lane] = []
        self._interrupted = False

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
        self.action_space: spaces.Space[Any] = actions
        self.observation_space = self._display.space
        self._observed = observations
        self._own_action = element_of(actions)
        self._given = self._own_action
        self._copies = not isinstance(actions, spaces.Discrete)  # a server may change what it is given
        if isinstance(actions, spaces.Discrete):  # the most common ones need no second look
            self._lowest = int(actions.start)
            self._highest = self._lowest + int(actions.n) - 1
        own = element_of(observations)
        following = self._following if self._env_params else None
        score = StepScore(self.experiment, parts.reward, store)
        self._recorder = Recorder(store, score, self._display, self.tally, observations, following)
        self._took = self._recorder.took
        restarts = self.experiment.live.restarts if self.experiment.live is not None else 0
        self._lanes = [Lane(place, host, restarts, own, self._stopping) for place, host in enumerate(parts.hosts)]
        if store.lost > 0:
            self.tally.others["cancelled"] += store.lost
            self.tally.done = store.upto
        self._next = store.upto + 1
        self.budget.pause()

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
        if self._stopping():
            return "the run is stopping"
        return self.budget.exhausted(self._next)

    def reset(
        self, lane: int = 0, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin the lane's next episode."""
        self._check_open()
        self._settle()
        one = self._lanes[lane]
        self._recorder.finish(one, "reset")
        number = self._upcoming(lane)
        context = self._env_params.context(number)
        derived = seed if seed is not None else self._seed_of(lane, number)
        observation, info = one.begin(context, derived, options)
        self._note_restarts()
        self._store.begun += 1
        one.episode = Running(self._store.begun, number, context)
        told = {**info, "step": number, "episode_number": one.episode.number, "next_env_params": dict(context)}
        return self._display.shown(observation, context), told

    def step(self, action: Any, lane: int = 0) -> StepAnswer:
        """One step, recorded."""
        one = self._lanes[lane]
        if self.slots > 1:
            raise TunegymError("with several lanes each of them takes a step", hint="call step_all()")
        chosen, episode = action, one.episode
        if episode is None or type(action) is not int or not self._lowest <= action <= self._highest:
            chosen = self._accepted(action, one)
        number = self._next
        if number > self._bound or self._timed or not number & 31:  # whether to stop is asked now and then
            number = self._go_on(1)
        context = self._step_context(one, number) if self._varies else one.context
        began = perf_counter()
        try:
            self._next = number + 1
            try:
                if context is not one.context:
                    one.apply(context)
                answer = one.host.step(self._given(chosen) if self._copies else chosen)
            except RAISED as error:
                return self._failed(one, number, chosen, context, failure_of(error), began)()
            try:
                return self._took(one, number, chosen, context, answer, began)
            except ServerFailure as failure:
                return self._failed(one, number, chosen, context, failure, began)()
        except BaseException as error:
            self._cut_off(error)
            raise

    def step_all(self, actions: Sequence[Any]) -> list[StepAnswer]:
        """A step in each lane from 0."""
        lanes = self._lanes[: len(actions)]
        chosen = [self._accepted(action, one) for one, action in zip(lanes, actions, strict=True)]
        first = self._next
        last = first + len(lanes) - 1
        if len(lanes) < self.slots and last != self.experiment.budget.agent_steps:
            what = f"{len(lanes)} actions for {self.slots} lanes"
            raise TunegymError(what, hint="only the last steps of the budget may be fewer")
        if last > self._bound or self._timed or self._stopping():
            first = self._go_on(len(lanes))
            last = first + len(lanes) - 1
        contexts = [self._step_context(one, first + at) for at, one in enumerate(lanes)]
        try:
            self._next = last + 1
            return self._step_all(lanes, first, chosen, contexts)
        except BaseException as error:
            self._cut_off(error)
            raise

    def _step_all(self, lanes: list[Lane], first: int, chosen: list[Any], contexts: list[Context]) -> list[StepAnswer]:
        begun = [self._send(one, chosen[at], contexts[at]) for at, one in enumerate(lanes)]
        answers: list[Callable[[], StepAnswer]] = []
        for at, (one, (failure, began)) in enumerate(zip(lanes, begun, strict=True)):
            number, context = first + at, contexts[at]
            try:
                if failure is not None:
                    raise failure
                answer = one.host.receive()
                began = perf_counter() - one.host.seconds  # as if it had been waited for alone
                taken = self._took(one, number, chosen[at], context, answer, began)
                answers.append(lambda taken=taken: taken)
            except ServerFailure as found:
                answers.append(self._failed(one, number, chosen[at], context, found, began))
        return [answer() for answer in answers]  # every lane's step is on record before one of them may raise

    def _send(self, one: Lane, action: Any, context: Context) -> tuple[ServerFailure | None, float]:
        began = perf_counter()
        try:
            if context is not one.context:
                one.apply(context)
            one.host.send(self._given(action))
        except ServerFailure as failure:
            return failure, began
        return None, began

    def transitions(self, last: int) -> Iterable[Transition]:
        """The newest recorded steps."""
        if self._store.recording.kind != "all":
            return ()
        self._store.flush()
        return transitions(
            self.folder, self.action_space, self._observed, self._env_params, self._display, self.taken - last
        )

    def close(self, *, interrupted: bool = False) -> None:
        """Let go of the servers; open episodes are cut. Calling it twice is fine."""
        del interrupted  # a live step is never taken again
        if self._closed:
            return
        self._closed = True
        try:
            self._settle()
        finally:
            for one in self._lanes:
                self._recorder.finish(one, "cut")
            for host in self._parts.hosts:
                host.close()

    # a step -------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise TunegymError("the environment is closed", hint="make another one: its steps go into a new folder")

    def _check_begun(self, one: Lane) -> None:
        if one.episode is None:
            self._check_open()
            raise _no_episode()

    def _accepted(self, action: Any, one: Lane) -> Any:
        self._check_begun(one)
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
            self._bound = self._reservation.upto(last)
        return self._next

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
            self._recorder.finish(one, "cut")
        self.tally.others["cancelled"] += self._store.lose(self._next - 1)
        self.tally.done = self._next - 1
        self._interrupted = False

    def _upcoming(self, lane: int) -> int:
        return self._next + lane

    def _step_context(self, one: Lane, number: int) -> Context:
        episode = one.episode
        assert episode is not None
        if not self._varies or not episode.length:
            return one.context
        return self._env_params.step_context(episode.first, number)

    def _following(self, one: Lane, episode: Running, over: bool) -> Context:
        """The context that the lane's next step will have."""
        number = self._upcoming(one.place)
        if over:
            return self._env_params.context(number)
        return self._env_params.step_context(episode.first, number) if self._varies else dict(one.context)

    def _failed(
        self, one: Lane, number: int, chosen: Any, context: Context, failure: ServerFailure, began: float
    ) -> Callable[[], StepAnswer]:
        """Record a step without a measurement; returns the call that continues the episode from a new beginning."""
        stopped = self._stopping()
        self._bound = 0  # the next step asks whether it may be taken
        status, reason = ("cancelled", "the run was stopped while it ran") if stopped else ("failed", str(failure))
        penalty, told = self._recorder.failed(one, number, chosen, context, status, reason, began)
        episode = one.episode
        assert episode is not None

        def go_on() -> StepAnswer:
            if stopped:
                raise BudgetError("the run was stopped while the step ran")
            one.start_again(failure, lost=failure.lost)
            following = self._following(one, episode, False) if self._varies else context
            observation, info = one.begin(following, self._seed_of(one.place, number), None)
            self._note_restarts()
            begun = {**info, **told, "next_env_params": dict(following)}
            return self._display.shown(observation, following), penalty, False, False, begun

        return go_on

    def _seed_of(self, lane: int, number: int) -> Callable[[], int]:
        return lambda: integer(self._parts.seed, 2**31 - 1, "server", lane, number)

    def _note_restarts(self) -> None:
        self.tally.restarts = sum(one.restarted for one in self._lanes)


def _no_episode() -> TunegymError:
    return TunegymError("the episode is over, or none has begun", hint="call reset() first")
