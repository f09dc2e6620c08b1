"""The page as a file: hostile text stays text, nothing is fetched, no password is in it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import orjson
import pytest

from tunegym.core.errors import StoreError
from tunegym.core.files import dump_toml
from tunegym.tuning.model.trial import Failed, Trial
from tunegym.tuning.model.values import masked
from tunegym.tuning.reports.page import Known, embedded, render, run_document, write_page
from tunegym.tuning.reports.results import RunResults, load

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "]]>&amp;",
    "\u2028\u2029",
    "{{style}}",
    "\x00\x1b[31m",
]


class Scripts(HTMLParser):
    """What a browser would take for scripts, styles and outside references."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.references: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")
        self.references += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


def parsed(text: str) -> Scripts:
    parser = Scripts()
    parser.feed(text)
    return parser


@pytest.mark.parametrize("text", HOSTILE)
def test_data_comes_back_exactly_and_is_never_markup(text: str) -> None:
    data: dict[str, Any] = {"kind": "run", text: [text]}
    page = parsed(render(text, data))
    assert len(page.scripts) == 2
    assert orjson.loads(page.scripts[0]) == data
    assert not re.search("[<>&\u2028\u2029]", embedded(data))


def policy_of(text: str) -> dict[str, list[str]]:
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert found
    return {name: allowed for name, *allowed in (one.split() for one in found[1].split(";"))}


def test_only_its_own_script_and_style_are_allowed() -> None:
    """By hash: nothing else runs, also not what would come in as an attribute of an element."""
    text = render("t", {"kind": "run", "text": HOSTILE})
    policy = policy_of(text)
    style = re.search("<style>(.*?)</style>", text, re.DOTALL)
    assert style
    for name, inside in (("script-src", parsed(text).scripts[1]), ("style-src", style[1])):
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert policy[name] == [f"'sha256-{digest}'"]
    assert "unsafe" not in str(policy)
    assert "\r" not in text.replace(embedded({"text": HOSTILE}), ""), "a browser hashes without carriage returns"


def test_nothing_is_fetched() -> None:
    text = render("t", {"kind": "run"})
    assert parsed(text).references == ["data:,"]
    policy = policy_of(text)
    assert policy["default-src"] == ["'none'"]
    assert policy["base-uri"] == policy["form-action"] == ["'none'"]
    assert not re.search(r"https?://", text)


def test_the_page_never_makes_markup_of_text() -> None:
    script = parsed(render("t", {})).scripts[1]
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert way not in script


def test_no_slot_is_left() -> None:
    assert "{{" not in re.sub(r"`[^`]*`", "", render("t", {"kind": "run"}))


def test_small() -> None:
    assert len(render("t", {})) < 120_000


def test_no_text_of_a_script_goes_over_several_lines() -> None:
    """Its indentation is cut off in the page."""
    for path in (resources.files("tunegym.tuning.reports") / "html").iterdir():
        if path.name.endswith(".js"):
            assert all(line.count("`") % 2 == 0 for line in path.read_text().splitlines()), path.name


def test_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_page(path, "one", {}, "h")
    assert "<title>one</title>" in path.read_text()
    write_page(path, "two & three", {}, "h")
    assert "<title>two &amp; three</title>" in path.read_text()
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(StoreError, match="can't be written") as told:
        write_page(tmp_path / "missing" / "page.html", "t", {}, "try elsewhere")
    assert told.value.hint == "try elsewhere"
    (tmp_path / "taken.html").mkdir()
    with pytest.raises(StoreError, match="can't be written"):
        write_page(tmp_path / "taken.html", "t", {}, "h")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["page.html", "taken.html"], "nothing half is left"


# passwords -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://user:secret@host/db", "postgresql://user:***@host/db"),
        ("http://user:se:cret@host:5000/x", "http://user:***@host:5000/x"),
        ("redis://:secret@host", "redis://:***@host"),
        ("http://me@corp:secret@host", "http://me@corp:***@host"),
        ("http://user:sec@ret@host", "http://user:***@host"),
        ("postgresql://user:se/cr?e#t@host/db", "postgresql://user:***@host/db"),
        ("a = \"x://u:secret@h\"\nb = 'y://v:secret@h'", "a = \"x://u:***@h\"\nb = 'y://v:***@h'"),
    ],
)
def test_passwords_are_masked(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert masked(shown) == shown


@pytest.mark.parametrize(
    "text",
    ["http://127.0.0.1:5000", "sqlite:///mlflow.db", "http://host:80/x and me@home", "a // b: c@d", "git@host:x"],
)
def test_anything_else_stays(text: str) -> None:
    assert masked(text) == text


def test_a_page_holds_no_password(written: Callable[..., RunResults]) -> None:
    """Not from any key of the scenario, nor from a failure, a reason, a command, an output or a parameter."""
    address = "postgresql://user:secret@host/db"
    trials = [Trial(1, {}, {"x": 1}, Failed(f"no answer from {address}"), -1e9, 0.1)]
    folder = written(trials, declared={"cmd_args": {"command": "psql {db} {x}"}}).folder
    path = folder / "scenario.toml"
    scenario = {**load(folder).scenario, "tracking": {"mlflow": address}, "other": {"key": [address]}}
    path.write_text(dump_toml(scenario), encoding="utf-8")
    outputs = folder / "e" / "trials" / "000001"
    outputs.mkdir(parents=True)
    (outputs / "stderr.txt").write_text(f"lost {address}\n", encoding="utf-8")
    known = Known(1, {"db": address}, f"left out: {address}")
    document = run_document(load(folder), {"e": known}, f"RuntimeError: {address}\n\nTraceback: {address}")
    text = orjson.dumps(document).decode()
    assert "secret" not in text
    assert "secret" not in render("t", document)
    for place in (document["source"], document["failure"], document["experiments"][0]["page"]["fixed"]["db"]):
        assert "postgresql://user:***@host/db" in place
    assert "secret" in Path(path).read_text(encoding="utf-8"), "the run's own file is as it was: a resume needs it"
