"""``metrics``: where each is read from. Whether it can be read there is for the workload to say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Literal, TypeAlias

from tunegym.config.findings import Findings
from tunegym.config.schema import MetricTable
from tunegym.config.spelling import listed
from tunegym.config.tables import checked
from tunegym.tuning.model.scenario import MetricSpec

_Source: TypeAlias = Literal["regex", "json", "csv"]
_SOURCES: tuple[_Source, ...] = ("regex", "json", "csv")


def metrics(tables: Mapping[str, dict[str, Any]], findings: Findings) -> tuple[MetricSpec, ...]:
    """The metrics in the order of the file; what has a problem is noted and left out."""
    read = [_metric(name, table, findings.at(name)) for name, table in tables.items()]
    specs = tuple(spec for spec in read if spec is not None)
    streamed = [spec.name for spec in specs if spec.stream]
    for name in streamed[1:]:
        findings.at(name).at("stream").add(
            f"{streamed[0]} is streamed already, and a trial reports the values of one metric",
            found=True,
            allowed="one metric with stream = true",
            hint=f"remove stream from {name} or from {streamed[0]}",
        )
    return specs


def _metric(name: str, table: Mapping[str, Any], findings: Findings) -> MetricSpec | None:
    before = len(findings.problems)
    spec = checked(MetricTable, table, findings)
    if not name.strip():
        findings.add("a metric needs a name", found=name, hint="name it")
    sources: list[_Source] = [source for source in _SOURCES if source in table]
    if len(sources) != 1:
        what = f"a metric is read from exactly one of {listed(_SOURCES)}"
        hint = f"keep one of {listed(sources)}" if sources else "write for example regex = 'time=([0-9.]+)'"
        findings.add(what, found=table, allowed=listed(_SOURCES), hint=hint)
    if len(findings.problems) > before:
        return None
    source = sources[0]
    expression = table[source]
    _check_options(source, spec, findings)
    if len(findings.problems) > before:
        return None
    row = -1 if spec.row is None else spec.row
    return MetricSpec(name, source, expression, spec.file, spec.match or "last", row, spec.stream)


def _check_options(source: str, spec: MetricTable, findings: Findings) -> None:
    if spec.match is not None and source != "regex":
        findings.at("match").add("match is for regex only", found=spec.match, hint="remove match")
    if spec.stream and source != "regex":
        what, hint = "only a regex can be matched while the file grows", "write the metric as a regex, or remove stream"
        findings.at("stream").add(what, found=spec.stream, allowed="stream = true beside regex", hint=hint)
    if spec.row is not None and source != "csv":
        findings.at("row").add("row is for csv only", found=spec.row, hint="remove row")
    if spec.file is not None and (PurePath(spec.file).is_absolute() or ".." in PurePath(spec.file).parts):
        what = "a file outside of the trial's folder may be another trial's"
        hint = "let the command write, or copy, it to its current folder, which is the trial's"
        findings.at("file").add(what, found=spec.file, allowed="a path inside the trial's folder", hint=hint)
    elif spec.file is not None and (not spec.file or PurePath(spec.file).name == ""):
        findings.at("file").add("this is no file's path", found=spec.file, hint='write for example "out.json"')
