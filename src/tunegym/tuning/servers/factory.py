"""From a scenario's description of a server to the host that holds it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunegym.core.errors import TunegymError
from tunegym.core.references import resolve
from tunegym.tuning.model.scenario import PROCESS, LiveSpec
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
    the run's ``token`` in its environment, and ``started`` is called with its handle. ``injected`` replaces the class:
    a server object, which is used again and again and never closed here, or a callable that makes servers.

    Raises:
        TunegymError: the token of a remote server is not known.
    """
    paths = (str(scenario_dir),)
    if spec.address is not None:
        secret = known_token(spec, scenario_dir)
        return TcpHost(spec.address, secret, spec.env_class, spec.arguments, step_timeout_s=spec.step_timeout_s)
    if injected is not None:
        given: Any = injected
        return InProcess(lambda: given, closes=False) if hasattr(given, "step") else InProcess(given)
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
