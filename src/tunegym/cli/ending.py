"""What a run says when it is over."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path

from tunegym.cli.console import console
from tunegym.cli.tables import best_settings, number
from tunegym.core.errors import TunegymError
from tunegym.core.escaping import escaped
from tunegym.tuning.reports.best import best_of
from tunegym.tuning.reports.live import summarise_live
from tunegym.tuning.reports.live_results import LiveResults
from tunegym.tuning.reports.page import REPORT
from tunegym.tuning.reports.results import ExperimentResults, load
from tunegym.tuning.reports.tried import kind_of_reason


def show_results(folder: Path) -> None:
    """The best settings of every experiment on stdout, and where everything is."""
    out = console()
    try:
        results = load(folder)
        for experiment in results.experiments.values():
            if experiment.path.exists():
                _show_experiment(experiment)
    except (TunegymError, OSError) as error:  # the run's own error is the one that counts
        console(stderr=True).print(f"warning: the results can't be shown: {error}", markup=False, soft_wrap=True)
    out.print(f"results: {_short(folder)}", markup=False, soft_wrap=True)
    if (folder / REPORT).is_file():
        out.print(f"report: {_short(folder / REPORT)}", markup=False, soft_wrap=True)


def _show_experiment(experiment: ExperimentResults) -> None:
    if isinstance(experiment, LiveResults):
        _show_live(experiment)
        return
    out = console()
    best = best_of(experiment, experiment.objectives)
    head = experiment.journal.head or {}
    if best.overall is not None:
        shown = best_settings(experiment.name, best, head.get("metrics", []), out.width)
        out.print(shown, markup=False, soft_wrap=isinstance(shown, str))
        if best.overall.violation:
            out.print("  no setting keeps the limits; these come closest", markup=False)
    else:
        out.print(f"{experiment.name}: no trial was measured", markup=False, soft_wrap=True)
    reasons = Counter(f"{trial.status}: {kind_of_reason(trial)}" for trial in experiment if not trial.measured)
    for reason, count in reasons.most_common(3):
        out.print(f"  {count} x {escaped(reason)}", markup=False, soft_wrap=True)
    if len(reasons) > 3:
        out.print(f"  and {len(reasons) - 3} more reasons: see trajectory.csv and journal.jsonl", soft_wrap=True)


def _show_live(experiment: LiveResults) -> None:
    """Its episodes, where its policy is, and why steps failed."""
    out = console()
    facts = summarise_live(experiment).facts
    mean, over = facts["episodes"]["mean_return"], facts["episodes"]["mean_return_over"]
    parts = [_counted(facts["steps"]["done"], "step"), _counted(facts["episodes"]["over"], "episode")]
    if mean is not None:
        parts.append(f"mean return {number(mean)} in the last {over}")
    out.print(f"{experiment.name}: {', '.join(parts)}", markup=False, soft_wrap=True)
    if experiment.policy is not None:
        out.print(f"  policy: {_short(experiment.policy)}", markup=False, soft_wrap=True)
    reasons = facts["reasons"]
    for one in reasons[:3]:
        out.print(f"  {one['count']} x {one['status']}: {escaped(one['reason'])}", markup=False, soft_wrap=True)
    if len(reasons) > 3:
        out.print(f"  and {len(reasons) - 3} more reasons: see report.html and journal.jsonl", soft_wrap=True)


def _counted(count: int, unit: str) -> str:
    return f"{count:,} {unit}" if count == 1 else f"{count:,} {unit}s"


def say_how_to_resume(folder: Path, *, interrupted: bool) -> None:
    """The command that goes on from here."""
    why = "interrupted" if interrupted else "not finished"
    console(stderr=True).print(
        f"{why}; to go on: tunegym resume {shlex.quote(_short(folder))}", markup=False, soft_wrap=True
    )


def _short(folder: Path) -> str:
    """Relative to where the user is, when it lies below."""
    try:
        return str(folder.relative_to(Path.cwd()))
    except ValueError:
        return str(folder)
