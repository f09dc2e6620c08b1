"""The ``python`` workload: a callable per trial, metrics from its return value."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tunegym.core.errors import Problem, UnresolvedReferenceError
from tunegym.core.text import did_you_mean
from tunegym.tuning.model.scenario import BUILTIN_METRICS, Experiment
from tunegym.tuning.model.space import nested
from tunegym.tuning.model.trial import CallJob, Job, JobResult
from tunegym.tuning.model.values import Metrics, spelled
from tunegym.tuning.ports import MetricError
from tunegym.tuning.workloads import template
from tunegym.tuning.workloads.extract import finite, short
from tunegym.tuning.workloads.fingerprint import Fingerprinted, file_parts, settings_parts
from tunegym.tuning.workloads.signature import Signature, describe
from tunegym.tuning.workloads.template import plain


class PythonWorkload(Fingerprinted):
    """Calls ``module:function`` with a trial's parameters; the function returns metrics by name.

    With a single agent metric the function may return just that number. The constructor trusts an experiment
    that ``check`` found nothing wrong with.
    """

    reserved: ClassVar[frozenset[str]] = frozenset({"callable"})
    required: ClassVar[tuple[str, ...]] = ("callable",)

    @classmethod
    def check(cls, experiment: Experiment, scenario_dir: Path) -> list[Problem]:
        """Everything that is wrong with an experiment; key paths are relative to it."""
        problems = template.problems(experiment, (*template.GIVEN, template.REPORT))
        if experiment.metrics:
            what = "a python workload's metrics are what its callable returns"
            problems.append(Problem("metrics", what, hint="keep only goal in their tables"))
        if not experiment.isolate:
            problems += [
                Problem(
                    address,
                    "without isolation all trials share one environment, and a module reads its variables only once",
                    allowed="variables that vary with isolate = true",
                    hint="remove isolate = false, or give the variable one value",
                )
                for address, _ in template.variables(experiment)
                if address not in experiment.space.fixed
            ]
        target = experiment.workload_args.get("callable")
        if not isinstance(target, str):
            what, hint = "must name a function", 'write "module:function"'
            return [Problem("cmd_args.callable", what, found=spelled(target), hint=hint), *problems]
        try:
            signature = _describe(experiment, Path(os.path.abspath(scenario_dir)))  # noqa: PTH100
        except UnresolvedReferenceError as error:
            unresolved = Problem("cmd_args.callable", error.message, found=spelled(target), hint=error.hint)
            return [unresolved, *problems]
        return [*problems, *_signature_problems(experiment, signature)]

    def __init__(self, experiment: Experiment, scenario_dir: Path) -> None:
        super().__init__(experiment, scenario_dir)
        self._target = str(experiment.workload_args["callable"])
        self._signature = _describe(experiment, self._scenario_dir)
        takes = self._signature.parameters
        self._given = tuple(name for name in template.GIVEN if name in takes)
        self._reports = _can_report(self._signature, experiment.pruner is not None)
        self._variables = template.variables(experiment)
        names = experiment.parameter_names()
        self._dropped = tuple(address for address, _ in self._variables)
        if template.NUM_NODES in names and not (self._signature.takes_any or template.NUM_NODES in takes):
            self._dropped += (template.NUM_NODES,)
        self._nested = any("." in name for name in names if name not in self._dropped)
        metrics = experiment.agent_metrics
        asked = [name for name in metrics if name not in BUILTIN_METRICS] or metrics
        self._single = asked[0] if len(asked) == 1 else None

    def plan(self, number: int, repeat: int, parameters: Mapping[str, Any], folder: str) -> CallJob:
        """The call of one trial: parameters by name, nested ones as dictionaries."""
        arguments = {name: value for name, value in parameters.items() if name not in self._dropped}
        if self._nested:
            arguments = nested(arguments)
        folder = folder if folder[:1] == "/" else os.path.abspath(folder)  # noqa: PTH100
        given = {"trial_dir": folder, "scenario_dir": str(self._scenario_dir), "step": number}
        arguments.update((name, given[name]) for name in self._given)
        return CallJob(
            name=f"{number}.{repeat}" if self._experiment.most_samples > 1 else str(number),
            folder=folder,
            target=self._target,
            arguments=arguments,
            paths=(str(self._scenario_dir),),
            isolate=self._experiment.isolate,
            env={variable: plain(parameters[address]) for address, variable in self._variables},
            timeout_s=self._experiment.timeout_s,
            reports=self._reports,
            num_nodes=parameters.get(template.NUM_NODES, 1),
        )

    def read(self, job: Job, result: JobResult) -> Metrics:
        """The metrics that the callable returned, and the built-in ones that it didn't return itself."""
        if result.error is not None:
            raise MetricError(result.error)
        metrics = {name: _number(name, item) for name, item in self._mapping(result.value).items()}
        for name in BUILTIN_METRICS:
            if name not in metrics and (built_in := getattr(result, name)) is not None:
                metrics[name] = built_in
        return metrics

    def _mapping(self, value: Any) -> Mapping[str, Any]:
        if isinstance(value, Mapping):
            return value
        if value is None or isinstance(value, str | list):
            wanted = "a mapping of metric names to numbers"
            raise MetricError(f"{self._target} returned {short(value)} instead of {wanted}")
        if self._single is None:
            names = ", ".join(self._experiment.agent_metrics) or "none"
            what = f"{self._target} returned a number instead of a mapping with the agent_metrics"
            raise MetricError(f"{what} ({names})")
        return {self._single: value}

    def fingerprint_parts(self) -> dict[str, str]:
        """See ``Fingerprinted``."""
        source = self._signature.source_file
        return {
            **settings_parts(self._experiment),
            **file_parts(self._experiment, self._scenario_dir, reference=self._target, source=source),
        }


def _describe(experiment: Experiment, scenario_dir: Path) -> Signature:
    target, variables = str(experiment.workload_args["callable"]), template.example_variables(experiment)
    return describe(target, (str(scenario_dir),), isolate=experiment.isolate, variables=variables)


def _number(name: str, value: Any) -> float:
    """A returned metric as a finite float."""
    try:
        if isinstance(value, str):  # a string that spells a number is a mistake in Python
            raise MetricError(f"{short(value)} is not a number")
        return finite(value)
    except MetricError as error:
        raise MetricError(f"metric {name}: {error}") from None


def _can_report(signature: Signature, asked: bool) -> bool:
    """Whether the callable is given ``report``; one that takes anything only if there is a pruner."""
    return template.REPORT in signature.parameters or (asked and signature.takes_any)


def _signature_problems(experiment: Experiment, signature: Signature) -> list[Problem]:
    problems: list[Problem] = []
    target = signature.reference
    if experiment.pruner is not None and not _can_report(signature, asked=True):
        what = f"{target} has no argument {template.REPORT!r}, so a running trial can't be judged"
        allowed = "a callable that takes report, and calls it with a step and a value"
        hint = f"add the argument {template.REPORT} to the function and call report(step, value) on its way"
        problems.append(Problem("pruner", what, spelled(experiment.pruner.kind), allowed, hint))
    takes = ", ".join(signature.parameters) or "nothing"
    wanted = list(dict.fromkeys(address.partition(".")[0] for address in template.arguments(experiment)))
    for name in wanted:
        if name not in signature.parameters and not signature.takes_any:
            what, otherwise = f"{target} takes no argument {name!r}", "add the argument, or remove the parameter"
            hint = did_you_mean(name, signature.parameters, otherwise)
            problems.append(Problem(template.key_path(name), what, name, takes, hint))
    given = {*wanted, *template.GIVEN, template.REPORT, *(name for name in experiment.space.fixed if "." not in name)}
    for name in signature.required:
        if name not in given:
            what = f"{target} needs an argument {name!r} that no parameter gives"
            hint = f"add {name} to cmd_args, or give the argument a default"
            hint = "name a function or a static method" if name == "self" else hint
            problems.append(Problem("cmd_args.callable", what, found=spelled(target), hint=hint))
    return problems
