"""The Gymnasium face of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from tunegym.core.registration import ENV_ID
from tunegym.tuning.envs.closing import closes
from tunegym.tuning.envs.face import Face
from tunegym.tuning.envs.trials.engine import TrialEngine
from tunegym.tuning.model.space import Space
from tunegym.tuning.model.values import Action, Scalar


class TuneEnv(gymnasium.Env[Any, Any]):
    """One environment step is one trial; an episode is ``episode_steps`` of them, by default one.

    ``Face`` says what observations hold. ``reset`` moves nothing: neither the counter nor any context, whatever
    its seed.

    Args:
        engine: drives the trials; shared with nobody else.
        on_close: called once, after the engine was closed.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - gymnasium declares it so

    def __init__(self, engine: TrialEngine, on_close: Callable[[], None] = lambda: None) -> None:
        self._engine = engine
        self._face = Face(engine, closes(engine, on_close))
        self.action_space = self._face.action_space
        self.observation_space = self._face.observation_space
        self.spec = EnvSpec(id=ENV_ID, nondeterministic=True)

    @property
    def space(self) -> Space:
        """The knobs, in native values."""
        return self._engine.space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: shows the context of the trial that comes next. Raises ``TunegymError`` once closed."""
        if seed is not None:
            super().reset(seed=seed, options=options)
        return self._face.reset(0)

    def step(self, action: Mapping[str, Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Run one trial with an element of ``action_space``."""
        return self.step_raw(self.decode_action(action))

    def step_raw(self, action: Action) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Run one trial with native values.

        Raises:
            ActionError: the action doesn't fit the knobs; no number is used.
            BudgetError: the experiment's budget is used up.
            TunegymError: the environment is closed.
        """
        return self._face.shown(0, self._face.run_one(action))

    def decode_action(self, encoded: Mapping[str, Any]) -> dict[str, Scalar]:
        """Native values for an element of ``action_space``."""
        return self._face.decode_action(encoded)

    def encode_action(self, action: Action) -> dict[str, Any]:
        """The element of ``action_space`` for native values."""
        return self._face.encode_action(action)

    def close(self) -> None:
        """Leave the journal complete. Calling it twice is fine."""
        self._face.close()
