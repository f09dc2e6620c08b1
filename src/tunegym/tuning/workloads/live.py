"""The ``live`` workload: a server answers each step itself, and no job is run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from tunegym.core.errors import Problem, TunegymError
from tunegym.core.references import is_reference
from tunegym.tuning.model.scenario import INJECTED, Experiment, LiveSpec
from tunegym.tuning.model.values import spelled
from tunegym.tuning.workloads import fingerprint
from tunegym.tuning.workloads.signature import GymClass, argument_problems, check_form, describe_class


class LiveWorkload:
    """A ``GymServer`` class, built with the parameters as arguments, takes every step and says what came of it.

    It only says what is measured: nothing is planned or read. The constructor trusts an experiment that ``check``
    found nothing wrong with.
    """

    reserved: ClassVar[frozenset[str]] = frozenset({"env_class", "live_rl_mode"})
    required: ClassVar[tuple[str, ...]] = ("env_class",)
    live: ClassVar[bool] = True

    @classmethod
    def check(cls, experiment: Experiment, scenario_dir: Path) -> list[Problem]:
        """Everything that is wrong with an experiment; key paths are relative to it.

        A class is looked at where it will run: one that is served elsewhere need not be here.
        """
        spec = experiment.live
        assert spec is not None
        if spec.env_class == INJECTED or (not spec.env_class and spec.address is not None):
            return []
        try:
            check_form(spec.env_class, "Class")
            if spec.address is not None:
                return []
            gym_class = describe_class(spec.env_class, _paths(scenario_dir))
        except TunegymError as error:
            return [Problem("cmd_args.env_class", error.message, found=spelled(spec.env_class), hint=error.hint)]
        problems = [_below(problem, spec) for problem in argument_problems(gym_class, spec.arguments)]
        if experiment.env_params and not gym_class.applies_env_params:
            problems.append(_not_applied(experiment, gym_class))
        return problems

    def __init__(self, experiment: Experiment, scenario_dir: Path) -> None:
        assert experiment.live is not None
        self._experiment = experiment
        self._spec: LiveSpec = experiment.live
        self._scenario_dir = Path(os.path.abspath(scenario_dir))  # noqa: PTH100 (links stay as they are)

    def fingerprint(self) -> str:
        """The digest of all ``fingerprint_parts``, as the files are now."""
        return fingerprint.combined(self.fingerprint_parts())

    def fingerprint_parts(self) -> dict[str, str]:
        """A digest per thing that decides what is measured, such as ``env_class`` or ``file my_server.py``.

        Where the server lives decides nothing. What a server elsewhere is made of can't be seen from here.
        """
        files = list(fingerprint.named_files(self._experiment, (), self._scenario_dir))
        source = self._source_file()
        if source is not None:
            module = self._spec.env_class.partition(":")[0]
            files += fingerprint.module_files(module, source, self._scenario_dir)
        return {
            "env_class": fingerprint.digest(self._spec.env_class),
            "arguments": fingerprint.digest(self._spec.arguments),
            "env_params": fingerprint.digest(sorted(self._experiment.env_params.params)),
            **fingerprint.file_parts(files, self._scenario_dir),
        }

    def _source_file(self) -> str | None:
        if self._spec.address is not None or not is_reference(self._spec.env_class):
            return None
        return describe_class(self._spec.env_class, _paths(self._scenario_dir)).source_file


def declared_arguments(env_class: Any, scenario_dir: Path) -> frozenset[str]:
    """What the class's constructor takes by name; nothing if there is no such class, which ``check`` tells of."""
    if not isinstance(env_class, str) or not is_reference(env_class):
        return frozenset()
    try:
        return frozenset(describe_class(env_class, _paths(scenario_dir)).parameters)
    except TunegymError:
        return frozenset()


def _paths(scenario_dir: Path) -> tuple[str, ...]:
    return (os.path.abspath(scenario_dir),)  # noqa: PTH100


def _below(problem: Problem, spec: LiveSpec) -> Problem:
    """A problem of an argument, where the argument stands, and with what stands there."""
    name = problem.where
    found = spelled(spec.arguments[name]) if name in spec.arguments else None
    return Problem(f"cmd_args.{name}", problem.what, found, problem.allowed, problem.hint)


def _not_applied(experiment: Experiment, gym_class: GymClass) -> Problem:
    name = gym_class.reference.partition(":")[2]
    return Problem(
        "env_params",
        f"{name} has no apply_env_params(), so that it could not be told what is drawn",
        found=spelled(list(experiment.env_params.params)),
        allowed="env_params with a class that has apply_env_params(params)",
        hint="define it in the class, or remove env_params",
    )
