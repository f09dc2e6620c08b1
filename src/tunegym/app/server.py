"""The server of a live experiment: the host that holds it, and the ``server=`` argument that gives it in Python.

The argument, of ``run``, ``resume`` and ``make``, is an object, or a class or function that makes one, and takes the
place of ``env_class`` in the scenario.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tunegym.config.load import read_file
from tunegym.core.errors import ConfigError, Problem, TunegymError
from tunegym.core.references import resolve
from tunegym.tuning.model.scenario import INJECTED, PROCESS, Experiment, LiveSpec, Scenario
from tunegym.tuning.model.trial import JobHandle
from tunegym.tuning.model.values import spelled
from tunegym.tuning.servers.host import InProcess, ServerHost
from tunegym.tuning.servers.process import ProcessHost
from tunegym.tuning.servers.protocol import TOKEN_VARIABLE, read_token
from tunegym.tuning.servers.remote import TcpHost
from tunegym.tuning.workloads.signature import A_SERVER_HAS, METHODS, argument_problems, described, refusal

_EXPECTED = "a GymServer, or a class or function that makes one"


def with_injected(source: str | Path | Mapping[str, Any]) -> Mapping[str, Any]:
    """The scenario as plain data, in which ``server=`` replaces the ``env_class`` of live experiments."""
    if isinstance(source, Mapping):
        document = dict(source)
    else:
        path = Path(source)
        document = {"scenario_dir": str(path.absolute().parent), **read_file(path)}
    experiments = document.get("experiments")
    if isinstance(experiments, list | tuple):
        document["experiments"] = [_injected(one) for one in experiments]
    return document


def _injected(experiment: Any) -> Any:
    """Malformed tables are left for the configuration's own checks."""
    arguments = experiment.get("cmd_args", {}) if isinstance(experiment, Mapping) else None
    if not isinstance(arguments, Mapping):
        return experiment
    live = experiment.get("workload") == "live" or arguments.get("live_rl_mode") is True
    return {**experiment, "cmd_args": {**arguments, "env_class": INJECTED}} if live else experiment


def check_server(server: Any) -> None:
    """Refuse a value that can neither be a server nor make one. Raises ``TunegymError``."""
    if inspect.isclass(server):
        described(_name_of(server), server)
    elif _is_object(server):
        missing = ", ".join(f"{name}()" for name in METHODS if not callable(getattr(server, name, None)))
        if missing:
            what = f"server= is no GymServer: this {type(server).__name__} has no {missing}"
            raise TunegymError(what, hint=A_SERVER_HAS)
    elif not callable(server):
        hint = "give the object itself, its class, or a function that makes one; a reference goes to env_class"
        raise TunegymError(f"server= is {server!r:.60}, and not {_EXPECTED}", hint=hint)
    elif (reason := refusal(server)) is not None:
        name = getattr(server, "__name__", repr(server))
        hint = "give a function without arguments, such as lambda: MyServer(4), or the class, which gets cmd_args"
        raise TunegymError(f"server= is {name}(), which can't be called without arguments: {reason}", hint=hint)


def check_given(scenario: Scenario, server: Any, only: Experiment | None = None) -> None:
    """Refuse a server that no experiment would use, or that doesn't take the arguments in ``cmd_args``.

    Args:
        scenario: made by ``with_injected``.
        server: checked by ``check_server``.
        only: the experiment that it is for; None for all.

    Raises:
        TunegymError: no experiment would use it.
        ConfigError: ``cmd_args`` holds arguments that the class doesn't take, or there is no class to take them.
    """
    candidates = scenario.experiments if only is None else (only,)
    specs = [(one.name, one.live) for one in candidates if one.live is not None]
    if not specs:
        what = f"{scenario.name} has no live experiment" if only is None else f"{only.name} is no live experiment"
        raise TunegymError(f"server= is given, and {what}", hint="leave server= out")
    problems: list[Problem] = []
    for name, spec in specs:
        if spec.env_class != INJECTED:
            what = f"server= is given, and the server of {name} is its env_class {spec.env_class}"
            raise TunegymError(what, hint="leave server= out, or start a new run with it")
        problems += _argument_problems(f"experiments.{name}.cmd_args", spec.arguments, server)
    if problems:
        raise ConfigError(str(scenario.file), problems)


def _argument_problems(where: str, arguments: Mapping[str, Any], server: Any) -> list[Problem]:
    if inspect.isclass(server):
        return argument_problems(described(_name_of(server), server), arguments, f"{where}.")
    what = "the server isn't given as a class, so that this would have no effect"
    hint = "remove it, or give the class: it is called with cmd_args"
    return [
        Problem(f"{where}.{key}", what, spelled(value), "env_params only", hint) for key, value in arguments.items()
    ]


def check_injected(scenario: Scenario, experiment: Experiment, server: Any) -> None:
    """Refuse an experiment whose server object is missing, or can't fill all slots. Raises ``TunegymError``."""
    if experiment.live is None or experiment.live.env_class != INJECTED:
        return
    if server is None:
        what = f"the server of {experiment.name} was given as an object in Python, and there is none now"
        raise TunegymError(what, hint="call tunegym.run, resume or make with server=...")
    if scenario.slots > 1 and _is_object(server):
        hint = "give a class or a function that makes servers, or slots = 1"
        raise TunegymError(f"one server object can't be in {scenario.slots} slots at once", hint=hint)


def build_host(
    spec: LiveSpec,
    scenario_dir: Path,
    folder: Path,
    lane: int = 0,
    *,
    token: str,
    server: Any = None,
    started: Callable[[JobHandle], None] | None = None,
) -> ServerHost:
    """Build the host of one lane's server; it is not started yet.

    Modules and the token file are looked for in ``scenario_dir``; a server process logs to ``folder``, carries
    the run's ``token`` in its environment, and ``started`` is called with its handle. A ``server`` that is an object is
    used again and again, and never closed here.

    Raises:
        TunegymError: the token of a remote server is not known.
    """
    paths, timeout_s = (str(scenario_dir),), spec.step_timeout_s
    if spec.address is not None:
        secret = known_token(spec, scenario_dir)
        return TcpHost(spec.address, secret, spec.env_class, spec.arguments, step_timeout_s=timeout_s)
    if server is not None:
        given: Any = partial(server, **spec.arguments) if inspect.isclass(server) else server
        return InProcess(lambda: given, closes=False) if _is_object(given) else InProcess(given)
    if spec.server == PROCESS:
        setup = spec.env_class, spec.arguments, paths
        return ProcessHost(*setup, folder=folder, lane=lane, token=token, step_timeout_s=timeout_s, started=started)
    return InProcess(lambda: resolve(spec.env_class, paths)(**spec.arguments))


def known_token(spec: LiveSpec, scenario_dir: Path) -> str:
    """The token of a server elsewhere. Raises ``TunegymError`` if it is in no file and no variable."""
    token = read_token(None if spec.token_file is None else scenario_dir / spec.token_file)
    if token is None:
        hint = f"export {TOKEN_VARIABLE}=... as tunegym serve says, or name a server_token_file"
        raise TunegymError(f"the token of {spec.server} is not known", hint=hint)
    return token


def _is_object(server: Any) -> bool:
    return not inspect.isclass(server) and hasattr(server, "step")


def _name_of(found: type) -> str:
    return f"{found.__module__}:{found.__qualname__}"
