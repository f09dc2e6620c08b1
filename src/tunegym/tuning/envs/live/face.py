"""The Gymnasium face of a live experiment: the server's own spaces, every step recorded."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from tunegym.core.registration import ENV_ID
from tunegym.tuning.envs.closing import closes
from tunegym.tuning.envs.live.engine import LiveEngine


class LiveTuneEnv(gymnasium.Env[Any, Any]):
    """A server behind a journal. ``LiveEnv`` says what steps and resets do; ``reset`` moves no number.

    Args:
        engine: drives the server, which has been started; shared with nobody else.
        on_close: called once, after the engine was closed.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - gymnasium declares it so

    def __init__(self, engine: LiveEngine, on_close: Callable[[], None] = lambda: None) -> None:
        self._engine = engine
        # A program that ends without a word closes it too: its last steps are in memory only.
        self._finish = weakref.finalize(self, closes(engine, on_close))
        self.action_space = engine.action_space
        self.observation_space = engine.observation_space
        self.spec = EnvSpec(id=ENV_ID, nondeterministic=True)
        if type(self).step is LiveTuneEnv.step:  # nothing in between: a step may take microseconds
            vars(self)["step"] = engine.step

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; seed and options are the server's. Contexts and numbers don't depend on them."""
        if seed is not None:
            super().reset(seed=seed, options=options)
        return self._engine.reset(0, seed, options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step with an element of ``action_space``.

        Raises:
            ActionError: the action is none; no number is used.
            BudgetError: the experiment's budget is used up.
            ServerLostError: the server failed too often in a row.
            TunegymError: the environment is closed, or the episode is over.
        """
        return self._engine.step(action)

    def close(self) -> None:
        """Let go of the server, and leave the journal complete. Calling it twice is fine."""
        self._finish()
