from __future__ import annotations

import pytest

from tunegym.app.catalog import Catalog


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return Catalog()
