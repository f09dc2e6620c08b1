"""The library's distributions, which draw from a generator of our own instead of torch's shared one."""

from __future__ import annotations

from typing import Any

import torch
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    Distribution,
    MultiCategoricalDistribution,
    SquashedDiagGaussianDistribution,
)


class _Categorical(CategoricalDistribution):
    generator: torch.Generator

    def sample(self) -> torch.Tensor:
        return _drawn(self.distribution, self.generator)


class _MultiCategorical(MultiCategoricalDistribution):
    generator: torch.Generator

    def sample(self) -> torch.Tensor:
        return torch.stack([_drawn(one, self.generator) for one in self.distribution], dim=1)


class _Bernoulli(BernoulliDistribution):
    generator: torch.Generator

    def sample(self) -> torch.Tensor:
        return torch.bernoulli(self.distribution.probs, generator=self.generator)


class _Gaussian(DiagGaussianDistribution):
    generator: torch.Generator

    def sample(self) -> torch.Tensor:
        return _moved(self.distribution, self.generator)


class _Squashed(SquashedDiagGaussianDistribution):
    generator: torch.Generator

    def sample(self) -> torch.Tensor:
        self.gaussian_actions = _moved(self.distribution, self.generator)
        return torch.tanh(self.gaussian_actions)


_OWN: dict[type[Distribution], type[Distribution]] = {
    CategoricalDistribution: _Categorical,
    MultiCategoricalDistribution: _MultiCategorical,
    BernoulliDistribution: _Bernoulli,
    DiagGaussianDistribution: _Gaussian,
    SquashedDiagGaussianDistribution: _Squashed,
}


def owning(theirs: Any, generator: torch.Generator) -> Distribution:
    """The same distribution, whose samples come from ``generator``."""
    kind = _OWN[type(theirs)]
    ours: Any = kind.__new__(kind)
    ours.__dict__.update(vars(theirs))
    ours.generator = generator
    return ours


def _drawn(choices: Any, generator: torch.Generator) -> torch.Tensor:
    return torch.multinomial(choices.probs, 1, replacement=True, generator=generator).squeeze(1)


def _moved(normal: Any, generator: torch.Generator) -> torch.Tensor:
    """In such a way that gradients pass."""
    noise = torch.randn(normal.loc.shape, generator=generator, dtype=normal.loc.dtype)
    return normal.loc + normal.scale * noise
