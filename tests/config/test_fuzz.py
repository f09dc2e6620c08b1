"""Whatever a user writes, the answer is a scenario or a ConfigError with hints."""

from __future__ import annotations

import copy
import datetime
import tomllib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.config.conftest import GOOD

from tunegym.config.load import load, parse
from tunegym.core.errors import ConfigError
from tunegym.core.files import dump_toml

NAMES = ("design", "ranges", "nested", "metrics_forms", "agent_config", "live_env_params", "live_arguments")
DOCUMENTS = [tomllib.loads((GOOD / f"{name}.toml").read_text()) for name in NAMES]
WORDS = """low high step dtype log weights encoding regex json csv file match row name agent workload cmd_args metrics
rewards metric_failure num_nodes extra_env_vars isolate timeout_s env_class live_rl_mode server record draw a b.c"""
KEYS = st.sampled_from(WORDS.split()) | st.text(max_size=3)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-2, 5)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["grid_search", "random_search", "python", "int", "log", "auto", "json:loads", "a <= 3"])
    | st.just(datetime.date(2024, 1, 1))
    | st.just(print)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


def loaded(attempt):
    """What ``attempt`` gives, or None if it was refused in the proper way."""
    try:
        return attempt()
    except ConfigError as error:
        problems = error.problems
    assert problems
    assert all(problem.what and problem.hint for problem in problems)
    return None


def containers(value):
    """Every table and list in a document, itself included."""
    if isinstance(value, dict | list):
        yield value
        for item in value.values() if isinstance(value, dict) else value:
            yield from containers(item)


def mutate(document, data):
    container = data.draw(st.sampled_from(list(containers(document))))
    value = data.draw(VALUES)
    if isinstance(container, list):
        index = data.draw(st.integers(0, len(container)))
        container[index : index + data.draw(st.integers(0, 1))] = [value]
    elif container and data.draw(st.booleans()):
        key = data.draw(st.sampled_from(list(container)))
        if data.draw(st.booleans()):
            container[key] = value
        else:
            del container[key]
    else:
        container[data.draw(KEYS)] = value


@pytest.mark.parametrize("examples", [60, pytest.param(400, marks=pytest.mark.slow)])
def test_a_mutated_scenario_loads_or_is_refused(examples, catalog):
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data):
        document = copy.deepcopy(data.draw(st.sampled_from(DOCUMENTS)))
        for _ in range(data.draw(st.integers(1, 3))):
            mutate(document, data)
        scenario = loaded(lambda: parse(document, catalog, scenario_dir=GOOD))
        if scenario is not None:
            again = parse(tomllib.loads(dump_toml(scenario.document)), catalog, scenario_dir="/")
            assert again == scenario

    check()


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_file_of_any_bytes(catalog, data, tmp_path):
    text = (GOOD / "design.toml").read_bytes()
    start = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 20))
    file = tmp_path / "scenario.toml"
    file.write_bytes(text[:start] + data.draw(st.binary(max_size=5)) + text[start + cut :])
    loaded(lambda: load(file, catalog))


@pytest.mark.parametrize("text", ["", "a", "=", "seed=", "experiments=3", "experiments.iperf.=1", "a.b.c=1", "\0=1"])
def test_any_override(text, catalog):
    loaded(lambda: load(GOOD / "design.toml", catalog, overrides=[text]))
