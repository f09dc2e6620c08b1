"""What a parameter's address means: an argument, an environment variable, or a reserved name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunegym.core.errors import Problem
from tunegym.core.spelling import closest
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.space import Choice
from tunegym.tuning.model.values import spelled

ENV_PREFIX = "extra_env_vars."
NUM_NODES = "num_nodes"
GIVEN = ("trial_dir", "scenario_dir", "step")
"""What every trial is given without being asked; no parameter may have these names."""
REPORT = "report"
"""What a callable is given as well."""


def key_path(address: str) -> str:
    """Where a parameter stands in its experiment's table."""
    return address if address == NUM_NODES or address.startswith(ENV_PREFIX) else f"cmd_args.{address}"


def variables(experiment: Experiment) -> tuple[tuple[str, str], ...]:
    """The addresses that become environment variables, each with the variable's name."""
    return tuple(
        (address, address.removeprefix(ENV_PREFIX))
        for address in experiment.parameter_names()
        if address.startswith(ENV_PREFIX)
    )


def varying_variables(experiment: Experiment) -> list[str]:
    """The addresses of environment variables that differ from trial to trial."""
    return [address for address, _ in variables(experiment) if address not in experiment.space.fixed]


def arguments(experiment: Experiment) -> list[str]:
    """The addresses that a command or a callable must use, since nothing else does.

    A fixed ``num_nodes`` is the runner's business; one that is tuned has to have an effect.
    """
    fixed_nodes = NUM_NODES in experiment.space.fixed
    return [
        address
        for address in experiment.parameter_names()
        if not address.startswith(ENV_PREFIX) and not (address == NUM_NODES and fixed_nodes)
    ]


def candidates(experiment: Experiment) -> list[tuple[str, Any]]:
    """Every value that the scenario spells out, with its address: fixed ones and those of lists."""
    found = list(experiment.space.fixed.items())
    domains = {**experiment.space.knobs, **{n: p.domain for n, p in experiment.env_params.params.items()}}
    for address, domain in domains.items():
        if isinstance(domain, Choice):
            found += [(address, value) for value in domain.values]
    return found


def problems(experiment: Experiment, given: Sequence[str] = GIVEN) -> list[Problem]:
    """What no workload can run: reserved names, impossible environment variables, NUL characters."""
    what = "is a reserved name: every trial is given it"
    found = [
        Problem(key_path(address), f"{address!r} {what}", hint="rename the parameter")
        for address in experiment.parameter_names()
        if address in given
    ]
    for address, variable in variables(experiment):
        if not variable or "=" in variable or "\0" in variable:
            found.append(Problem(key_path(address), f"{variable!r} can't be an environment variable", hint="rename it"))
    for address, value in candidates(experiment):
        if "\0" in str(value):
            found.append(
                Problem(
                    key_path(address),
                    "a value holds a NUL character, which no process can be given",
                    found=spelled(value),
                    hint="remove it",
                )
            )
    return found


def did_you_mean(word: str, names: list[str] | tuple[str, ...], otherwise: str) -> str:
    """The hint for a word that isn't one of ``names``."""
    near = closest(word, names)
    return f"did you mean {near!r}?" if near else otherwise
