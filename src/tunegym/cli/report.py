"""``tunegym report``: write a run's page again."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Any

from tunegym.app.report import document_of, write_document
from tunegym.cli.terminal import console, guarded, print_json, warn
from tunegym.core.errors import StoreError
from tunegym.tuning.reports.results import RunResults, load


def main(folder: Path, *, show: bool, as_json: bool) -> int:
    """Write ``report.html``; its path on stdout, or its facts as JSON."""
    return guarded(lambda: _report(folder, show=show, as_json=as_json))


def _report(folder: Path, *, show: bool, as_json: bool) -> int:
    results = load(folder)
    document = document_of(results)
    broken = [one["error"] for one in document["experiments"] if "error" in one]
    if broken:
        raise StoreError(broken[0])
    path = _written(results, document, must=not as_json)
    print_json(_facts(document)) if as_json else console().print(str(path), markup=False, soft_wrap=True)
    if show and path is not None:
        open_page(path)
    return 0


def _facts(document: dict[str, Any]) -> dict[str, Any]:
    """The document without what is only for the page."""
    facts = {key: document[key] for key in ("folder", "scenario", "failure")}
    facts["experiments"] = [
        {key: value for key, value in experiment.items() if key != "page"} for experiment in document["experiments"]
    ]
    return facts


def _written(results: RunResults, document: dict[str, Any], *, must: bool) -> Path | None:
    """The page's path; None where it can't be written and the numbers are what counts."""
    try:
        return write_document(results, document)
    except StoreError as error:
        if must:
            raise
        warn(error.message)
        return None


def open_page(path: Path) -> None:
    """Open a page in the default browser. None is no failure: the page is there all the same."""
    try:
        opened = webbrowser.open(path.absolute().as_uri())
    except webbrowser.Error:
        opened = False
    if not opened:
        warn(f"no browser was found; open {path} yourself")
