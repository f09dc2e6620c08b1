"""A Gaussian process over settings in contexts.

    cov(f(x, c), f(y, d)) = between[c, d] * matern(distance(x, y)) + [c == d]

Settings are alike by a Matern 5/2 kernel with a length scale for each knob. A knob with an order has a second one,
for "another value": neighbours may differ by more than their distance says. Contexts are alike by a learned matrix of
low rank, and each has a level of its own. Hyperparameters are those of the greatest posterior density.
"""

from __future__ import annotations

from contextlib import ContextDecorator
from dataclasses import dataclass
from threading import Lock

import numpy as np
from scipy.linalg import get_lapack_funcs
from scipy.optimize import minimize
from threadpoolctl import ThreadpoolController

from tunegym.tuning.inference.coordinates import Flags, Floats, Indices

ROWS = 400
"""Cells that a posterior rests on; with more, the best, the repeated and an even spread of the others are kept."""
FIT_ROWS = 250
"""Cells that hyperparameters are fitted to. 400 cost 2.6 times as much and found nothing better on four kernels."""
ITERATIONS = 30
JITTER = 1e-7
_POTRF, _POTRI, _TRTRS = get_lapack_funcs(("potrf", "potri", "trtrs"), dtype=np.float64)
"""LAPACK's own routines: a tenth of a proposal's time went into the checks of scipy's."""


class OneThread(ContextDecorator):
    """Limits linear algebra to one thread until the last of nested or concurrent uses ends.

    With a few hundred rows, two threads mostly wait for each other: on two busy cores a fit took 0.1 s of CPU with one
    thread, and 0.7 to 4 s with two.
    """

    def __init__(self) -> None:
        self._libraries = ThreadpoolController()
        self._lock = Lock()
        self._uses = 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._uses:
                self._limit = self._libraries.limit(limits=1)
            self._uses += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._uses -= 1
            if not self._uses:
                self._limit.restore_original_limits()


one_thread = OneThread()


@dataclass(frozen=True)
class Prior:
    """Normal priors of logarithms: the noise's mean and spread, and how far contexts may differ.

    Chosen on two GPU kernels and three simulations; checked on two other kernels, hpolib and HPOBench.
    """

    noise: float
    noise_spread: float
    rank: int
    context_scale: float
    context_noise: float


COST = Prior(noise=np.log(0.01), noise_spread=2.5, rank=2, context_scale=0.4, context_noise=0.6)
SUCCESS = Prior(noise=np.log(0.05), noise_spread=1.0, rank=1, context_scale=1e-3, context_noise=1e-3)
LENGTH, CATEGORY, ANOTHER = 0.5, 1.05, 0.35
"""Typical scales for one knob: the length of an ordered knob, and the inverse lengths of categories and of "another
value". Each grows or shrinks with the root of the number of knobs, so that the prior of a function doesn't."""
SIGNAL_SPREAD, LOADING, LOADING_SPREAD = 0.7, 1.5, 0.7


@dataclass(frozen=True)
class Samples:
    """What a process is conditioned on: one row for each setting in a context."""

    points: Floats
    context: Indices
    value: Floats
    count: Floats  # samples behind the value
    squares: Floats  # of these samples around the value

    def __len__(self) -> int:
        return len(self.value)

    def take(self, index: Indices) -> Samples:
        """Return some of the rows."""
        return Samples(
            points=self.points[index],
            context=self.context[index],
            value=self.value[index],
            count=self.count[index],
            squares=self.squares[index],
        )

    def plus(self, points: Floats, context: Indices, value: Floats) -> Samples:
        """Return these rows and others with one sample each."""
        return Samples(
            points=np.vstack([self.points, points]),
            context=np.concatenate([self.context, context]),
            value=np.concatenate([self.value, value]),
            count=np.concatenate([self.count, np.ones(len(value))]),
            squares=np.concatenate([self.squares, np.zeros(len(value))]),
        )

    def thinned(self, most: int) -> Samples:
        """Return at most ``most`` rows: the repeated, the best, and an even spread of the others."""
        if len(self) <= most:
            return self
        order = np.argsort(np.where(self.count > 1, -np.inf, self.value), kind="stable")
        first = order[: most * 2 // 3]
        others = np.setdiff1d(np.arange(len(self)), first)
        spread = others[np.linspace(0, len(others) - 1, most - len(first)).astype(int)]
        return self.take(np.concatenate([first, spread]))


def matern(squared: Floats) -> tuple[Floats, Floats]:
    """Return the Matern 5/2 correlation at squared distances, and its derivative by the squared distance."""
    root = np.sqrt(5.0 * squared + 1e-12)
    decay = np.exp(-root)
    return (1.0 + root + root * root / 3.0) * decay, -(5.0 / 6.0) * (1.0 + root) * decay


@dataclass(frozen=True)
class Shape:
    """Hyperparameters in natural units; the last five are by context."""

    inverse: Floats  # 1 / length^2 of each distance
    noise: Floats  # variance of a sample
    loadings: Floats
    norms: Floats  # of the loadings, with a unit of its own for each context
    correlation: Floats
    scales: Floats
    between: Floats  # covariance of the contexts' functions


class Process:
    """The prior of a function of settings in contexts. Build it once; ``fit`` and ``condition`` keep nothing."""

    def __init__(self, categorical: Flags, contexts: int, prior: Prior = COST) -> None:
        self.contexts = contexts
        self.ordered = np.flatnonzero(~categorical)
        self.compared = np.concatenate([np.flatnonzero(categorical), self.ordered])  # equal or not
        self.rank = min(prior.rank, contexts - 1)
        root = np.sqrt(max(len(categorical), 1))
        categories = len(categorical) - len(self.ordered)
        lengths = [-np.log(LENGTH * root)] * len(self.ordered)
        lengths += [np.log(CATEGORY / root)] * categories
        lengths += [np.log(ANOTHER / root)] * len(self.ordered)
        self._lengths = len(lengths)
        center = [*lengths, prior.noise, 0.0]
        spread = [*([1.0] * len(lengths)), prior.noise_spread, SIGNAL_SPREAD]
        if contexts > 1:
            center += ([LOADING] + [0.0] * (self.rank - 1)) * contexts + [0.0] * (2 * contexts)
            spread += [LOADING_SPREAD] * (self.rank * contexts)
            spread += [prior.context_scale] * contexts + [prior.context_noise] * contexts
        self.center, self._spread = np.array(center), np.array(spread)

    @property
    def _parts(self) -> tuple[slice, slice, slice]:
        """Return where loadings, scales and noises of contexts are among the hyperparameters."""
        first = self._lengths + 2
        scales = first + self.contexts * self.rank
        noises = scales + self.contexts
        return slice(first, scales), slice(scales, noises), slice(noises, noises + self.contexts)

    def shape(self, theta: Floats) -> Shape:
        """Return hyperparameters in natural units."""
        inverse = np.exp(2.0 * theta[: self._lengths])
        noise, signal = np.exp(theta[self._lengths]), np.exp(theta[self._lengths + 1])
        single = np.ones(1)
        if self.contexts == 1:
            unit = np.ones((1, 1))
            return Shape(inverse, noise * single, np.zeros((1, 0)), single, unit, single, signal * unit)
        of_loadings, of_scales, of_noises = self._parts
        loadings = theta[of_loadings].reshape(self.contexts, self.rank)
        norms = np.sqrt(1.0 + (loadings**2).sum(axis=1))
        directions = loadings / norms[:, None]
        correlation = directions @ directions.T
        np.fill_diagonal(correlation, 1.0)
        scales = np.exp(theta[of_scales])
        between = signal * correlation * np.outer(scales, scales)
        return Shape(inverse, noise * np.exp(theta[of_noises]), loadings, norms, correlation, scales, between)

    def fit(self, samples: Samples, draw: np.random.Generator) -> Floats:
        """Return the hyperparameters of the greatest posterior density."""
        samples = _fitted(samples, draw)
        likelihood = _Likelihood(self, samples)
        bounds = np.column_stack([self.center - 4.0 * self._spread, self.center + 4.0 * self._spread])
        result = minimize(
            likelihood.loss,
            self.center,
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": ITERATIONS},
        )
        return result.x if result.fun < FAILED_LOSS else self.center

    def condition(self, samples: Samples, theta: Floats) -> Posterior:
        """Return what samples say of the function."""
        return Posterior(self, samples.thinned(ROWS), self.shape(theta))

    def gaps(self, points: Floats) -> Floats:
        """Return the squared distances of pairs of points, by hyperparameter and pair."""
        gaps = [(points[:, column][:, None] - points[:, column]) ** 2 for column in self.ordered]
        gaps += [(points[:, column][:, None] != points[:, column]) * 1.0 for column in self.compared]
        return np.array(gaps).reshape(self._lengths, -1)

    def log_prior(self, theta: Floats) -> tuple[float, Floats]:
        """Return the negative log density of hyperparameters, and its gradient."""
        standard = (theta - self.center) / self._spread
        return 0.5 * float(standard @ standard), standard / self._spread


FAILED_LOSS = 1e10
"""The loss of hyperparameters whose covariance has no Cholesky factor."""


def _fitted(samples: Samples, draw: np.random.Generator) -> Samples:
    """Return the rows that hyperparameters are fitted to: the better half of what fits, and a random rest."""
    if len(samples) <= FIT_ROWS:
        return samples
    best = np.argsort(samples.value, kind="stable")[: FIT_ROWS // 2]
    others = np.setdiff1d(np.arange(len(samples)), best)
    return samples.take(np.concatenate([best, draw.choice(others, FIT_ROWS - len(best), replace=False)]))


class _Likelihood:
    """The negative log posterior of hyperparameters, given samples."""

    def __init__(self, process: Process, samples: Samples) -> None:
        self._process, self._samples = process, samples
        self._gaps = process.gaps(samples.points)
        self._member = (np.arange(process.contexts)[:, None] == samples.context) * 1.0
        self._same = self._member.T @ self._member

    def loss(self, theta: Floats) -> tuple[float, Floats]:
        """Return the loss and its gradient."""
        process, samples, size = self._process, self._samples, len(self._samples)
        shape = process.shape(theta)
        within, slope = matern((shape.inverse @ self._gaps).reshape(size, size))
        between = shape.between[np.ix_(samples.context, samples.context)]
        noise = shape.noise[samples.context]
        covariance = between * within + self._same
        covariance[np.diag_indices(size)] += noise / samples.count + JITTER
        lower, error = _POTRF(covariance, lower=1)
        if error:
            return FAILED_LOSS, np.zeros_like(theta)
        inverse = _POTRI(lower, lower=1)[0]
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        weights, repeats = inverse @ samples.value, samples.count - 1.0
        value = 0.5 * float(samples.value @ weights + (repeats * np.log(noise) + samples.squares / noise).sum())
        value += float(np.log(np.diag(lower)).sum())
        penalty, penalty_slope = process.log_prior(theta)
        pull = 0.5 * (np.outer(weights, weights) - inverse)
        by_noise = noise * np.diag(pull) / samples.count - 0.5 * repeats + 0.5 * samples.squares / noise
        lengths = len(self._gaps)
        gradient = np.zeros_like(theta)
        gradient[:lengths] = 2.0 * shape.inverse * (self._gaps @ (pull * between * slope).ravel())
        gradient[lengths] = by_noise.sum()
        gradient[lengths + 1] = (pull * between * within).sum()
        if process.contexts > 1:
            of_loadings, of_scales, of_noises = process._parts
            signal = np.exp(theta[lengths + 1])
            blocks = self._member @ (pull * within) @ self._member.T * signal
            gradient[of_loadings] = _by_loadings(shape, blocks).ravel()
            gradient[of_scales] = 2.0 * shape.scales * ((blocks * shape.correlation) @ shape.scales)
            gradient[of_noises] = self._member @ by_noise
        return value + penalty, penalty_slope - gradient


def _by_loadings(shape: Shape, blocks: Floats) -> Floats:
    """Return the gradient by the contexts' loadings."""
    across = blocks * np.outer(shape.scales, shape.scales)
    np.fill_diagonal(across, 0.0)
    norms = shape.norms[:, None]
    turn = 2.0 * across @ (shape.loadings / norms) / norms
    radial = (turn * shape.loadings).sum(axis=1)[:, None] / norms**2
    return turn - shape.loadings * radial


class Posterior:
    """A process that is conditioned on samples.

    ``within`` in its methods is the covariance of the samples' settings with those that are asked about, apart from
    that of contexts: compute it once with ``reach``, and use it for every context.
    """

    def __init__(self, process: Process, samples: Samples, shape: Shape) -> None:
        self._process, self.samples, self.shape = process, samples, shape
        context = samples.context
        covariance = shape.between[np.ix_(context, context)] * self.kernel(samples.points, samples.points)
        covariance += context[:, None] == context
        covariance[np.diag_indices(len(samples))] += shape.noise[context] / samples.count + JITTER
        self._lower = np.asfortranarray(np.linalg.cholesky(covariance))
        self._weights = self.solve_transposed(self.solve(samples.value))
        self._lift = shape.between[:, context]
        self._member = (np.arange(process.contexts)[:, None] == context) * 1.0

    def kernel(self, left: Floats, right: Floats) -> Floats:
        """Return the covariance of settings, apart from that of contexts."""
        process, inverse = self._process, self.shape.inverse
        ordered = len(process.ordered)
        scale = np.sqrt(inverse[:ordered])
        first, second = left[:, process.ordered] * scale, right[:, process.ordered] * scale
        squared = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1) - 2.0 * first @ second.T
        np.maximum(squared, 0.0, out=squared)
        for weight, column in zip(inverse[ordered:], process.compared, strict=True):
            squared += weight * (left[:, column][:, None] != right[:, column])
        return matern(squared)[0]

    def reach(self, points: Floats) -> Floats:
        """Return the covariance of the samples' settings with others."""
        return self.kernel(self.samples.points, points)

    def solve(self, right: Floats) -> Floats:
        """Return the solution of a triangular system with the Cholesky factor."""
        return _TRTRS(self._lower, right, lower=1)[0]

    def solve_transposed(self, right: Floats) -> Floats:
        """Return the solution of the transposed system."""
        return _TRTRS(self._lower, right, lower=1, trans=1)[0]

    def means(self, within: Floats) -> Floats:
        """Return the posterior means, contexts by settings."""
        return (self._lift * self._weights) @ within + (self._member @ self._weights)[:, None]

    def cross(self, within: Floats, context: int) -> Floats:
        """Return the covariance of the samples with settings in a context."""
        return self._lift[context][:, None] * within + self._member[context][:, None]

    def prior(self, context: int) -> float:
        """Return the variance of a setting in a context before any sample."""
        return float(self.shape.between[context, context]) + 1.0

    def variances(self, within: Floats, context: int) -> Floats:
        """Return the posterior variances of settings in a context."""
        seen = self.solve(self.cross(within, context))
        return np.maximum(self.prior(context) - (seen**2).sum(axis=0), 1e-10)

    def covariance(self, points: Floats, context: int) -> Floats:
        """Return the posterior covariance of settings in a context."""
        seen = self.solve(self.cross(self.reach(points), context))
        return self.shape.between[context, context] * self.kernel(points, points) + 1.0 - seen.T @ seen
