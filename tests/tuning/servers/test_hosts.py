"""Which host a scenario gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunegym.core.errors import TunegymError
from tunegym.testing.sample_servers import Unruly
from tunegym.tuning.model.scenario import INJECTED, LiveSpec
from tunegym.tuning.servers.factory import build_host
from tunegym.tuning.servers.host import InProcess
from tunegym.tuning.servers.process import ProcessHost
from tunegym.tuning.servers.remote import TcpHost

UNRULY = "tunegym.testing.sample_servers:Unruly"
ELSEWHERE = "tcp://127.0.0.1:4000"


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNEGYM_SERVER_TOKEN", raising=False)


def build(folder: Path, injected: Any = None, env_class: str = UNRULY, **spec: Any) -> Any:
    return build_host(LiveSpec(env_class, **spec), folder, folder, token="t", injected=injected)


def test_where_the_server_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(build(tmp_path), InProcess)
    assert isinstance(build(tmp_path, server="process", step_timeout_s=3.0), ProcessHost)
    monkeypatch.setenv("TUNEGYM_SERVER_TOKEN", "a")
    assert isinstance(build(tmp_path, server=ELSEWHERE), TcpHost)
    assert isinstance(build(tmp_path, server=ELSEWHERE, env_class=""), TcpHost)


def test_in_process_by_reference(tmp_path: Path) -> None:
    host = build(tmp_path, arguments={"start": 4})
    host.start()
    assert host.reset(None, None)[0].tolist() == [4, 1]
    host.close()


def test_injected(tmp_path: Path) -> None:
    given = Unruly(start=7)
    for injected in (given, lambda: given):
        host = build(tmp_path, injected, INJECTED)
        host.start()
        assert host.reset(None, None)[0].tolist() == [7, 1]
        host.close()
    host = build(tmp_path, Unruly, INJECTED)
    host.start()
    assert host.reset(None, None)[0].tolist() == [0, 1]
    host.close()
    with pytest.raises(TunegymError, match="to be given in Python, and none is"):
        build(tmp_path, None, INJECTED)


class Closing(Unruly):
    closed = 0

    def close(self) -> None:
        type(self).closed += 1


def test_an_object_is_closed_by_whoever_gave_it(tmp_path: Path) -> None:
    """It is given out again: after a failure, and to the next experiment. What is made here is closed here."""
    given = Closing()
    host = build(tmp_path, given, INJECTED)
    for _ in range(2):
        host.start()
        host.start()
        host.reset(None, None)
        host.close()
    assert Closing.closed == 0
    host = build(tmp_path, Closing, INJECTED)
    host.start()
    host.start()
    host.close()
    host.close()
    assert Closing.closed == 2


def test_the_token_of_a_server_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TunegymError, match=f"the token of {ELSEWHERE} is not known") as error:
        build(tmp_path, server=ELSEWHERE)
    assert "export TUNEGYM_SERVER_TOKEN" in (error.value.hint or "")
    (tmp_path / "token.txt").write_text("secret\n")
    build(tmp_path, server=ELSEWHERE, token_file="token.txt")
    with pytest.raises(TunegymError, match="can't be read: No such file"):
        build(tmp_path, server=ELSEWHERE, token_file="missing.txt")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(TunegymError, match="can't be read: "):
        build(tmp_path, server=ELSEWHERE, token_file="binary")
    (tmp_path / "long").write_text("x" * 5000)
    with pytest.raises(TunegymError, match="holds more than 4096 characters"):
        build(tmp_path, server=ELSEWHERE, token_file="long")
