"""The ``command`` workload: a shell command per trial, metrics from its output and files."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tunegym.core.errors import Problem
from tunegym.core.text import did_you_mean
from tunegym.tuning.model.scenario import BUILTIN_METRICS, Experiment, MetricSpec
from tunegym.tuning.model.trial import SHELLS, CommandJob, Job, JobResult, Stream
from tunegym.tuning.model.values import Metrics, spelled
from tunegym.tuning.ports import MetricError
from tunegym.tuning.workloads import template
from tunegym.tuning.workloads.extract import STDOUT, compile_regex, extract, parse_json_path
from tunegym.tuning.workloads.fingerprint import Fingerprinted, file_parts, files_of, outputs, settings_parts, words_of
from tunegym.tuning.workloads.template import Placeholder, Template, TemplateError, plain

_SUBSTITUTION = re.compile(r"(?P<assigned>(?:^|[;&|\n])\s*\w+=\"?)?(?:\$\((?!\()|`)(?P<inside>[^)`]*)[)`]?")
_WAIT = re.compile(r"(?:^|[;&\n])\s*wait\s*(?=$|[;\n)}])")
_COMMANDS = ("setup", "command", "teardown")


class CommandWorkload(Fingerprinted):
    """Fills a command template with a trial's parameters, and reads metrics from stdout or files.

    The constructor trusts an experiment that ``check`` found nothing wrong with.
    """

    reserved: ClassVar[frozenset[str]] = frozenset((*_COMMANDS, "shell"))
    required: ClassVar[tuple[str, ...]] = ("command",)

    @classmethod
    def check(cls, experiment: Experiment, scenario_dir: Path) -> list[Problem]:
        """Everything that is wrong with an experiment; key paths are relative to it."""
        return [
            *_shell_problems(experiment.workload_args.get("shell")),
            *(_template_problems(experiment) or _file_problems(experiment, scenario_dir)),
            *template.problems(experiment),
            *_metric_problems(experiment),
        ]

    def __init__(self, experiment: Experiment, scenario_dir: Path) -> None:
        super().__init__(experiment, scenario_dir)
        texts = experiment.workload_args
        self._templates = {key: Template.parse(texts[key]) for key in _COMMANDS if texts.get(key)}
        self._variables = template.variables(experiment)
        streamed = next((spec for spec in experiment.metrics if spec.stream), None)
        self._stream = Stream(streamed.expression, streamed.file or STDOUT) if streamed is not None else None
        judged = [*experiment.agent_metrics, *(one.metric for one in experiment.objectives)]
        self._measures_memory = "max_rss_mb" in judged

    def plan(self, number: int, repeat: int, parameters: Mapping[str, Any], folder: str) -> CommandJob:
        """The trial's command, setup and teardown with every placeholder filled."""
        folder = os.path.abspath(folder)  # noqa: PTH100
        values = {**parameters, "scenario_dir": str(self._scenario_dir), "trial_dir": folder, "step": number}
        return CommandJob(
            name=f"{number}.{repeat}" if self._experiment.most_samples > 1 else str(number),
            folder=folder,
            env={variable: plain(parameters[address]) for address, variable in self._variables},
            shell=self._experiment.workload_args.get("shell"),
            timeout_s=self._experiment.timeout_s,
            stream=self._stream,
            num_nodes=parameters.get(template.NUM_NODES, 1),
            measures_memory=self._measures_memory,
            **{key: text.render(values) for key, text in self._templates.items()},
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
                metrics[name] = value
        return metrics

    def fingerprint_parts(self) -> dict[str, str]:
        """See ``Fingerprinted``."""
        commands = [text for text in self._experiment.workload_args.values() if isinstance(text, str)]
        return {**settings_parts(self._experiment), **file_parts(self._experiment, self._scenario_dir, commands)}


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
        if not isinstance(text, str) or not text.strip():
            what = "must be a shell command, as a string"
            problems.append(Problem(where, what, found=spelled(text), hint='write "program {parameter}"'))
            continue
        try:
            parsed = Template.parse(text)
        except TemplateError as error:
            problems.append(Problem(where, error.message, found=text, hint=error.hint))
            return problems  # unused parameters can't be told any more
        used.update(parsed.names)
        problems += [_unknown_placeholder(where, name, allowed) for name in parsed.names if name not in allowed]
        places = [part for part in parsed.parts if isinstance(part, Placeholder) and part.name in allowed]
        problems += [problem for place in places for problem in _flag_problems(where, place, experiment)]
        problems += _hidden_failures(where, text)
    if problems and not used:
        return problems
    return problems + [
        Problem(
            template.key_path(address),
            f"no placeholder or environment variable uses the parameter {address!r}",
            hint=f"write {{{address}}} in the command, or remove the parameter",
        )
        for address in template.arguments(experiment)
        if address not in used
    ]


def _flag_problems(where: str, place: Placeholder, experiment: Experiment) -> list[Problem]:
    values = [value for name, value in template.candidates(experiment) if name == place.name]
    if place.form in ("", template.RAW):
        return []
    if place.quotes:
        what = "a flag inside quotes is an empty argument where it is left out"
        return [Problem(where, what, f"{{{place.name}:{place.form}}}", hint="remove the quotes around it")]
    if values and all(isinstance(value, bool) for value in values):
        return []
    what = f"a flag is inserted for true and left out for false, and {place.name} has other values"
    hint = f"write {place.name} = [true, false], or {place.form}={{{place.name}}} to give the flag a value"
    return [Problem(where, what, f"{{{place.name}:{place.form}}}", "a parameter of true and false", hint)]


def _hidden_failures(where: str, text: str) -> list[Problem]:
    """Commands whose failure no shell notices: jobs of a bare ``wait``, substitutions but those of an assignment."""
    problems: list[Problem] = []
    if _WAIT.search(text):
        hint = "write wait $! for one job, for job in $(jobs -p); do wait $job; done for all, or wait || true"
        problems.append(Problem(where, "wait without a job ignores failures", "wait", hint=hint))
    for found in _SUBSTITUTION.finditer(text):
        if not found["assigned"] and "{" in found["inside"].replace("{{", ""):
            what = "the shell ignores a failure in $(...) unless it is an assignment"
            hint = "write value=$(...) as a command before this one, and use $value here"
            problems.append(Problem(where, what, found[0].strip(), hint=hint))
    return problems


def _shell_problems(shell: Any) -> list[Problem]:
    if shell is None or (isinstance(shell, str) and Path(shell).name in SHELLS and shutil.which(shell)):
        return []
    what, allowed = "there is no such shell for commands on this machine", f"the name or path of {', '.join(SHELLS)}"
    hint = "leave it out: bash runs the commands, or sh where there is no bash"
    return [Problem("cmd_args.shell", what, spelled(shell), allowed, hint)]


def _file_problems(experiment: Experiment, scenario_dir: Path) -> list[Problem]:
    """Files beside the scenario that a command looks for in its trial's folder. It may copy or make them there."""
    texts = {key: text for key in _COMMANDS if (text := experiment.workload_args.get(key))}
    together = "\n".join(texts.values())
    problems: list[Problem] = []
    if "{scenario_dir}" in together or "cd " in together:
        return problems  # commands may run elsewhere
    for key, text in texts.items():
        words = words_of(text)
        made = {*outputs(words), *(spec.file for spec in experiment.metrics)}
        for before, word in itertools.pairwise(["", *words]):
            relative = ("." in word or "/" in word) and not word.startswith("/")
            read_only = word not in made and before != "-o" and together.count(Path(word).name) == 1
            if relative and read_only and any(files_of(word, scenario_dir)):
                what = f"{word} lies beside the scenario, and commands run in the folder of their trial"
                hint = f"write {{scenario_dir}}/{word.removeprefix('./')}"
                problems.append(Problem(f"cmd_args.{key}", what, found=word, hint=hint))
    return problems


def _unknown_placeholder(where: str, name: str, allowed: list[str]) -> Problem:
    hint = did_you_mean(name, allowed, f"add {name} to cmd_args")
    hint += f"{' For' if hint.endswith('?') else ', or for'} a literal brace write {{{{{name}}}}}"
    what = f"the placeholder {{{name}}} has no parameter"
    return Problem(where, what, found=f"{{{name}}}", allowed=", ".join(allowed), hint=hint)


def _metric_problems(experiment: Experiment) -> list[Problem]:
    problems = [problem for spec in experiment.metrics for problem in _spec_problems(spec)]
    if experiment.pruner is not None and not any(spec.stream for spec in experiment.metrics):
        what, allowed = "no metric is streamed, so a running trial can't be judged", "a metric with stream = true"
        hint = "write stream = true in the table of the metric that the command prints on its way"
        problems.append(Problem("pruner", what, spelled(experiment.pruner.kind), allowed, hint))
    produced = [*(spec.name for spec in experiment.metrics), *BUILTIN_METRICS]
    for name in experiment.agent_metrics:
        if name not in produced:
            what = f"nothing produces the metric {name!r}"
            hint = did_you_mean(name, produced, f"add it to the metrics table: {name} = {{ regex = '...' }}")
            problems.append(Problem("agent_metrics", what, spelled(name), ", ".join(produced), hint))
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
        elif spec.kind == "json":
            parse_json_path(spec.expression)
        elif not spec.expression.strip():
            raise ValueError("an empty column name")
    except (ValueError, OverflowError, RecursionError) as error:
        kind, hint = {
            "regex": ("regular expression", "the pattern is Python's, over bytes: throughput=([0-9.]+)"),
            "json": ("JSON path", 'write keys and indices: results[0].throughput, or a["x.y"]'),
            "csv": ("column", "write the name that stands in the header row"),
        }[spec.kind]
        what = f"is not a {kind}: {error}"
        problems.append(Problem(f"{where}.{spec.kind}", what, found=spelled(spec.expression), hint=hint))
    return problems
