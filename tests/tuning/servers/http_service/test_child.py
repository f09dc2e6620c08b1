from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tunegym.tuning.servers.http_service import serving_main
from tunegym.tuning.servers.http_service.child import Child, ChildError

PATIENCE_S = 60.0


@pytest.fixture
def service() -> Iterator[Child]:
    child = Child("the service", serving_main.__name__, 0.0, 0.0)
    child.hear(PATIENCE_S)
    yield child
    child.close()


def test_it_answers_and_ends(service: Child) -> None:
    assert service.ask({}, PATIENCE_S)["received"] == 0
    assert service.alive
    service.close()
    assert not service.alive
    with pytest.raises(ProcessLookupError):
        os.kill(service.pid, 0)
    service.close()


def test_one_that_dies_is_told(service: Child) -> None:
    os.kill(service.pid, signal.SIGKILL)
    with pytest.raises(ChildError, match="the service has ended with code -9"):
        service.ask({}, PATIENCE_S)


def test_one_that_raises_says_why(service: Child) -> None:
    with pytest.raises(ChildError, match=r"ended with code 1: TypeError: .*threads"):
        service.ask({"knobs": {"threads": 3}}, PATIENCE_S)


@pytest.mark.slow
def test_one_that_hangs_is_not_waited_for_for_ever(service: Child) -> None:
    os.kill(service.pid, signal.SIGSTOP)
    with pytest.raises(ChildError, match=r"the service did not answer within 0.1 s"):
        service.ask({}, 0.1)
    service.close()
    assert not service.alive


def test_one_that_cannot_start_says_why() -> None:
    child = Child("the service", serving_main.__name__, "much", 0.0)
    with pytest.raises(ChildError, match="ended with code 1: ValueError"):
        child.hear(PATIENCE_S)
    child.close()
