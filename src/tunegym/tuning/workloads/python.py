"""The ``python`` workload: a callable per trial, metrics from what it returns."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tunegym.core.errors import Problem, UnresolvedReferenceError
from tunegym.tuning.model.scenario import BUILTIN_METRICS, Experiment
from tunegym.tuning.model.space import nested
from tunegym.tuning.model.trial import CallJob, Job, JobResult
from tunegym.tuning.model.values import Metrics, spelled
from tunegym.tuning.ports import MetricError
from tunegym.tuning.workloads import fingerprint, template
from tunegym.tuning.workloads.extract import finite
from tunegym.tuning.workloads.signature import Signature, describe
from tunegym.tuning.workloads.template import plain

_INFINITY = float("inf")


class PythonWorkload:
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
            problems.append(Problem("metrics", what, hint="remove the metrics table"))
        if not experiment.isolate:
            problems += [_shared_variable(address) for address in template.varying_variables(experiment)]
        target = experiment.workload_args.get("callable")
        if not isinstance(target, str):
            what, hint = "must name a function", 'write "module:function"'
            return [Problem("cmd_args.callable", what, found=spelled(target), hint=hint), *problems]
        try:
            paths = (os.path.abspath(scenario_dir),)  # noqa: PTH100
            variables = template.example_variables(experiment)
            signature = describe(target, paths, isolate=experiment.isolate, variables=variables)
        except UnresolvedReferenceError as error:
            unresolved = Problem("cmd_args.callable", error.message, found=spelled(target), hint=error.hint)
            return [unresolved, *problems]
        return [*problems, *_signature_problems(experiment, target, signature)]

    def __init__(self, experiment: Experiment, scenario_dir: Path) -> None:
        self._experiment = experiment
        self._scenario_dir = Path(os.path.abspath(scenario_dir))  # noqa: PTH100 (links stay as they are)
        self._target = str(experiment.workload_args["callable"])
        self._paths = (str(self._scenario_dir),)
        example = template.example_variables(experiment)
        self._signature = describe(self._target, self._paths, isolate=experiment.isolate, variables=example)
        takes = frozenset(self._signature.parameters)
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
        self._repeated = experiment.repeats > 1

    def plan(self, number: int, repeat: int, parameters: Mapping[str, Any], folder: str) -> CallJob:
        """The call of one trial: parameters by name, nested ones as dictionaries."""
        arguments = dict(parameters)
        for address in self._dropped:
            del arguments[address]
        if self._nested:
            arguments = nested(arguments)
        if folder[:1] != "/":  # the worker runs in another folder
            folder = os.path.abspath(folder)  # noqa: PTH100
        if self._given:
            given = {"trial_dir": folder, "scenario_dir": self._paths[0], "step": number}
            arguments.update((name, given[name]) for name in self._given)
        experiment = self._experiment
        return CallJob(
            f"{number}.{repeat}" if self._repeated else str(number),
            folder,
            self._target,
            arguments,
            self._paths,
            experiment.isolate,
            {variable: plain(parameters[address]) for address, variable in self._variables} if self._variables else {},
            experiment.timeout_s,
            self._reports,
        )

    def read(self, job: Job, result: JobResult) -> Metrics:
        """What the callable returned, and the built-in metrics that it didn't return itself."""
        if result.error is not None:
            raise MetricError(result.error)
        value = result.value
        metrics: dict[str, float] = {}
        for name, item in (value if type(value) is dict else self._mapping(value)).items():
            # The usual case first; a NaN is not below infinity either.
            usual = type(item) is float and -_INFINITY < item < _INFINITY and type(name) is str
            metrics[name] = item if usual else _number(name, item)
        for name in BUILTIN_METRICS:
            if name not in metrics and (built_in := getattr(result, name)) is not None:
                metrics[name] = built_in
        for name in self._experiment.agent_metrics:
            if name not in metrics:
                returned = ", ".join(metrics) or "nothing"
                raise MetricError(f"metric {name}: {self._target} did not return it (there is: {returned})")
        return metrics

    def _mapping(self, value: Any) -> Mapping[Any, Any]:
        if isinstance(value, Mapping):
            return value
        if value is None or isinstance(value, str | bytes | list | tuple | set):
            wanted = "a mapping of metric names to numbers"
            raise MetricError(f"{self._target} returned {_short(value)} instead of {wanted}")
        if self._single is None:
            names = ", ".join(self._experiment.agent_metrics) or "none"
            what = f"{self._target} returned a number instead of a mapping with the agent_metrics"
            raise MetricError(f"{what} ({names})")
        return {self._single: value}

    def fingerprint(self) -> str:
        """The digest of all ``fingerprint_parts``, as the files are now."""
        return fingerprint.combined(self.fingerprint_parts())

    def fingerprint_parts(self) -> dict[str, str]:
        """A digest per thing that decides what is measured, such as ``callable`` or ``file bench.py``."""
        files = list(fingerprint.named_files(self._experiment, (), self._scenario_dir))
        if self._signature.source_file is not None:
            module = self._target.partition(":")[0]
            files += fingerprint.module_files(module, self._signature.source_file, self._scenario_dir)
        return {
            **fingerprint.settings_parts(self._experiment),
            **fingerprint.file_parts(files, self._scenario_dir),
        }


def _number(name: Any, value: Any) -> float:
    """A returned metric as a finite float; numpy's and torch's scalars count as what they hold."""
    if not isinstance(name, str):
        raise MetricError(f"the name of a metric must be a string, not {_short(name)}")
    kind = type(value)
    try:
        if kind not in (bool, int, float, str) and value is not None:
            value = value.item() if hasattr(value, "item") else value
            value = value if isinstance(value, bool) else float(value)
        if isinstance(value, str):  # a string that spells a number is a mistake in Python
            raise TypeError
        return finite(value)
    except MetricError as error:
        raise MetricError(f"metric {name}: {error}") from None
    except OverflowError:
        raise MetricError(f"metric {name}: is infinite") from None
    except Exception:  # a foreign object may raise anything
        raise MetricError(f"metric {name}: {_short(value)} is not a number") from None


def _shared_variable(address: str) -> Problem:
    return Problem(
        address,
        "without isolation all trials share one environment, and a module reads its variables only once",
        allowed="variables that vary with isolate = true",
        hint="remove isolate = false, or give the variable one value",
    )


def _can_report(signature: Signature, asked: bool) -> bool:
    """Whether the callable is given ``report``; one that takes anything only if there is a pruner."""
    return template.REPORT in signature.parameters or (asked and signature.takes_any)


def _signature_problems(experiment: Experiment, target: str, signature: Signature) -> list[Problem]:
    problems: list[Problem] = []
    if experiment.pruner is not None and not _can_report(signature, asked=True):
        problems.append(
            Problem(
                "pruner",
                f"{target} has no argument {template.REPORT!r}, so a running trial can't be judged",
                found=spelled(experiment.pruner.kind),
                allowed="a callable that takes report, and calls it with a step and a value",
                hint=f"add the argument {template.REPORT} to the function and call report(step, value) on its way",
            )
        )
    takes = ", ".join(signature.parameters) or "nothing"
    otherwise = "add the argument, or remove the parameter"
    wanted = list(dict.fromkeys(address.partition(".")[0] for address in template.arguments(experiment)))
    if not signature.takes_any:
        problems += [
            Problem(
                template.key_path(name),
                f"{target} takes no argument {name!r}",
                found=name,
                allowed=takes,
                hint=template.did_you_mean(name, signature.parameters, otherwise),
            )
            for name in wanted
            if name not in signature.parameters
        ]
    given = {*wanted, *template.GIVEN, template.REPORT, *(name for name in experiment.space.fixed if "." not in name)}
    missing = [name for name in signature.required if name not in given]
    problems += [
        Problem(
            "cmd_args.callable",
            f"{target} needs an argument {name!r} that no parameter gives",
            found=spelled(target),
            hint="name a function or a static method" if name == "self" else
            f"add {name} to cmd_args, or give the argument a default",
        )
        for name in missing
    ]  # fmt: skip
    return problems


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
