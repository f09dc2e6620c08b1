from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import orjson
import pytest

from tunegym.core.errors import StoreError
from tunegym.tuning.reports.page import embedded, render, write_page

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
