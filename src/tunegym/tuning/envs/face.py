"""The Gymnasium face of an experiment of either kind.

``TrialFace`` shows trials as steps: it offers ``reset``, ``step`` and ``step_all`` lane by lane, as a ``LiveEngine``
does for its servers. ``TuneEnv`` and ``LiveTuneEnv`` are Gymnasium environments over the two, ``TuneVectorEnv`` and
``LiveVectorEnv`` vector environments.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from tunegym.core.errors import ActionError, BudgetError, TunegymError
from tunegym.tuning.codec import ActionCodec
from tunegym.tuning.envs.live.engine import LiveEngine
from tunegym.tuning.envs.structure import structure_of
from tunegym.tuning.envs.trials.engine import TrialEngine
from tunegym.tuning.model.space import Space
from tunegym.tuning.model.trial import Observation, Trial
from tunegym.tuning.model.values import Action, Scalar
from tunegym.tuning.ports import ENV_ID

Five: TypeAlias = tuple[Any, float, bool, bool, dict[str, Any]]
"""Observation, reward, terminated, truncated, info."""
_LARGEST = float(np.finfo(np.float32).max)


class TrialFace:
    """Trials as Gymnasium steps, lane by lane.

    Observations are a float32 ``Box`` with one slot per agent metric and a ``measured`` slot, and, where the
    environment is ``Structured``, a ``Dict`` of that and the encoded context of the next trial. An episode of one step
    terminates, as nothing follows from it; a longer one is truncated. ``reset`` moves neither the counter nor any
    context, whatever its seed.
    """

    shows_contexts = False

    def __init__(self, engine: TrialEngine) -> None:
        self._engine = engine
        self.experiment = engine.experiment
        codec = ActionCodec(engine.space)
        self.encode_action = codec.encode
        self.decode_action = codec.decode
        self.action_space: spaces.Space[Any] = codec.action_space
        self._metrics = self.experiment.agent_metrics
        self._episode_steps = self.experiment.episode_steps
        self._structure = structure_of(engine)
        self._taken: dict[int, int] = {}
        self._upcoming: dict[int, tuple[Observation, Mapping[str, Any]]] = {}
        self._closed = False
        box = spaces.Box(-np.inf, np.inf, shape=(len(self._metrics) + 1,), dtype=np.float32)
        self.observation_space: spaces.Space[Any] = box
        if self._structure is not None:
            self.observation_space = spaces.Dict({"observation": box, "context": self._structure.space})

    @property
    def space(self) -> Space:
        """The knobs, in native values."""
        return self._engine.space

    def reset(
        self, lane: int = 0, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin the lane's episode: shows the context of the next trial, and no metrics."""
        del seed, options
        self._check_open()
        self._taken[lane] = 0
        upcoming, leaves = self._upcoming.get(lane) or self._observe(lane)
        info = {"step": upcoming.number, "next_env_params": dict(upcoming.context)}
        return self._observation(np.zeros(len(self._metrics) + 1, dtype=np.float32), leaves), info

    def step(self, action: Any, lane: int = 0) -> Five:
        """Run one trial with an element of ``action_space``."""
        del lane
        return self._steps([self.decode_action(action)])[0]

    def step_all(self, actions: Sequence[Any]) -> list[Five]:
        """Run one trial in each lane with elements of ``action_space``."""
        return self._steps([self.decode_action(action) for action in actions])

    def step_raw(self, actions: Sequence[Action]) -> list[Five]:
        """Run one trial in each lane from 0, side by side as far as the slots allow, with native values.

        Raises:
            ActionError: an action doesn't fit the knobs; no number is used.
            BudgetError: not all may start, or the run was stopped; trials that had begun are recorded.
        """
        return self._steps([self.space.accept(action) for action in actions])

    def _steps(self, actions: Sequence[Action]) -> list[Five]:
        self._check_open()
        engine = self._engine
        for lane in range(len(actions)):  # so that the numbers are in the lanes' order
            if lane not in self._upcoming:
                engine.observe(lane)
        running: dict[int, int] = {}  # lanes by the number of their trial
        trials: dict[int, Trial] = {}  # by lane
        begun, ended = 0, None
        while True:
            # No more than can run: the wait for a slot would be recorded as a trial's duration.
            while begun < len(actions) and ended is None and len(running) < engine.slots:
                self._upcoming.pop(begun, None)
                try:
                    running[engine.begin(actions[begun], begun).number] = begun
                    begun += 1
                except BudgetError as error:
                    ended = error
            if not running:
                break
            finished = engine.next_finished()
            if finished is None:
                raise BudgetError("the run was stopped while the trial ran; it stays open for a resume")
            lane = running.pop(finished[1].number, None)
            if lane is not None:  # otherwise it is left from a call that an exception ended
                trials[lane] = finished[1]
        if ended is not None:
            raise ended
        return [self._shown(lane, trials[lane]) for lane in range(begun)]

    def close(self) -> None:
        """Leave the journal complete."""
        self._closed = True
        self._engine.close()

    def _shown(self, lane: int, trial: Trial) -> Five:
        upcoming, leaves = self._observe(lane)
        taken = self._taken.get(lane, 0) + 1
        ended = taken >= self._episode_steps
        self._taken[lane] = 0 if ended else taken
        single = self._episode_steps == 1
        info = {
            "step": trial.number,
            "status": trial.status,
            "cached": trial.cached_from is not None,
            "env_params": dict(trial.context),
            "next_env_params": dict(upcoming.context),
            "metrics": trial.metrics,
            "action": dict(trial.action),
            "reason": trial.reason,
        }
        shown = self._observation(self._slots(upcoming), leaves)
        return shown, trial.reward, ended and single, ended and not single, info

    def _observe(self, lane: int) -> tuple[Observation, Mapping[str, Any]]:
        """What the lane sees, and its leaves: a step shows them, and again the reset that may follow."""
        upcoming = self._engine.observe(lane)
        leaves = {} if self._structure is None else self._structure.encode(upcoming)
        self._upcoming[lane] = upcoming, leaves
        return upcoming, leaves

    def _slots(self, shown: Observation) -> np.ndarray:
        if not shown.measured:
            return np.zeros(len(self._metrics) + 1, dtype=np.float32)
        numbers = [min(max(shown.metrics[name], -_LARGEST), _LARGEST) for name in self._metrics]
        return np.array([*numbers, 1.0], dtype=np.float32)

    def _observation(self, slots: np.ndarray, leaves: Mapping[str, Any]) -> Any:
        """The element of ``observation_space``; its arrays are copies."""
        if self._structure is None:
            return slots
        own = {name: leaf.copy() if type(leaf) is np.ndarray else leaf for name, leaf in leaves.items()}
        return {"observation": slots, "context": own}

    def _check_open(self) -> None:
        if self._closed:
            raise TunegymError("the environment is closed", hint="make another one: with resume= it continues this run")


Stepped: TypeAlias = TrialFace | LiveEngine
"""What a Gymnasium environment is built over."""


def ender(owner: object, env: Stepped, then: Callable[[], None]) -> Callable[[], None]:
    """Ends ``env`` once: when called, when ``owner`` is garbage, or when the program ends. Then calls ``then``.

    In a process that was forked from this one it does nothing: the experiment continues here.
    """
    process = os.getpid()

    def end() -> None:
        if os.getpid() != process:
            return
        try:
            env.close()
        finally:
            then()

    return weakref.finalize(owner, end)


class _FaceEnv(gymnasium.Env[Any, Any]):
    """A Gymnasium environment over the first lane."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - gymnasium declares it so

    def __init__(self, env: Stepped, on_close: Callable[[], None]) -> None:
        self._face = env
        self._end = ender(self, env, on_close)
        self.action_space = env.action_space
        self.observation_space = env.observation_space
        self.spec = EnvSpec(id=ENV_ID, nondeterministic=True)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode. Numbers and contexts don't depend on seed and options; a live server gets both.

        Raises ``ServerLostError`` if a live server failed too often in a row.
        """
        if seed is not None:
            super().reset(seed=seed, options=options)
        return self._face.reset(0, seed, options)

    def step(self, action: Any) -> Five:
        """Take one step with an element of ``action_space``.

        Raises:
            ActionError: it isn't one; no number is used.
            BudgetError: the experiment's budget is used up.
            TunegymError: the environment is closed, or a live server's episode is over.
        """
        return self._face.step(action)

    def close(self) -> None:
        """Leave the journal complete. Calling it twice is fine."""
        self._end()


class _Knobs:
    """The native values behind the actions of an environment of trials."""

    _trials: TrialFace

    @property
    def space(self) -> Space:
        """The knobs, in native values."""
        return self._trials.space

    def decode_action(self, encoded: Mapping[str, Any]) -> dict[str, Scalar]:
        """Native values for an element of one environment's action space."""
        return self._trials.decode_action(encoded)

    def encode_action(self, action: Action) -> dict[str, Any]:
        """The element of one environment's action space for native values."""
        return self._trials.encode_action(action)


class TuneEnv(_Knobs, _FaceEnv):
    """One environment step is one trial; an episode is ``episode_steps`` of them, by default one. See ``TrialFace``."""

    def __init__(self, engine: TrialEngine, on_close: Callable[[], None] = lambda: None) -> None:
        self._trials = TrialFace(engine)
        super().__init__(self._trials, on_close)

    def step_raw(self, action: Action) -> Five:
        """Run one trial with native values; raises as ``step``."""
        return self._trials.step_raw([action])[0]


class LiveTuneEnv(_FaceEnv):
    """A live server behind a journal, with its own spaces. ``LiveEnv`` says what steps and resets do."""

    def __init__(self, engine: LiveEngine, on_close: Callable[[], None] = lambda: None) -> None:
        super().__init__(engine, on_close)
        if type(self).step is _FaceEnv.step:  # nothing in between: a step may take microseconds
            vars(self)["step"] = engine.step


_Batch = tuple[Any, Any, Any, Any, dict[str, Any]]


class _FaceVectorEnv(VectorEnv[Any, Any, Any]):
    """``num_envs`` lanes that share one journal and one counter.

    A vector step is one step in each. An episode that ends is followed by the next one in the same step: the
    observation and a server's info are the new episode's first, the old one's last are in ``infos["final_obs"]`` and
    ``infos["final_info"]``. The step's own facts (its number, status, ...) are of the step that was taken.

    Raises:
        TunegymError: the budget can't be shared evenly.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    closed = True  # until it is open: Gymnasium closes whatever is thrown away
    facts: tuple[str, ...] = ()
    """The keys of a step's info that stay where its episode ends."""

    def __init__(self, env: Stepped, num_envs: int, on_close: Callable[[], None]) -> None:
        check_share(env.experiment.budget.agent_steps, num_envs)
        self._face = env
        self._end = ender(self, env, on_close)
        self.num_envs = num_envs
        self.single_action_space = env.action_space
        self.single_observation_space = env.observation_space
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.spec = EnvSpec(id=ENV_ID, nondeterministic=True)
        self._last: dict[int, Any] = {}  # the newest observation of each sub-environment
        self.closed = False

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every sub-environment. Seed and options change no number and no context.

        Live servers get both. An integer is the seed of the first server, and the following integers are those of the
        next ones; a list has a seed for each. ``options["reset_mask"]``, a boolean array, resets only the
        sub-environments that are True; the others show their last observation.
        """
        if isinstance(seed, int):
            super().reset(seed=seed)
        seeds, lanes = self._seeds(seed), range(self.num_envs)
        if options is not None and "reset_mask" in options:
            lanes = self._chosen_lanes(options["reset_mask"])
            options = {name: value for name, value in options.items() if name != "reset_mask"}
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for lane in lanes:
            self._last[lane], infos[lane] = self._face.reset(lane, seeds[lane], options)
        return self._seen(), batched_infos(infos)

    def step(self, actions: Any) -> _Batch:
        """Take one step in every sub-environment with an element of ``action_space``.

        Raises:
            ActionError: it isn't one; no number is used.
            BudgetError: the budget is used up; trials that had begun are recorded.
            ServerLostError: a live server failed too often in a row.
            TunegymError: the environment is closed, or a live one has not been reset.
        """
        rows = [_row(self.single_action_space, actions, lane, self.num_envs) for lane in range(self.num_envs)]
        return self._batched(self._face.step_all(rows))

    def close_extras(self, **kwargs: Any) -> None:
        """Leave the journal complete."""
        del kwargs
        self._end()

    def _batched(self, fives: Sequence[Five]) -> _Batch:
        infos = []
        for lane, (observation, _, terminated, truncated, info) in enumerate(fives):
            if terminated or truncated:
                last = info.pop("final_observation") if self._face.shows_contexts else observation
                observation, begun = self._face.reset(lane)
                info = {**begun, **{name: info[name] for name in self.facts}, "final_obs": last, "final_info": info}
            self._last[lane] = observation
            infos.append(info)
        _, rewards, terminations, truncations, _ = zip(*fives, strict=True)
        outcomes = np.array(rewards, np.float64), np.array(terminations, np.bool_), np.array(truncations, np.bool_)
        return self._seen(), *outcomes, batched_infos(infos)

    def _seen(self) -> Any:
        space, observations = self.single_observation_space, [self._last[lane] for lane in range(self.num_envs)]
        return concatenate(space, observations, create_empty_array(space, self.num_envs))

    def _chosen_lanes(self, mask: Any) -> Sequence[int]:
        if getattr(mask, "dtype", None) != np.bool_ or mask.shape != (self.num_envs,) or not mask.any():
            what = f"reset_mask is {mask!r:.60}, not an array of {self.num_envs} booleans, at least one of them True"
            raise TunegymError(what, hint="write for example reset_mask=terminations | truncations")
        if len(self._last) < self.num_envs:
            raise TunegymError("reset_mask before the first reset", hint="reset all first")
        return np.flatnonzero(mask).tolist()

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        try:
            each = seed if isinstance(seed, Sequence) else [seed + lane for lane in range(self.num_envs)]
            seeds = [None if one is None else index(one) for one in each]
        except TypeError:
            raise TunegymError(f"seed is {seed!r:.60}; it is an integer, or one for each sub-environment") from None
        if len(seeds) != self.num_envs:
            raise TunegymError(f"{len(seeds)} seeds for {self.num_envs} sub-environments")
        return seeds


class TuneVectorEnv(_Knobs, _FaceVectorEnv):
    """Trials side by side, as far as the runner's slots allow; see ``TrialFace``."""

    facts = ("step", "status", "cached", "env_params", "metrics", "action", "reason")

    def __init__(self, engine: TrialEngine, num_envs: int, on_close: Callable[[], None] = lambda: None) -> None:
        self._trials = TrialFace(engine)
        super().__init__(self._trials, num_envs, on_close)

    def step_raw(self, actions: Sequence[Action]) -> _Batch:
        """Run one trial in every sub-environment with native values; raises as ``step``."""
        if len(actions) != self.num_envs:
            raise ActionError(f"{len(actions)} actions for {self.num_envs} sub-environments")
        return self._batched(self._trials.step_raw(actions))


class LiveVectorEnv(_FaceVectorEnv):
    """A live server in each sub-environment, as in ``LiveEnv``. A failed step ends its episode."""

    facts = ("step", "episode_number", "status", "reason", "cached", "metrics", "env_params")

    def __init__(self, engine: LiveEngine, on_close: Callable[[], None] = lambda: None) -> None:
        super().__init__(engine, engine.slots, on_close)


def _row(space: spaces.Space[Any], rows: Any, lane: int, count: int, what: str = "") -> Any:
    """One lane's action of a batch. Unknown keys are passed on: the engine or the codec refuses them."""
    if isinstance(space, spaces.Dict):
        if not isinstance(rows, Mapping):
            raise ActionError(f"{what}{rows!r:.60} is not a mapping", hint="take actions from action_space.sample()")
        known = space.spaces
        return {
            name: _row(known[name], part, lane, count, f"{what}{name}: ") if name in known else part
            for name, part in rows.items()
        }
    if isinstance(space, spaces.Tuple):
        if not isinstance(rows, tuple | list) or len(rows) != len(space.spaces):
            raise ActionError(f"{what}{rows!r:.60} is not a tuple of {len(space.spaces)} parts")
        return tuple(_row(one, rows[at], lane, count, f"{what}{at}: ") for at, one in enumerate(space.spaces))
    check_rows(rows, count, what)
    return rows[lane]


def batched_infos(infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One dictionary of arrays by Gymnasium's convention: ``_key`` says which sub-environments gave ``key``.

    Gymnasium's own takes an array's type from the first value, which bends the others: candidates of one knob may
    be of several types.
    """
    batch: dict[str, Any] = {}
    for key in dict.fromkeys(key for info in infos for key in info):
        given = [info[key] for info in infos if key in info]
        if key != "final_obs" and all(isinstance(value, dict) for value in given):
            batch[key] = batched_infos([info.get(key, {}) for info in infos])
        else:
            batch[key] = np.full(len(infos), None, dtype=object) if key == "final_obs" else _empty(given, len(infos))
            for lane, info in enumerate(infos):
                if key in info:
                    batch[key][lane] = info[key]
        batch[f"_{key}"] = np.array([key in info for info in infos], dtype=np.bool_)
    return batch


def _empty(given: Sequence[Any], count: int) -> np.ndarray:
    """An array for values of one type, or arrays of one shape and type; else one of objects."""
    first = given[0]
    if isinstance(first, np.ndarray | np.generic) and first.dtype != object:
        if all(type(one) is type(first) and (one.shape, one.dtype) == (first.shape, first.dtype) for one in given):
            return np.zeros((count, *first.shape), dtype=first.dtype)
    elif type(first) in (bool, int, float) and all(type(one) is type(first) and abs(one) < 2**63 for one in given):
        return np.zeros(count, dtype=type(first))
    return np.full(count, None, dtype=object)


def check_rows(rows: Any, count: int, what: str = "") -> None:
    """Refuse actions without a row for each sub-environment."""
    try:
        found = len(rows)
    except TypeError:
        raise ActionError(f"{what}{rows!r} has no rows, one for each of {count} sub-environments") from None
    if found != count:
        raise ActionError(f"{what}{found} rows for {count} sub-environments")


def check_share(agent_steps: int | None, num_envs: int) -> None:
    """Refuse a number of sub-environments that doesn't divide the budget."""
    if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
        raise TunegymError(f"num_envs must be an integer of at least 1, not {num_envs!r}")
    if agent_steps is None or agent_steps % num_envs == 0:
        return
    around = (count for away in range(num_envs) for count in (num_envs - away, num_envs + away))
    nearest = next(count for count in around if agent_steps % count == 0)
    more = -(-agent_steps // num_envs) * num_envs
    raise TunegymError(
        f"agent_steps = {agent_steps} can't be shared evenly by {num_envs} sub-environments",
        hint=f"num_envs = {nearest}, or agent_steps = {more}",
    )
