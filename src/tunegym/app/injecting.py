"""Scenarios whose server is given in Python: an object, or a class or function that makes one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tunegym.config.files import content
from tunegym.core.errors import ConfigError, Problem, TunegymError
from tunegym.tuning.model.scenario import INJECTED, Experiment, LiveSpec, Scenario
from tunegym.tuning.model.values import spelled
from tunegym.tuning.workloads.gym_class import METHODS, argument_problems, described

_WHAT = "a GymServer, or a class or function that makes one"


def with_injected(source: str | Path | Mapping[str, Any]) -> Mapping[str, Any]:
    """The same scenario as plain data, whose live experiments take the server that they are given."""
    if isinstance(source, Mapping):
        document = dict(source)
    else:
        path = Path(source)
        document = {"scenario_dir": str(path.absolute().parent), **content(path)}
    experiments = document.get("experiments")
    if isinstance(experiments, list | tuple):
        document["experiments"] = [_injected(one) for one in experiments]
    return document


def _injected(experiment: Any) -> Any:
    """Whatever is wrong with it is left for the checks to say."""
    if not isinstance(experiment, Mapping):
        return experiment
    arguments = experiment.get("cmd_args", {})
    live = isinstance(arguments, Mapping) and (
        experiment.get("workload") == "live" or arguments.get("live_rl_mode") is True
    )
    return {**experiment, "cmd_args": {**arguments, "env_class": INJECTED}} if live else experiment


def check_server(server: Any) -> None:
    """Refuse what can't be a server, and can't make one, whatever the scenario is. Raises ``TunegymError``."""
    if isinstance(server, str):
        hint = f"write it as env_class = {spelled(server)} in cmd_args, and leave server= out"
        raise TunegymError(f"server= is the text {server!r}, and not {_WHAT}", hint=hint)
    if inspect.isclass(server):
        described(_name_of(server), server)
    elif _is_object(server):
        missing = [name for name in METHODS if not callable(getattr(server, name, None))]
        if missing:
            names = ", ".join(f"{name}()" for name in missing)
            hint = "a server has reset(seed, options), step(action) and close()"
            raise TunegymError(f"server= is no GymServer: this {type(server).__name__} has no {names}", hint=hint)
    elif not callable(server):
        hint = "give the object itself, its class, or a function without arguments that makes one"
        raise TunegymError(f"server= is {server!r:.60}, and not {_WHAT}", hint=hint)
    else:
        _check_callable(server)


def check_given(scenario: Scenario, server: Any, only: Experiment | None = None) -> None:
    """Refuse a server that a checked scenario has no use for, or that doesn't take what its ``cmd_args`` say.

    Args:
        scenario: as ``with_injected`` made it.
        server: that ``check_server`` found nothing wrong with.
        only: the experiment that it is for; None for all.

    Raises:
        TunegymError: nobody would ever use it.
        ConfigError: the arguments in ``cmd_args`` are none of the class's, or there is no class to take them.
    """
    candidates = scenario.experiments if only is None else (only,)
    live = [(one.name, one.live) for one in candidates if one.live is not None]
    if not live:
        what = f"{scenario.name} has no live experiment" if only is None else f"{only.name} is no live experiment"
        raise TunegymError(f"server= is given, and {what}", hint="leave server= out")
    for name, spec in live:
        if spec.env_class != INJECTED:
            hint = "leave server= out, or start a new run with it"
            raise TunegymError(
                f"server= is given, and the server of {name} is its env_class {spec.env_class}", hint=hint
            )
    problems = [problem for name, spec in live for problem in _argument_problems(name, spec, server)]
    if problems:
        raise ConfigError(str(scenario.file), problems)


def maker_of(server: Any, spec: LiveSpec) -> Any:
    """What a host is given: an object or a function as it is, a class with its arguments."""
    return partial(server, **spec.arguments) if inspect.isclass(server) else server


def _argument_problems(name: str, spec: LiveSpec, server: Any) -> list[Problem]:
    where = f"experiments.{name}.cmd_args"
    if inspect.isclass(server):
        found = argument_problems(described(_name_of(server), server), spec.arguments)
        return [
            Problem(
                f"{where}.{one.where}",
                one.what,
                spelled(spec.arguments[one.where]) if one.where in spec.arguments else None,
                one.allowed,
                one.hint,
            )
            for one in found
        ]
    kind = "an object" if _is_object(server) else "a function"
    return [
        Problem(
            f"{where}.{key}",
            f"the server is given as {kind}, which takes no arguments, so that this would have no effect",
            spelled(value),
            "env_params only",
            f"remove {key}, or give the class: it is called with cmd_args",
        )
        for key, value in spec.arguments.items()
    ]


def _is_object(server: Any) -> bool:
    return not inspect.isclass(server) and hasattr(server, "step")


def _name_of(found: type) -> str:
    return f"{found.__module__}:{found.__qualname__}"


def _check_callable(function: Callable[..., Any]) -> None:
    try:
        inspect.signature(function).bind()
    except ValueError:  # it doesn't say what it takes, so it is trusted to take nothing
        return
    except TypeError as error:
        name = getattr(function, "__name__", repr(function))
        hint = (
            "give a function without arguments, such as lambda: MyServer(4), or the class: it is called with cmd_args"
        )
        raise TunegymError(
            f"server= is {name}(), which can't be called without arguments: {error}", hint=hint
        ) from None
