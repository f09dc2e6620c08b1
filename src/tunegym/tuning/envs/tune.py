"""The Gymnasium face of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from tunegym.core.errors import BudgetError
from tunegym.tuning.codec import ActionCodec
from tunegym.tuning.encodings import ENCODINGS, Encoding, encoding_of
from tunegym.tuning.envs.engine import TrialEngine
from tunegym.tuning.model.space import Knob
from tunegym.tuning.model.trial import Observation, Trial
from tunegym.tuning.model.values import Action, Scalar

ENV_ID = "tunegym/Tune-v0"
"""Non-deterministic: the next trial has the next context, so two equal steps don't give equal observations."""
_LARGEST = float(np.finfo(np.float32).max)


class TuneEnv(gymnasium.Env[Any, Any]):
    """One environment step is one trial; an episode is one step (a contextual bandit).

    Observations are a float32 ``Box`` with one slot per agent metric and a ``measured`` slot, and, where the
    experiment has env_params, a ``Dict`` of that and the encoded context **of the trial that comes next**.
    ``reset`` moves nothing: neither the counter nor any context, whatever its seed.

    Args:
        engine: drives the trials; shared with nobody else.
        on_close: called once, after the engine was closed.
        encodings: finds an encoding by its name.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - gymnasium declares it so

    def __init__(
        self,
        engine: TrialEngine,
        on_close: Callable[[], None] = lambda: None,
        encodings: Callable[[str], Callable[[Knob], Encoding]] = ENCODINGS.__getitem__,
    ) -> None:
        self._engine = engine
        self._on_close: Callable[[], None] | None = on_close
        self._codec = ActionCodec(engine.space)
        self._metrics = engine.experiment.agent_metrics
        params = engine.experiment.env_params.params
        self._encodings = {name: encoding_of(param, encodings) for name, param in params.items()}
        self.action_space = self._codec.action_space
        box = spaces.Box(-np.inf, np.inf, shape=(len(self._metrics) + 1,), dtype=np.float32)
        self.observation_space: spaces.Space[Any] = box
        if self._encodings:
            leaves = {name: encoding.space for name, encoding in self._encodings.items()}
            self.observation_space = spaces.Dict({"observation": box, "context": spaces.Dict(leaves)})
        self.spec = EnvSpec(id=ENV_ID, nondeterministic=True)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: shows the context of the trial that comes next."""
        super().reset(seed=seed, options=options)
        upcoming = self._engine.observe()
        return self._encoded(Observation(upcoming.number, upcoming.context)), {
            "step": upcoming.number,
            "next_env_params": dict(upcoming.context),
        }

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
            raise BudgetError("the run was stopped while the trial ran; it stays open for a resume")
        shown = self._engine.observe()
        return self._encoded(shown), trial.reward, True, False, _info(trial, shown)

    def decode_action(self, encoded: Mapping[str, Any]) -> dict[str, Scalar]:
        """Native values for an element of ``action_space``."""
        return self._codec.decode(encoded)

    def encode_action(self, action: Action) -> dict[str, Any]:
        """The element of ``action_space`` for native values."""
        return self._codec.encode(action)

    def close(self) -> None:
        """Leave the journal complete. Calling it twice is fine."""
        if self._on_close is None:
            return
        on_close, self._on_close = self._on_close, None
        try:
            self._engine.close()
        finally:
            on_close()

    def _encoded(self, shown: Observation) -> Any:
        slots = np.zeros(len(self._metrics) + 1, dtype=np.float32)
        if shown.measured:
            for index, name in enumerate(self._metrics):
                slots[index] = min(max(shown.metrics[name], -_LARGEST), _LARGEST)
            slots[-1] = 1.0
        if not self._encodings:
            return slots
        context = {name: leaf.encode(shown.context[name]) for name, leaf in self._encodings.items()}
        return {"observation": slots, "context": context}


def _info(trial: Trial, shown: Observation) -> dict[str, Any]:
    return {
        "step": trial.number,
        "status": trial.status,
        "cached": trial.cached_from is not None,
        "env_params": dict(trial.context),
        "next_env_params": dict(shown.context),
        "metrics": dict(trial.metrics),
        "action": dict(trial.action),
        "reason": trial.reason,
    }
