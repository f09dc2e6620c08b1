"""Writes pages: one file each that opens offline, with its style, its script and its data inside."""

from __future__ import annotations

import hashlib
import html
import re
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import orjson

from tunegym.core.errors import StoreError
from tunegym.core.whole import write_whole

REPORT = "report.html"
COMPARISON = "compare.html"

_STYLE = "style.css"
_SCRIPTS = (
    *("base.js", "scales.js", "ranges.js", "plot.js", "controls.js"),
    *(
        "best.js",
        "policy.js",
        "rewards.js",
        "learning.js",
        "knobs.js",
        "parallel.js",
        "front.js",
        "outcomes.js",
        "table.js",
    ),
    *("run.js", "compare.js", "start.js"),
)
_LIVE_SCRIPTS = ("lines.js", "live.js", "live_compare.js")
"""Only a page that shows a live experiment carries these; they come first, and use what the others define."""
_ESCAPED = {
    b"<": b"\\u003c",
    b">": b"\\u003e",
    b"&": b"\\u0026",
    "\u2028".encode(): b"\\u2028",
    "\u2029".encode(): b"\\u2029",
}
_SLOT = re.compile(r"\{\{(\w+)\}\}")
_COMMENT = re.compile(r"^ *//.*\n", re.MULTILINE)
_INDENT = re.compile(r"^ +", re.MULTILINE)


def render(title: str, data: Mapping[str, Any]) -> str:
    """The page of ``data``. Nothing in the data can end the script that holds it, nor become markup.

    Its policy names the one script and the one style that a browser may use, by what is in them.
    """
    style, script = _asset(_STYLE), _script(live=_shows_live(data))
    parts = {"title": html.escape(title), "style": style, "data": embedded(data), "script": script}
    parts |= {"style_hash": _hash(style), "script_hash": _hash(script)}
    # In one go: what stands in the data is never taken for a slot.
    return _SLOT.sub(lambda slot: parts[slot[1]], _asset("page.html"))


def embedded(data: Mapping[str, Any]) -> str:
    """JSON without any character that HTML or JavaScript could take for something else."""
    text = orjson.dumps(data, option=orjson.OPT_NON_STR_KEYS)
    for plain, escaped in _ESCAPED.items():
        text = text.replace(plain, escaped)
    return text.decode()


@cache
def _asset(name: str) -> str:
    return (resources.files("tunegym.tuning.reports") / "html" / name).read_text(encoding="utf-8")


def _shows_live(data: Mapping[str, Any]) -> bool:
    return any(one.get("live") for one in [*data.get("experiments", ()), *data.get("entries", ())])


@cache
def _script(*, live: bool) -> str:
    """All scripts in one, without what only their reader needs; no text of theirs goes over several lines."""
    names = (*_LIVE_SCRIPTS, *_SCRIPTS) if live else _SCRIPTS
    parts = "\n".join(_INDENT.sub("", _COMMENT.sub("", _asset(name))) for name in names)
    return f'(() => {{\n"use strict";\n{parts}\n}})();\n'


def _hash(text: str) -> str:
    """As a content security policy names an element: by the text in it, which must have no carriage returns."""
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def write_page(path: Path, title: str, data: Mapping[str, Any], hint: str) -> Path:
    """Write the page of ``data``, whole or not at all.

    Raises:
        StoreError: it can't be written; ``hint`` says what to do then.
    """
    try:
        write_whole(path, render(title, data))
    except OSError as error:
        raise StoreError(f"{path} can't be written: {error.strerror}", hint=hint) from error
    return path
