"""From a scenario's description of a server to the host that holds it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunegym.core.errors import TunegymError
from tunegym.core.references import resolve
from tunegym.tuning.model.scenario import INJECTED, PROCESS, LiveSpec
from tunegym.tuning.model.trial import JobHandle
from tunegym.tuning.ports import GymServer
from tunegym.tuning.servers.host import InProcess, ServerHost
from tunegym.tuning.servers.process import ProcessHost
from tunegym.tuning.servers.protocol import TOKEN_VARIABLE, read_token
from tunegym.tuning.servers.remote import TcpHost


def build_host(
    spec: LiveSpec,
    scenario_dir: Path,
    folder: Path,
    lane: int = 0,
    *,
    token: str,
    injected: GymServer | Callable[[], GymServer] | None = None,
    started: Callable[[JobHandle], None] | None = None,
) -> ServerHost:
    """Build the host of one lane's server; it is not started yet.

    Modules and the token file are looked for in ``scenario_dir``; a server process logs to ``folder``, carries
    the run's ``token`` in its environment, and ``started`` is called with its handle. ``injected`` is a server object,
    which is never closed here, or a callable that makes servers.

    Raises:
        TunegymError: there is no injected server where the scenario needs one, or no token.
    """
    paths = (str(scenario_dir),)
    if spec.address is not None:
        expected = "" if spec.env_class == INJECTED else spec.env_class
        secret = known_token(spec, scenario_dir)
        return TcpHost(spec.address, secret, expected, spec.arguments, step_timeout_s=spec.step_timeout_s)
    if spec.env_class == INJECTED:
        return _injected_host(injected)
    if spec.server == PROCESS:
        setup = spec.env_class, spec.arguments, paths
        timeout_s = spec.step_timeout_s
        return ProcessHost(*setup, folder=folder, lane=lane, token=token, step_timeout_s=timeout_s, started=started)
    return InProcess(lambda: resolve(spec.env_class, paths)(**spec.arguments))


def known_token(spec: LiveSpec, scenario_dir: Path) -> str:
    """Return the token of a server elsewhere. Raises ``TunegymError`` if it is in no file and no variable."""
    token = read_token(None if spec.token_file is None else scenario_dir / spec.token_file)
    if token is None:
        raise TunegymError(
            f"the token of {spec.server} is not known",
            hint=f"export {TOKEN_VARIABLE}=... as tunegym serve says, or name a server_token_file",
        )
    return token


def _injected_host(injected: Any) -> InProcess:
    """An object is used again and again, also by the next experiment; a class or function is called each time."""
    if injected is None:
        raise TunegymError("the server is to be given in Python, and none is", hint="name an env_class, or give one")
    given: Any = injected
    if inspect.isclass(injected) or (callable(injected) and not hasattr(injected, "step")):
        return InProcess(given)
    return InProcess(lambda: given, closes=False)
