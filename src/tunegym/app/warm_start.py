"""Warm start: the trials of another run, mapped to the knobs of this one."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tunegym.app.report import scenario_of
from tunegym.core.errors import StoreError
from tunegym.tuning.envs.score import TrialScore
from tunegym.tuning.model.scenario import Experiment, Penalties
from tunegym.tuning.model.space import Choice, Knob
from tunegym.tuning.model.trial import Cancelled, Measured, Trial
from tunegym.tuning.model.values import Scalar, counted, exact_key, spelled
from tunegym.tuning.ports import Reward
from tunegym.tuning.reports.results import SCENARIO, load
from tunegym.tuning.stores import reader

logger = logging.getLogger(__name__)


WARM_START = "warm_start"
"""The folder, in an experiment's, with a copy of the run that it started from."""


class UnfitTrialError(Exception):
    """A trial that can't be taken over; the message says why."""


def warm_trials(folder: Path, experiment: Experiment, reward: Reward) -> list[Trial]:
    """The trials in a results folder that fit ``experiment``, scored by its reward, in the order of their numbers.

    Values are mapped where that changes nothing about what they mean (4 where 4.0 is a candidate, a parameter that
    is fixed there and a knob here). What doesn't fit is left out; how many were taken, mapped and left out is logged.

    Raises:
        StoreError: the folder holds no run, or none of its experiments is meant.
    """
    results = find_source(folder, experiment)
    fixed, score = _fixed(results), TrialScore(reward, Penalties(), experiment.reward)
    taken: list[Trial] = []
    mapped = 0
    unfit: Counter[str] = Counter()
    for trial in results.trials:
        try:
            action, context = _mapped({**fixed, **trial.action, **trial.context}, trial, experiment)
            taken.append(_scored(replace(trial, action=action, context=context), experiment, score))
        except UnfitTrialError as error:
            unfit[str(error)] += 1
        else:
            mapped += exact_key(action, context) != exact_key(trial.action, trial.context)
    parts = [f"warm start: {counted(len(taken), 'trial')} taken"]
    if mapped:
        parts.append(f"{mapped} of them mapped to the knobs here")
    if unfit:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in unfit.most_common(3))
        parts.append(f"{unfit.total()} left out ({reasons}{'; ...' if len(unfit) > 3 else ''})")
    (logger.info if taken else logger.warning)("%s", ", ".join(parts))
    return taken


def copied_sources(folder: Path) -> list[str]:
    """Overrides by which a scenario starts from the copies in its results folder, wherever that is now."""
    copies = sorted(folder.absolute().glob(f"*/{WARM_START}"))
    return [f"experiments.{copy.parent.name}.agent_config.warm_start={spelled(str(copy))}" for copy in copies]


def copy_source(results: Any, folder: Path) -> None:
    """Copy a run's scenario and journal to an experiment's ``folder``, whole or not at all. Raises ``StoreError``.

    So a resume starts from the same trials, whatever happens to the other run.
    """
    try:
        reader.scan(results.path)
    except StoreError as error:  # damaged: the message names the original, not the copy
        hint = "put it back as it was, or leave warm_start out"
        raise StoreError(f"warm_start: {error.message}", hint=hint) from error
    logger.info("%s starts from the trials in %s", folder.name, results.folder)
    copy, fresh = folder / WARM_START, folder / f"{WARM_START}.new"
    try:
        (fresh / results.name).mkdir(parents=True)
        shutil.copyfile(results.folder.parent / SCENARIO, fresh / SCENARIO)
        if results.path.exists():
            shutil.copyfile(results.path, fresh / results.name / results.path.name)
        fresh.rename(copy)
    except OSError as error:
        what = f"{copy} can't be written: {error.strerror}"
        raise StoreError(what, hint="choose another place with --output") from error


def find_source(folder: Path, experiment: Experiment) -> Any:
    """The results of the experiment of the same name, or of the only one. Raises ``StoreError``."""
    run = load(folder)
    names = list(run.experiments)
    name = names[0] if len(names) == 1 else experiment.name
    if name not in names:
        what = f"warm_start: {run.folder} has no experiment {experiment.name!r}"
        raise StoreError(what, hint=f"name this one as one of those: {', '.join(names)}")
    results = run.experiments[name]
    if not hasattr(results, "trials"):
        what = f"warm_start: {name} in {run.folder} has no trials to start from"
        raise StoreError(what, hint="give a run whose experiment ran jobs, or leave warm_start out")
    return results


def _fixed(results: Any) -> Mapping[str, Any]:
    """The parameters that were fixed in the other run; none if its scenario can't be read any more."""
    scenario, _ = scenario_of(results.folder.parent)
    experiments = () if scenario is None else scenario.experiments
    return next((one.space.fixed for one in experiments if one.name == results.name), {})


def _mapped(
    there: Mapping[str, Any], trial: Trial, experiment: Experiment
) -> tuple[dict[str, Scalar], dict[str, Scalar]]:
    """The trial's parameters as an action and a context here."""
    knobs, fixed = experiment.space.knobs, experiment.space.fixed
    drawn = {name: param.domain for name, param in experiment.env_params.params.items()}
    if not trial.action or trial.cached_from is not None or isinstance(trial.outcome, Cancelled):
        raise UnfitTrialError("nothing was run for it, or not to its end")
    for name in (*trial.action, *trial.context):
        if name in knobs or name in drawn:
            continue
        if name not in fixed:
            where = f"it ran under env_params ({', '.join(trial.context)})" if name in trial.context else None
            raise UnfitTrialError(where or f"there is no {name} here")
        if not _equal(fixed[name], there[name]):
            raise UnfitTrialError(f"{name} is fixed at {spelled(fixed[name])} here")
    missing = next((name for name in (*knobs, *drawn) if name not in there), None)
    if missing is not None:
        raise UnfitTrialError(f"it has no {missing}")
    action, context = (
        {name: _value(name, there[name], knob) for name, knob in domains.items()} for domains in (knobs, drawn)
    )
    return action, context


def _value(name: str, value: Any, knob: Knob) -> Scalar:
    """The same value here. Never the nearest one: that was not measured."""
    if isinstance(knob, Choice):
        same = [one for one in knob.values if type(one) is type(value) and one == value]
        same = same or [one for one in knob.values if _equal(one, value)]
        if len(same) == 1:
            return same[0]
        raise UnfitTrialError(f"{name} has a value that is no candidate here")
    try:
        accepted = knob.accept(value)
    except ValueError:
        raise UnfitTrialError(f"{name} is outside of its range here") from None
    if accepted != value:
        raise UnfitTrialError(f"{name} is between the steps here")
    return accepted


def _equal(one: Any, other: Any) -> bool:
    """4 and 4.0 mean the same; 1 and true don't."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _scored(trial: Trial, experiment: Experiment, score: TrialScore) -> Trial:
    """With the reward that the measurement has here."""
    if not isinstance(trial.outcome, Measured):
        return trial
    metrics = trial.outcome.mean()
    for objective in experiment.objectives:
        if objective.metric not in metrics:
            raise UnfitTrialError(f"metric {objective.metric} was not measured")
    outcome, reward = score.score(trial.outcome)
    if not isinstance(outcome, Measured):
        raise UnfitTrialError(f"it can't be scored: {outcome.reason}")
    return replace(trial, reward=reward)
