"""Several sub-environments over one experiment of either kind, as a Gymnasium vector environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from tunegym.core.errors import ActionError, TunegymError
from tunegym.tuning.envs.face import Five, Stepped, TrialFace, ender
from tunegym.tuning.envs.live.engine import LiveEngine
from tunegym.tuning.envs.trials.engine import TrialEngine
from tunegym.tuning.model.space import Space
from tunegym.tuning.model.values import Action, Scalar
from tunegym.tuning.ports import ENV_ID

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
        self.closed = False

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every sub-environment. Numbers and contexts don't depend on seed and options.

        Args:
            seed: for the first live server, the next ones get the numbers that follow; or one for each.
            options: for each live server.
        """
        if isinstance(seed, int):
            super().reset(seed=seed)
        seeds = self._seeds(seed)
        firsts = [self._face.reset(lane, seeds[lane], options) for lane in range(self.num_envs)]
        seen = batched_observations(self.single_observation_space, [observation for observation, _ in firsts])
        return seen, batched_infos([info for _, info in firsts])

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
        observations, infos = [], []
        for lane, (observation, _, terminated, truncated, info) in enumerate(fives):
            if terminated or truncated:
                last = info.pop("final_observation") if self._face.shows_contexts else observation
                observation, begun = self._face.reset(lane)
                info = {**begun, **{name: info[name] for name in self.facts}, "final_obs": last, "final_info": info}
            observations.append(observation)
            infos.append(info)
        seen = batched_observations(self.single_observation_space, observations)
        return seen, *batched_outcomes(fives), batched_infos(infos)

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        try:
            if isinstance(seed, Sequence):
                seeds = [None if one is None else index(one) for one in seed]
            else:
                seeds = [index(seed) + lane for lane in range(self.num_envs)]
        except TypeError:
            raise TunegymError(f"seed is {seed!r:.60}; it is an integer, or one for each sub-environment") from None
        if len(seeds) != self.num_envs:
            raise TunegymError(f"{len(seeds)} seeds for {self.num_envs} sub-environments")
        return seeds


class TuneVectorEnv(_FaceVectorEnv):
    """Trials side by side, as far as the runner's slots allow; see ``TrialFace``.

    Args:
        engine: drives the trials; not shared.
        num_envs: how many; must divide the experiment's ``agent_steps``.
        on_close: called once, after the engine was closed.
    """

    facts = ("step", "status", "cached", "env_params", "metrics", "action", "reason")

    def __init__(self, engine: TrialEngine, num_envs: int, on_close: Callable[[], None] = lambda: None) -> None:
        self._trials = TrialFace(engine)
        super().__init__(self._trials, num_envs, on_close)

    @property
    def space(self) -> Space:
        """The knobs, in native values."""
        return self._trials.space

    def step_raw(self, actions: Sequence[Action]) -> _Batch:
        """Run one trial in every sub-environment with native values; raises as ``step``."""
        if len(actions) != self.num_envs:
            raise ActionError(f"{len(actions)} actions for {self.num_envs} sub-environments")
        return self._batched(self._trials.step_raw(actions))

    def decode_action(self, encoded: Any) -> dict[str, Scalar]:
        """Native values for an element of ``single_action_space``."""
        return self._trials.decode_action(encoded)

    def encode_action(self, action: Action) -> dict[str, Any]:
        """The element of ``single_action_space`` for native values."""
        return self._trials.encode_action(action)


class LiveVectorEnv(_FaceVectorEnv):
    """A live server in each sub-environment; ``LiveEnv`` says what steps and resets do. A failed step ends no episode.

    Args:
        engine: drives the servers, which have been started; not shared.
        on_close: called once, after the engine was closed.
    """

    facts = ("step", "episode_number", "status", "metrics", "env_params")

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
    try:
        return rows[lane]
    except (KeyError, TypeError, IndexError):
        raise ActionError(f"{what}{rows!r:.60} has no row {lane}") from None


def batched_observations(space: spaces.Space[Any], observations: Sequence[Any]) -> Any:
    """An element of the batched ``space``."""
    return concatenate(space, observations, create_empty_array(space, len(observations)))


def batched_outcomes(fives: Sequence[Five]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rewards, terminations and truncations, a row for each sub-environment."""
    _, rewards, terminations, truncations, _ = zip(*fives, strict=True)
    return np.array(rewards, np.float64), np.array(terminations, np.bool_), np.array(truncations, np.bool_)


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
            rows = _empty_rows(given, len(infos)) if key != "final_obs" else np.full(len(infos), None, dtype=object)
            for lane, info in enumerate(infos):
                if key in info:
                    rows[lane] = info[key]
            batch[key] = rows
        batch[f"_{key}"] = np.array([key in info for info in infos], dtype=np.bool_)
    return batch


def _empty_rows(given: Sequence[Any], count: int) -> np.ndarray:
    """An array for values of one type, or arrays of one shape and type; else one of objects."""
    first = given[0]
    same = all(type(value) is type(first) for value in given)
    if same and isinstance(first, np.ndarray | np.generic) and first.dtype != object:
        if all(value.shape == first.shape and value.dtype == first.dtype for value in given):
            return np.zeros((count, *first.shape), dtype=first.dtype)
    elif same and (type(first) in (bool, float) or (type(first) is int and all(map(_fits, given)))):
        return np.zeros(count, dtype=type(first))
    return np.full(count, None, dtype=object)


def _fits(value: int) -> bool:
    return -(2**63) <= value < 2**63


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
