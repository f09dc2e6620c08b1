from __future__ import annotations

import errno
import math
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tunegym.core.files import dump_toml, write_atomic

# atomic writes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["é\n", b"\x00\xff", memoryview(b"rows")])
def test_a_file_is_replaced_once_its_content_is_on_the_disk(
    tmp_path: Path, content: str | bytes | memoryview, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "file.txt"
    place.write_text("before")
    expected = content.encode() if isinstance(content, str) else bytes(content)
    synced, seen = os.fsync, []

    def fsync(file: int) -> None:
        seen.append((place.read_text(), (tmp_path / "file.txt.new").read_bytes()))
        synced(file)

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomic(place, content)
    assert seen == [("before", expected)]
    assert place.read_bytes() == expected
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


_LIMITED = """
import resource, signal, sys
from pathlib import Path
from tunegym.core.files import write_atomic
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_atomic(Path(sys.argv[1]), b"x" * 5000)
except OSError as error:
    print(error.strerror)
"""


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "file.txt"
    place.write_text("before")
    command = [sys.executable, "-c", _LIMITED, str(place)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert told.stdout.strip() == os.strerror(errno.EFBIG)

    def interrupted(file: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(place, "all of it")
    assert place.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


# TOML -------------------------------------------------------------------------------------------------

text = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.one_of(text, st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans())
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4), max_leaves=25
)


def exact(value: Any) -> Any:
    """A value in which types and the sign of zero count, and the order of keys doesn't."""
    if isinstance(value, dict):
        return {key: exact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [exact(item) for item in value]
    return (type(value).__name__, repr(value))


@example({"x": [1, 1.0, True, -0.0, 1e300, 5e-324, 1e22, math.inf, -math.inf, 2**63 - 1]})
@given(st.dictionaries(text, values, max_size=6))
def test_toml_reads_back(document: dict[str, Any]) -> None:
    assert exact(tomllib.loads(dump_toml(document))) == exact(document)
    assert dump_toml(document).replace("\n", "").isprintable()


def test_toml_reads_like_a_scenario() -> None:
    knobs = {"command": "run {a}", "buffer_kb": {"low": 64, "high": 8192, "dtype": "int"}, "last": 1}
    metrics = {"mbps": {"regex": r"mbps=(\d+)"}}
    document = {
        "name": "tcp",
        "system": {"runner": "local", "slots": 2},
        "seed": 42,
        "experiments": [{"name": "iperf", "agent": None, "cmd_args": knobs, "metrics": metrics}],
    }
    assert dump_toml(document) == (
        'name = "tcp"\nseed = 42\n\n[system]\nrunner = "local"\nslots = 2\n\n'
        '[[experiments]]\nname = "iperf"\n\n'
        '[experiments.cmd_args]\ncommand = "run {a}"\n'
        'buffer_kb = { low = 64, high = 8192, dtype = "int" }\nlast = 1\n\n'
        "[experiments.metrics]\nmbps = { regex = 'mbps=(\\d+)' }\n"
    )
    long = {"x": [["a" * 30] * 5, [{"k": "v" * 90}]]}
    assert max(map(len, dump_toml(long).splitlines())) < 130


def test_none_is_left_out_and_empty_tables_stay() -> None:
    document = {"a": None, "t": {"b": None}, "e": {}, "l": [{}, {"x": {}}], "deep": {"er": {"est": {}}}}
    expected = {"t": {}, "e": {}, "l": [{}, {"x": {}}], "deep": {"er": {"est": {}}}}
    assert tomllib.loads(dump_toml(document)) == expected
    assert dump_toml({}) == ""


@pytest.mark.parametrize("value", [object(), b"x", {1}, [None], 1j, {"x": {1: 2}}, "\ud800"])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        dump_toml({"x": value})
