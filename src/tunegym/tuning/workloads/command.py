"""The ``command`` workload: a shell command per trial, metrics from what it prints or writes."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tunegym.core.errors import Problem
from tunegym.tuning.model.scenario import BUILTIN_METRICS, Experiment, MetricSpec
from tunegym.tuning.model.trial import CommandJob, Job, JobResult, Stream
from tunegym.tuning.model.values import Metrics, spelled
from tunegym.tuning.ports import MetricError
from tunegym.tuning.workloads import fingerprint, template
from tunegym.tuning.workloads.extract import STDOUT, compile_regex, extract, may_never_end, parse_json_path
from tunegym.tuning.workloads.template import Template, TemplateError, plain

_COMMANDS = ("setup", "command", "teardown")


class CommandWorkload:
    """Fills a command template with a trial's parameters, and reads metrics from stdout or files.

    The constructor trusts an experiment that ``check`` found nothing wrong with.
    """

    reserved: ClassVar[frozenset[str]] = frozenset(_COMMANDS)
    required: ClassVar[tuple[str, ...]] = ("command",)

    @classmethod
    def check(cls, experiment: Experiment, scenario_dir: Path) -> list[Problem]:  # noqa: ARG003
        """Everything that is wrong with an experiment; key paths are relative to it."""
        return [
            *_template_problems(experiment),
            *template.problems(experiment),
            *_metric_problems(experiment),
        ]

    def __init__(self, experiment: Experiment, scenario_dir: Path) -> None:
        self._experiment = experiment
        self._scenario_dir = Path(os.path.abspath(scenario_dir))  # noqa: PTH100 (links stay as they are)
        self._given = {"scenario_dir": str(self._scenario_dir)}
        texts = experiment.workload_args
        self._command = Template.parse(texts["command"])
        self._setup = Template.parse(texts["setup"]) if texts.get("setup") else None
        self._teardown = Template.parse(texts["teardown"]) if texts.get("teardown") else None
        self._variables = template.variables(experiment)
        self._repeated = experiment.repeats > 1
        streamed = next((spec for spec in experiment.metrics if spec.stream), None)
        self._stream = Stream(streamed.expression, streamed.file or STDOUT) if streamed is not None else None

    def plan(self, number: int, repeat: int, parameters: Mapping[str, Any], folder: str) -> CommandJob:
        """The trial's command, setup and teardown with every placeholder filled."""
        if folder[:1] != "/":
            folder = os.path.abspath(folder)  # noqa: PTH100
        values = {**parameters, **self._given, "trial_dir": folder, "step": number}
        return CommandJob(
            name=f"{number}.{repeat}" if self._repeated else str(number),
            folder=folder,
            command=self._command.render(values),
            setup=self._setup.render(values) if self._setup else None,
            teardown=self._teardown.render(values) if self._teardown else None,
            env={variable: plain(parameters[address]) for address, variable in self._variables},
            timeout_s=self._experiment.timeout_s,
            stream=self._stream,
        )

    def read(self, job: Job, result: JobResult) -> Metrics:
        """The declared metrics and the built-in ones; raises ``MetricError`` if a declared one is missing."""
        if result.error is not None:
            raise MetricError(result.error)
        if result.exit_code:
            raise MetricError(f"exit code {result.exit_code}")
        documents: dict[tuple[str, str], Any] = {}
        metrics = {spec.name: extract(spec, job.folder, documents) for spec in self._experiment.metrics}
        for name in BUILTIN_METRICS:
            value = getattr(result, name)
            if value is not None:
                if not math.isfinite(value):
                    raise MetricError(f"metric {name}: is not finite")
                metrics[name] = value
        return metrics

    def fingerprint(self) -> str:
        """The digest of all ``fingerprint_parts``, as the files are now."""
        return fingerprint.combined(self.fingerprint_parts())

    def fingerprint_parts(self) -> dict[str, str]:
        """A digest per thing that decides what is measured, such as ``command`` or ``file run.sh``."""
        commands = [text for text in self._experiment.workload_args.values() if isinstance(text, str)]
        files = fingerprint.named_files(self._experiment, commands, self._scenario_dir)
        return {
            **fingerprint.settings_parts(self._experiment),
            **fingerprint.file_parts(files, self._scenario_dir),
        }


def _template_problems(experiment: Experiment) -> list[Problem]:
    """Templates that can't be parsed, placeholders without a parameter, parameters without a placeholder."""
    problems: list[Problem] = []
    allowed = [*experiment.parameter_names(), *template.GIVEN]
    used: set[str] = set()
    for key in _COMMANDS:
        text = experiment.workload_args.get(key)
        if text is None:
            continue
        where = f"cmd_args.{key}"
        if not isinstance(text, str) or not text.strip() or "\0" in text:
            what = "must be a shell command, as a string"
            problems.append(Problem(where, what, found=spelled(text), hint='write "program {parameter}"'))
            continue
        try:
            names = Template.parse(text).names
        except TemplateError as error:
            problems.append(Problem(where, error.message, found=text, hint=error.hint))
            return problems  # what is unused can't be told any more
        used.update(names)
        problems += [_unknown_placeholder(where, name, allowed) for name in names if name not in allowed]
    if problems and not used:
        return problems
    problems += [_unused(address) for address in template.arguments(experiment) if address not in used]
    return problems


def _unknown_placeholder(where: str, name: str, allowed: list[str]) -> Problem:
    hint = template.did_you_mean(name, allowed, f"add {name} to cmd_args")
    return Problem(
        where,
        f"the placeholder {{{name}}} has no parameter",
        found=f"{{{name}}}",
        allowed=", ".join(allowed),
        hint=f"{hint} For a literal brace write {{{{{name}}}}}" if hint.endswith("?") else
        f"{hint}, or for a literal brace write {{{{{name}}}}}",
    )  # fmt: skip


def _unused(address: str) -> Problem:
    return Problem(
        template.key_path(address),
        f"no placeholder or environment variable uses the parameter {address!r}",
        hint=f"write {{{address}}} in the command, or remove the parameter",
    )


def _metric_problems(experiment: Experiment) -> list[Problem]:
    problems = [problem for spec in experiment.metrics for problem in _spec_problems(spec)]
    if experiment.pruner is not None and not any(spec.stream for spec in experiment.metrics):
        problems.append(
            Problem(
                "pruner",
                "no metric is streamed, so a running trial can't be judged",
                found=spelled(experiment.pruner.kind),
                allowed="a metric with stream = true",
                hint="write stream = true in the table of the metric that the command prints on its way",
            )
        )
    produced = [*(spec.name for spec in experiment.metrics), *BUILTIN_METRICS]
    for name in experiment.agent_metrics:
        if name not in produced:
            otherwise = f"add it to the metrics table: {name} = {{ regex = '...' }}"
            problems.append(
                Problem(
                    "agent_metrics",
                    f"nothing produces the metric {name!r}",
                    found=spelled(name),
                    allowed=", ".join(produced),
                    hint=template.did_you_mean(name, produced, otherwise),
                )
            )
    return problems


def _spec_problems(spec: MetricSpec) -> list[Problem]:
    where = f"metrics.{spec.name}"
    problems: list[Problem] = []
    if spec.name in BUILTIN_METRICS:
        what = f"{spec.name!r} is a built-in metric"
        problems.append(Problem(where, what, hint="rename it; the built-in one needs no declaration"))
    try:
        if spec.kind == "regex":
            compile_regex(spec.expression)
            if spec.stream and may_never_end(spec.expression):
                what = "this pattern may take for ever to match, which a running trial can't wait for"
                hint = "don't repeat a group that holds a repetition: write [0-9.]+ instead of ([0-9]+[.]?)+"
                problems.append(Problem(f"{where}.stream", what, found=spelled(spec.expression), hint=hint))
        elif spec.kind == "json":
            parse_json_path(spec.expression)
        elif not spec.expression.strip():
            raise ValueError("an empty column name")
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        kinds = {"regex": "regular expression", "json": "JSON path", "csv": "column"}
        hints = {
            "regex": "the pattern is Python's, over bytes: throughput=([0-9.]+)",
            "json": 'write keys and indices: results[0].throughput, or a["x.y"]',
            "csv": "write the name that stands in the header row",
        }
        what = f"is not a {kinds[spec.kind]}: {error}"
        problems.append(Problem(f"{where}.{spec.kind}", what, found=spelled(spec.expression), hint=hints[spec.kind]))
    return problems
