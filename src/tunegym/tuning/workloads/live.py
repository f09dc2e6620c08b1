"""The ``live`` workload: a server answers each step itself, and no job is run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from tunegym.core.errors import Problem, TunegymError
from tunegym.core.references import is_reference
from tunegym.tuning.model.scenario import INJECTED, Experiment
from tunegym.tuning.model.values import spelled
from tunegym.tuning.workloads.fingerprint import Fingerprinted, digest, file_parts
from tunegym.tuning.workloads.signature import argument_problems, check_form, describe_class


class LiveWorkload(Fingerprinted):
    """A ``GymServer`` class, built with the parameters as arguments, takes and answers every step.

    Nothing is planned or read. The constructor trusts an experiment that ``check`` found nothing wrong with.
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
        problems = argument_problems(gym_class, spec.arguments, "cmd_args.")
        if experiment.env_params and not gym_class.applies_env_params:
            name = spec.env_class.partition(":")[2]
            what = f"{name} has no apply_env_params(), so that it could not be told what is drawn"
            allowed = "env_params with a class that has apply_env_params(params)"
            hint, found = "define it in the class, or remove env_params", spelled(list(experiment.env_params.params))
            problems.append(Problem("env_params", what, found, allowed, hint))
        return problems

    def fingerprint_parts(self) -> dict[str, str]:
        """See ``Fingerprinted``. Where the server lives decides nothing; its files can't be seen elsewhere."""
        spec = self._experiment.live
        assert spec is not None
        source = None
        # The module of a ready-made server is elsewhere in another installation.
        if spec.address is None and is_reference(spec.env_class) and not spec.env_class.startswith("tunegym."):
            source = describe_class(spec.env_class, (str(self._scenario_dir),)).source_file
        return {
            "env_class": digest(spec.env_class),
            "arguments": digest(spec.arguments),
            "env_params": digest(sorted(self._experiment.env_params.params)),
            **file_parts(self._experiment, self._scenario_dir, reference=spec.env_class, source=source),
        }


def declared_arguments(env_class: Any, scenario_dir: Path) -> frozenset[str] | None:
    """The arguments of the class's constructor; None if there is no such class, which ``check`` reports."""
    if not isinstance(env_class, str) or not is_reference(env_class):
        return frozenset()
    try:
        return frozenset(describe_class(env_class, _paths(scenario_dir)).parameters)
    except TunegymError:
        return None


def _paths(scenario_dir: Path) -> tuple[str, ...]:
    return (os.path.abspath(scenario_dir),)  # noqa: PTH100
