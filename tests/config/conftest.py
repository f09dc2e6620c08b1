from __future__ import annotations

from pathlib import Path

import pytest

from tunegym.app.catalog import Catalog
from tunegym.config.load import parse
from tunegym.core.errors import ConfigError

GOOD = Path(__file__).parent / "good"


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return Catalog()


def experiment(**keys):
    return {
        "name": "e",
        "workload": "command",
        "agent": "random_search",
        "agent_steps": 4,
        "agent_metrics": ["duration_s"],
        "cmd_args": {"command": "true {threads}", "threads": [1, 2]},
        **keys,
    }


def live(cmd_args=None, **keys):
    """A live experiment on a server of the good corpus."""
    arguments = {"env_class": "good_live:Server", "size": 3} if cmd_args is None else cmd_args
    agent = {"agent": "good_live:Driver", "agent_steps": 10}
    return {"name": "e", "workload": "live", "cmd_args": arguments, **agent, **keys}


def document(**keys):
    return {"name": "demo", "experiments": [experiment(**keys)]}


def problems(document, catalog, **options):
    """Of a document that is refused."""
    with pytest.raises(ConfigError) as caught:
        parse(document, catalog, scenario_dir=GOOD, **options)
    return caught.value.problems
