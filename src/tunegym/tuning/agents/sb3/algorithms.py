"""Stable-Baselines3's algorithms: from an agent's settings to a model, its parameters, and its randomness.

The library draws from numpy's and torch's generators, which the whole process shares. ``Draws`` seeds them for as long
as the library works, so that its draws depend on our seed alone, and puts them back as they were.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.logger import Logger

from tunegym.core.randomness import integer, unit
from tunegym.tuning.agents.base import TrainingError
from tunegym.tuning.agents.sb3.config import LivePolicyConfig, PolicyConfig

logger = logging.getLogger(__name__)

DIVERGED = "the network is no longer of finite numbers; a smaller learning_rate, ent_coef or vf_coef keeps it from that"
PASSED_ON = (
    *("learning_rate", "gamma", "n_steps", "gae_lambda", "ent_coef", "vf_coef", "max_grad_norm", "normalize_advantage"),
    *("batch_size", "n_epochs", "clip_range", "buffer_size", "learning_starts", "train_freq", "gradient_steps", "tau"),
    *("target_update_interval", "exploration_fraction", "exploration_initial_eps", "exploration_final_eps"),
)
"""Settings that the library takes under the same name."""


class Draws:
    """The random draws of one algorithm, by name.

    Torch runs on one thread meanwhile, because the networks are small. A workload that draws from the shared generators
    on another thread of this process just then would notice.
    """

    def __init__(self, seed: int, name: str) -> None:
        self._seed = seed
        self._name = name

    def unit(self, *names: str | int) -> float:
        """A uniform number in [0, 1) for these names."""
        return unit(self._seed, self._name, *names)

    def integer(self, bound: int, *names: str | int) -> int:
        """A uniform integer in [0, bound) for these names."""
        return integer(self._seed, bound, self._name, *names)

    @contextlib.contextmanager
    def stream(self, *names: str | int) -> Iterator[None]:
        """The library's draws inside depend on ``names`` alone."""
        theirs = np.random.get_state(legacy=False)
        with self.one_thread(), self.torch_stream(*names):
            np.random.seed(self.integer(2**32, *names, "numpy"))
            try:
                yield
            finally:
                np.random.set_state(theirs)

    @contextlib.contextmanager
    def torch_stream(self, *names: str | int) -> Iterator[None]:
        """Torch's draws inside depend on ``names`` alone."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.integer(2**32, *names))
            yield

    @contextlib.contextmanager
    def one_thread(self) -> Iterator[None]:
        """Torch uses one thread, and afterwards as many as before."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


class Spaces(gymnasium.Env[Any, Any]):
    """Tells the library the shapes where the loop is ours; it is never stepped."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.observation_space = observation_space
        self.action_space = action_space


def build(
    kind: Any, policy: str, env: Any, config: PolicyConfig | LivePolicyConfig, draws: Draws, **settings: Any
) -> Any:
    """A model of the class ``kind``; ``settings`` come before those of ``config``."""
    takes = inspect.signature(kind).parameters
    given = {name: value for name in PASSED_ON if name in takes and (value := getattr(config, name, None)) is not None}
    layers = {} if config.net_arch is None else {"net_arch": list(config.net_arch)}
    options = {**layers, **settings.pop("policy_kwargs", {})}
    with draws.stream("network"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about sizes that don't divide
        model = kind(policy, env, device="cpu", policy_kwargs=options, **{**given, **settings})
    model.set_logger(Logger(folder=None, output_formats=[]))
    return model


def state_of(model: Any) -> dict[str, Any]:
    """The networks and their optimisers, as plain tensors."""
    state: dict[str, Any] = {"model": model.get_parameters()}
    entropy = getattr(model, "log_ent_coef", None)
    if entropy is not None:
        state["log_ent_coef"] = entropy.detach().clone()
    return state


def restore(model: Any, state: dict[str, Any]) -> None:
    """The reverse of ``state_of``. Raises an exception if the state doesn't fit."""
    model.set_parameters(state["model"], device="cpu")
    if "log_ent_coef" in state:
        model.log_ent_coef.data.copy_(state["log_ent_coef"])
    if not is_finite(model):
        raise ValueError("its network is not of finite numbers")


def is_finite(model: Any) -> bool:
    """Whether all parameters are finite numbers."""
    return all(bool(torch.isfinite(one).all()) for one in model.policy.parameters())


@contextlib.contextmanager
def training() -> Iterator[None]:
    """Turn exceptions of the algorithm into ``TrainingError``. Only wrap its own calls: a bug of ours is none."""
    try:
        yield
    except TrainingError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        if isinstance(error, ValueError) and "nan" in text:  # how torch says it, with all the numbers
            raise TrainingError(DIVERGED) from error
        logger.warning("the algorithm raised:", exc_info=True)
        raise TrainingError(f"{type(error).__name__}: {text[:300]}") from error
