"""Every good file loads, every bad one gives exactly the message that its head asks for."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tunegym.config.load import load, parse
from tunegym.core.errors import ConfigError
from tunegym.core.files import dump_toml

HERE = Path(__file__).parent
GOOD = sorted((HERE / "good").glob("*.toml"))
BAD = sorted((HERE / "bad").glob("*.toml"))


def headed(file: Path, word: str) -> list[str]:
    lines = file.read_bytes().decode(errors="replace").splitlines()
    return [line.removeprefix(f"# {word}: ") for line in lines if line.startswith(f"# {word}: ")]


@pytest.mark.parametrize("file", GOOD, ids=lambda file: file.stem)
def test_good(file, catalog):
    """It loads, and its resolved document gives the same scenario again."""
    scenario = load(file, catalog)
    assert scenario.experiments
    assert scenario.scenario_dir == HERE / "good"
    assert bool(scenario.warnings) == (file.stem in ("plain_with_agent", "constraints_tight"))
    for document in (scenario.document, tomllib.loads(dump_toml(scenario.document))):
        again = parse(document, catalog, file=str(file), scenario_dir="/")
        assert again == scenario
        for ours, theirs in zip(again.experiments, scenario.experiments, strict=True):
            assert list(ours.space.knobs) == list(theirs.space.knobs)
            assert repr(ours) == repr(theirs)  # 1, 1.0 and True are equal to Python


@pytest.mark.parametrize("file", BAD, ids=lambda file: file.stem)
def test_bad(file, catalog):
    expected = headed(file, "expect")
    assert expected, "the head of a bad file says what its message holds"

    with pytest.raises(ConfigError) as caught:
        load(file, catalog)

    text = str(caught.value)
    for part in expected:
        assert part in text
    for word in ("pydantic", "Traceback", "Input should", "http://errors"):
        assert word not in text
    count = int((headed(file, "problems") or ["1"])[0])
    assert len(caught.value.problems) == count, text
    for problem in caught.value.problems:
        assert problem.hint, text
        place = f"{file}: " if problem.line is None else f"{file}:{problem.line}: "
        assert f"{place}{problem.where}" in text
        assert f"hint: {problem.hint}" in text
        assert problem.where or "bad/" in text


@pytest.mark.parametrize("name", ["single_sbatch_in_order", "slurm_in_order"])
def test_routing_is_refused_in_order(name, catalog):
    """T8: mixed experiments first, then what one allocation can't have, then env_params."""
    file = HERE / "bad" / f"{name}.toml"
    with pytest.raises(ConfigError) as caught:
        load(file, catalog)
    places = [str(caught.value).index(part) for part in headed(file, "expect")]
    assert places == sorted(places)
