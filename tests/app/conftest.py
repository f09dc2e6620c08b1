"""What tests of whole runs share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tunegym.tuning.stores import reader


@pytest.fixture
def token_of() -> Callable[[Path], str]:
    """What marks the processes of an experiment, from its folder."""

    def token(folder: Path) -> str:
        head = reader.head_of(folder / reader.JOURNAL)
        assert head is not None
        return head["run"]

    return token
