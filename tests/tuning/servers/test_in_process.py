from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tunegym.core.references import resolve
from tunegym.testing.hosts import COUNT, UNRULY, HostSuite
from tunegym.testing.sample_servers import Unruly
from tunegym.tuning.servers.host import InProcess, ServerFailure


class TestInProcess(HostSuite):
    def make_host(
        self, folder: Path, reference: str, arguments: Mapping[str, Any], step_timeout_s: float | None = None
    ) -> InProcess:
        return InProcess(lambda: resolve(reference)(**arguments))


def test_the_step_is_the_servers_own() -> None:
    """Not even a call is in between; and what is given back is not copied: whoever keeps it does that."""
    server = resolve(UNRULY)()
    host = InProcess(lambda: server)
    host.start()
    assert host.step == server.step


def test_server_without_spaces() -> None:
    host = InProcess(object)  # type: ignore[arg-type]
    with pytest.raises(ServerFailure, match="it could not be built: AttributeError") as failed:
        host.start()
    assert failed.value.lost


@pytest.mark.parametrize("closed", [False, True])
def test_step_of_no_server(closed: bool) -> None:
    host = InProcess(Unruly)
    if closed:
        host.start()
        host.close()
    with pytest.raises(ServerFailure, match="it was not started") as failed:
        host.step(COUNT)
    assert failed.value.lost
