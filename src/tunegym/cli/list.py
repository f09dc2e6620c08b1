"""``tunegym list``: what a scenario can choose from."""

from __future__ import annotations

import inspect

import typer

from tunegym.app.catalog import Catalog
from tunegym.cli.terminal import guarded, print_json
from tunegym.core.errors import ConfigError, Problem
from tunegym.core.text import escaped


def main(kind: str, *, as_json: bool) -> int:
    """Names, where they come from, and what they are."""
    return guarded(lambda: _list(kind, as_json=as_json))


def _list(kind: str, *, as_json: bool) -> int:
    catalog = Catalog()
    if kind not in catalog.kinds():
        allowed = ", ".join(catalog.kinds())
        raise ConfigError(
            "tunegym list",
            [Problem("", "unknown kind", kind, allowed, hint=f"try: tunegym list {catalog.kinds()[0]}")],
        )
    rows = [
        {"name": name, "reference": catalog.where(kind, name), "about": _about(catalog, kind, name)}
        for name in catalog.names(kind)
    ]
    if as_json:
        print_json(rows)
        return 0
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        typer.echo(escaped(f"{row['name']:<{width}}  {row['about']}"))
    return 0


def _about(catalog: Catalog, kind: str, name: str) -> str:
    """The first sentence of its docstring; a plugin that can't be imported says so instead."""
    try:
        text = inspect.getdoc(catalog.get(kind, name)) or ""
    except Exception as error:  # somebody else's package: listing the others must go on
        return f"(can't be imported: {error})"
    return text.split("\n\n")[0].replace("\n", " ")
