"""``tunegym.recommend``: the settings to use, from a run's results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunegym.core.errors import ConfigError, Problem
from tunegym.core.text import closest
from tunegym.tuning.answers.recommendation import Recommendation
from tunegym.tuning.model.values import spelled
from tunegym.tuning.reports.results import AnyResults, RunResults, load
from tunegym.tuning.stores import reader


def recommend(
    folder: str | Path, context: Mapping[str, Any] | None = None, experiment: str | None = None
) -> Recommendation:
    """The settings to use, over all contexts or in the one that ``context`` describes, wholly or in part.

    Args:
        folder: a run's results.
        context: values of env_params by address.
        experiment: which one; may be left out when there is only one.

    Raises:
        ConfigError: no such experiment, or a context that the run could not have drawn.
        StoreError: there are no results, nothing was measured, or the experiment is live: it has a policy and no
            settings. The message says where the policy is and how it is used.
    """
    return _chosen(load(folder), experiment, Path(folder)).recommend(context or {})


def _chosen(results: RunResults, name: str | None, folder: Path) -> AnyResults:
    """The experiment that is asked about: by name, by its own folder, or the only one."""
    experiments = results.experiments
    if name is None and len(experiments) == 1:
        return next(iter(experiments.values()))
    if name is None and folder.name in experiments and (folder / reader.JOURNAL).is_file():
        return experiments[folder.name]
    if name is not None and name in experiments:
        return experiments[name]
    match = closest(name, experiments) if name is not None else None
    what = "there is no such experiment" if name is not None else "which experiment? the run has several"
    hint = f"did you mean {match}?" if match is not None else "give one of these"
    found = spelled(name) if name is not None else None
    raise ConfigError("--experiment", [Problem("", what, found, ", ".join(experiments), hint)])
