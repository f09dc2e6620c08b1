"""The driver's side of collectors: it owns the engine and the journal, and steps lanes for them.

``LiveLanes`` and ``TrialLanes`` show both kinds of experiment as flat observations and choices of a policy, with one
counter and one writer. ``Collectors`` runs a process for each lane, and a thread that answers it, so that lanes don't
wait for each other. A process that dies is replaced; the successor goes on in the lane's open episode.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces.utils import flatten_space

from tunegym.asyncrl.admission import Gate
from tunegym.asyncrl.collector import flat, start_child
from tunegym.core.errors import BudgetError
from tunegym.core.wire import ConnectionClosedError
from tunegym.tuning.agents.base import TrainingError
from tunegym.tuning.agents.live_learner import Draws
from tunegym.tuning.envs.actions import ActionView, choice_space, server_action
from tunegym.tuning.envs.wrappers import FlatObservations
from tunegym.tuning.model.trial import Observation, Trial
from tunegym.tuning.ports import Env, LiveEnv
from tunegym.tuning.servers.process import BoundedLog

logger = logging.getLogger(__name__)

RESTARTS = 5
"""A collector that dies more often than this in a row, without a step in between, is not started again."""
ASK_S = 0.5
"""A collector that waits for admission is answered this often, so that its death is noticed."""
GRACE_S = 2.0

Shown = tuple[np.ndarray, dict[str, Any]]  # a lane's observation, and an info with ``episode`` and ``context``
Taken = tuple[np.ndarray, float, bool, bool, dict[str, Any]]  # the info has the step's ``number``


class LiveLanes:
    """The lanes of a live experiment. A thread for each calls ``reset`` and ``step``."""

    def __init__(self, env: LiveEnv) -> None:
        self._env = env
        env.separate()
        self.choices = choice_space(env.action_space)
        self.inputs = int(np.prod(flatten_space(env.observation_space).shape or (1,)))
        # If no context is shown, a `final_observation` in the info is the server's own.
        self._shows = any(param.encoding is not None for param in env.experiment.env_params.params.values())

    def reset(self, lane: int) -> Shown:
        """Begin the lane's next episode."""
        seen, info = self._env.reset(lane)
        shown = {"episode": info["episode_number"], "context": info["next_env_params"]}
        return flat(self._env.observation_space, seen), shown

    def step(self, lane: int, chosen: np.ndarray, version: int) -> Taken:
        """One step of the lane's server. Raises ``BudgetError`` if none may be taken any more."""
        action = server_action(self._env.action_space, chosen)
        seen, reward, terminated, truncated, info = self._env.lane_step(action, lane, version)
        if self._shows and (terminated or truncated):  # it is shown under the next episode's context already
            seen = info["final_observation"]
        return flat(self._env.observation_space, seen), reward, terminated, truncated, {"number": info["step"]}


class TrialLanes:
    """The lanes of an experiment of trials: a step is a trial. ``closed`` is called with each, one at a time."""

    def __init__(self, env: Env, flats: FlatObservations, view: ActionView, closed: Callable[[Trial], None]) -> None:
        self._env, self._flat, self._view, self._told = env, flats, view, closed
        self._single = env.experiment.episode_steps == 1
        self._changed = threading.Condition()
        self._begun = threading.Semaphore(0)
        self._waiting: set[int] = set()
        self._finished: dict[int, Trial | None] = {}  # by lane; None if the run stopped before it closed
        self._taken: dict[int, int] = {}  # trials of each lane's episode
        self._episodes = 0
        self._error: BaseException | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._finish, name="tunegym-trials", daemon=True)
        self._thread.start()

    def reset(self, lane: int) -> Shown:
        """The context of the lane's next trial, without a trial before it."""
        with self._changed:
            shown = self._env.observe(lane)
            self._taken[lane] = 0
            self._episodes += 1
            seen = self._flat.encode(Observation(shown.number, shown.context))
            return seen, {"episode": self._episodes, "context": dict(shown.context)}

    def step(self, lane: int, chosen: np.ndarray, version: int) -> Taken:
        """One trial. Raises ``BudgetError`` if none may be started any more."""
        action = self._view.decode(chosen)
        with self._changed:
            self._env.begin(action, lane, version)
            self._waiting.add(lane)
            self._begun.release()
            self._changed.wait_for(lambda: lane in self._finished)
            self._waiting.discard(lane)
            trial = self._finished.pop(lane, None)
            if trial is None:
                raise BudgetError("the run is stopping") if self._error is None else self._error
            self._taken[lane] += 1
            over = self._taken[lane] >= self._env.experiment.episode_steps
            after = self._flat.encode(self._env.observe(lane))
        return after, trial.reward, over and self._single, over and not self._single, {"number": trial.number}

    def _finish(self) -> None:
        """Wait for trials to close, and tell their lanes."""
        while self._begun.acquire() and not self._closing:
            finished = None
            try:
                finished = self._env.next_finished()
            except BaseException as error:  # raised in the lanes that wait
                self._error = error
            with self._changed:
                if finished is None:
                    self._finished |= dict.fromkeys(self._waiting - self._finished.keys())
                else:
                    self._finished[finished[0]] = finished[1]
                    self._told(finished[1])
                self._changed.notify_all()

    def close(self) -> None:
        """End the thread. No step is under way."""
        self._closing = True
        self._begun.release()
        self._thread.join()


class Collectors:
    """``count`` collector processes, each over one of the ``lanes``; their logs are in ``folder``.

    ``setup`` is what ``collector.main`` is told, with a name and a seed by ``draws``. No two sessions share a name.
    """

    def __init__(
        self, lanes: LiveLanes | TrialLanes, count: int, gate: Gate, setup: dict[str, Any], folder: Path, draws: Draws
    ) -> None:
        self._lanes, self._gate, self._setup, self._folder, self._draws = lanes, gate, setup, folder, draws
        self._name = uuid.uuid4().hex[:8]
        self._shown: dict[int, Shown] = {}  # of lanes with an open episode
        self._versions: dict[int, int] = {}  # with which a lane's collector acts
        self._error: BaseException | None = None
        self._closing = False
        self.restarts = 0
        self._threads = [
            threading.Thread(target=self._keep, args=(lane,), name=f"tunegym-collector-{lane}", daemon=True)
            for lane in range(count)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def over(self) -> bool:
        """Whether none will make another rollout. Raises what went wrong."""
        if self._error is not None:
            raise self._error
        return not any(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """End them. A step that is under way is finished first."""
        self._closing = True
        self._gate.close()
        for thread in self._threads:
            thread.join()

    def _keep(self, lane: int) -> None:
        """Keep a collector at work in a lane, until there are no more steps."""
        failures = life = 0
        log = BoundedLog(self._folder / f"collector-{lane}.log")
        try:
            while not self._closing:
                life += 1
                owner = f"{self._name}-{lane}-{life}"
                log.mark()
                over, steps, ending = self._live(lane, owner, log)
                self._gate.abandon(owner)
                if over or self._closing:
                    return
                failures = 0 if steps else failures + 1
                reason = f"{ending}: {log.last_line()}".rstrip(": ")
                logger.warning("collector %d ended (%s): another one takes over", lane, reason)
                self.restarts += 1
                if failures > RESTARTS:
                    raise TrainingError(f"collector {lane} died {failures} times in a row, at last with: {reason}")
        except BaseException as error:  # raised in the learner's thread
            self._error = error
        finally:
            log.close()

    def _live(self, lane: int, owner: str, log: BoundedLog) -> tuple[bool, int, str]:
        """One process from its start to its end: whether the lane is done, the steps taken, and how it ended."""
        child, connection = start_child("tunegym.asyncrl.collector:main", log.fd)
        seed = self._draws.integer(2**63, "collect", owner.partition("-")[2], self._gate.version)
        steps, over = 0, False
        try:
            connection.send({**self._setup, "name": owner, "seed": seed})
            while True:
                call, *arguments = connection.receive()
                steps += call == "step"
                try:
                    answer = self._answer(lane, call, arguments)
                except BudgetError as error:  # it puts what it has, and ends
                    answer, over = {"over": str(error)}, True
                connection.send(answer)
        except ConnectionClosedError:
            over = over or self._gate.closed
        finally:
            connection.close()
            child.wait(GRACE_S)
            ending = child.end(GRACE_S)
        return over, steps, ending.describe()

    def _answer(self, lane: int, call: str, arguments: list[Any]) -> Any:
        if call == "step":
            if self._closing:  # the learner has failed
                raise BudgetError("the run is stopping")
            seen, reward, terminated, truncated, _ = taken = self._lanes.step(lane, arguments[0], self._versions[lane])
            _, known = self._shown[lane]
            self._shown[lane] = seen, {**known, "return": known["return"] + reward}
            if terminated or truncated:
                del self._shown[lane]
            return taken
        if call == "reset":
            if lane not in self._shown:
                seen, info = self._lanes.reset(lane)
                self._shown[lane] = seen, {**info, "return": 0.0}
            return self._shown[lane]
        if call == "start":
            self._versions[lane] = arguments[-1]
            return self._gate.start(*arguments, timeout_s=ASK_S)
        return getattr(self._gate, call)(*arguments)  # ``ready``, ``abandon`` or ``lose``
