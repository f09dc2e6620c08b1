"""The Gymnasium face of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from tunegym.tuning.envs.engine import TrialEngine
from tunegym.tuning.envs.face import Face, stopped
from tunegym.tuning.model.space import Space
from tunegym.tuning.model.values import Action, Scalar

ENV_ID = "tunegym/Tune-v0"
"""Non-deterministic: the next trial has the next context, so two equal steps don't give equal observations."""


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
        self._on_close: Callable[[], None] | None = on_close
        self._face = Face(engine)
        self.action_space = self._face.action_space
        self.observation_space = self._face.observation_space
        self.spec = EnvSpec(id=ENV_ID, nondeterministic=True)

    @property
    def space(self) -> Space:
        """The knobs, in native values."""
        return self._engine.space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: shows the context of the trial that comes next."""
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
        """
        trial = self._engine.step(action)
        if trial is None:
            raise stopped()
        return self._face.shown(0, trial)

    def decode_action(self, encoded: Mapping[str, Any]) -> dict[str, Scalar]:
        """Native values for an element of ``action_space``."""
        return self._face.codec.decode(encoded)

    def encode_action(self, action: Action) -> dict[str, Any]:
        """The element of ``action_space`` for native values."""
        return self._face.codec.encode(action)

    def close(self) -> None:
        """Leave the journal complete. Calling it twice is fine."""
        if self._on_close is None:
            return
        on_close, self._on_close = self._on_close, None
        try:
            self._engine.close()
        finally:
            on_close()
