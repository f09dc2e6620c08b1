"""What tests of servers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tunegym.tuning.servers.host import ServerHost


@pytest.fixture
def started(make: Callable[..., ServerHost]) -> Callable[..., ServerHost]:
    """As the test file's ``make``, started and reset."""

    def start(*arguments: Any, **options: Any) -> ServerHost:
        host = make(*arguments, **options)
        host.start()
        host.reset(None, None)
        return host

    return start
