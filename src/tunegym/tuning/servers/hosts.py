"""From what a scenario says of a server to the object that holds it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunegym.core.errors import TunegymError
from tunegym.core.references import resolve
from tunegym.tuning.model.job import JobHandle
from tunegym.tuning.model.scenario import INJECTED, PROCESS, LiveSpec
from tunegym.tuning.ports import GymServer
from tunegym.tuning.servers.hosting import Host, InProcess
from tunegym.tuning.servers.process import ProcessHost
from tunegym.tuning.servers.protocol import TOKEN_VARIABLE
from tunegym.tuning.servers.tcp import TcpHost
from tunegym.tuning.servers.tokens import read_token


def build_host(
    spec: LiveSpec,
    scenario_dir: Path,
    folder: Path,
    lane: int = 0,
    *,
    token: str,
    injected: GymServer | Callable[[], GymServer] | None = None,
    started: Callable[[JobHandle], None] | None = None,
) -> Host:
    """The host of one lane's server, not started yet.

    Args:
        spec: what the scenario says.
        scenario_dir: where modules and the token file are looked for.
        folder: where a process of the server's own leaves what it prints.
        lane: which of several servers this is.
        token: names the run; a process of the server's own carries it (not what ``tunegym serve`` wants to know).
        injected: the server, which is never closed here, or what makes one, where the scenario leaves that to Python.
        started: called with pid and start time of a process of the server's own.

    Raises:
        TunegymError: the server is to be given in Python and isn't, or its token can't be had.
    """
    paths = (str(scenario_dir),)
    address = spec.address
    if address is not None:
        expected = "" if spec.env_class == INJECTED else spec.env_class
        return TcpHost(
            address, known_token(spec, scenario_dir), expected, spec.arguments, step_timeout_s=spec.step_timeout_s
        )
    if spec.env_class == INJECTED:
        return _given(injected)
    if spec.server == PROCESS:
        return ProcessHost(
            spec.env_class,
            spec.arguments,
            paths,
            folder=folder,
            lane=lane,
            token=token,
            step_timeout_s=spec.step_timeout_s,
            started=started,
        )
    return InProcess(lambda: resolve(spec.env_class, paths)(**spec.arguments))


def known_token(spec: LiveSpec, scenario_dir: Path) -> str:
    """What a server elsewhere wants to know. Raises ``TunegymError`` if nobody has said it."""
    token = read_token(None if spec.token_file is None else scenario_dir / spec.token_file)
    if token is None:
        raise TunegymError(
            f"the token of {spec.server} is not known",
            hint=f"export {TOKEN_VARIABLE}=... as tunegym serve says, or name a server_token_file",
        )
    return token


def _given(injected: Any) -> InProcess:
    """An object is given out again and again, also to the next experiment; a class or function is called each time."""
    if injected is None:
        raise TunegymError("the server is to be given in Python, and none is", hint="name an env_class, or give one")
    given: Any = injected
    if inspect.isclass(injected) or (callable(injected) and not hasattr(injected, "step")):
        return InProcess(given)
    return InProcess(lambda: given, closes=False)
