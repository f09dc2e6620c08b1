"""The data that ``report.html`` plots for an experiment of trials, as much as a page can hold.

Trials are columns: small to store, and quick to plot, sort and filter. With them come the commands that trials ran
and the end of what they printed, without passwords in addresses.
"""

from __future__ import annotations

import contextlib
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tunegym.core.text import printable
from tunegym.tuning.agents import policies
from tunegym.tuning.inference.episodes import WindowedCurve, Windows
from tunegym.tuning.model.head import Head
from tunegym.tuning.model.space import Choice, Knob, nested
from tunegym.tuning.model.trial import STATUSES, Measured, Trial, samples_of
from tunegym.tuning.model.values import labels, masked
from tunegym.tuning.reports.verdicts import answer_chart
from tunegym.tuning.workloads.template import Template, TemplateError

if TYPE_CHECKING:
    from tunegym.tuning.reports.trials import TrialResults

MOST_TRIALS = 50_000
"""How many trials a page holds; beyond that it shows a sample."""
MOST_CURVES = 1_000
MOST_TRAINING = 24
MOST_STEPS = 300
EXACT = 2**53
"""Above this a browser's numbers are not exact."""
BUDGET = 4_000_000
"""Characters of output, and of commands, in the whole page."""
TAIL = 2_000
"""Characters of each file."""
MOST_FOLDERS = 3_000
"""Folders looked into: results may lie on a file system where each costs a millisecond."""
FILES = ("setup.txt", "stdout.txt", "stderr.txt", "teardown.txt")


def charts_of(results: TrialResults, fixed: Mapping[str, Any], share: float) -> dict[str, Any]:
    """Everything about an experiment that only a page shows. See ``TrialResults.charts``."""
    shown = kept(list(results), MOST_TRIALS)
    notes: list[str] = []
    closed = len(results.trials)
    if len(shown) < closed:
        notes.append(
            f"plots and the table show {len(shown):,} of {closed:,} trials; the numbers above count all of them"
        )
    head = results.head
    charts: dict[str, Any] = {"notes": notes, "table": columns(shown, head, results.times)}
    command = command_of(results, fixed)
    if command is not None:
        charts["commands"] = commands(shown, command, int(BUDGET * share))
    charts["outputs"] = tails(results.folder / "trials", shown, int(BUDGET * share))
    windows = Windows()
    windows.reach(closed)
    charts |= {"ends": windows.ends(), "training": training_curves(results.folder, windows)}
    if (values := results.advantages(trial for trial in results if trial.phase == "search")) is not None:
        charts["table"]["advantage"] = [values.get(trial.number) for trial in shown]
    chart = answer_chart(results.answer, results.trials, _tried(results))
    return charts | {"labels": setting_labels(results.facts), "answer": chart}


def _tried(results: TrialResults) -> str:
    """How many settings were measured, of how many."""
    best, size = results.facts["best"], results.head.space.size
    tried = best.get("settings_tried", 1) if best else 0
    return f"{tried:,} of a continuous space" if size is None else f"{tried:,} of {size:,}"


def setting_labels(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in the facts as text, since a browser knows no difference between 1 and 1.0."""

    def of(setting: Mapping[str, Any]) -> dict[str, dict[str, str]]:
        return {
            "action": {name: labels([value])[0] for name, value in setting["action"].items()},
            "context": {name: labels([value])[0] for name, value in setting.get("context", {}).items()},
        }

    return {
        "best": None if facts["best"] is None else of(facts["best"]),
        "pareto": [of(setting) for setting in facts["pareto"]],
        "policy": [
            {**of(one), "best": {} if one["best"] is None else of(one["best"])["action"]}
            for one in (facts["policy"] or {"choices": []})["choices"]
        ],
    }


# columns --------------------------------------------------------------------------------------------------


def kept(trials: Sequence[Trial], most: int) -> list[Trial]:
    """At most about ``most`` trials, by number: improvements, what is not search, and of the rest every n-th."""
    stride = max(1, -(-len(trials) // most))
    chosen: list[Trial] = []
    best = float("-inf")
    for position, trial in enumerate(trials):
        improves = trial.measured and trial.reward > best
        if improves:
            best = trial.reward
        if improves or position % stride == 0 or trial.phase != "search":
            chosen.append(trial)
    return sorted(chosen, key=lambda trial: trial.number)


def parameter(name: str, domain: Knob, values: Sequence[Any]) -> dict[str, Any]:
    """One knob's or env_param's column; None stands for a trial that has no value."""
    if isinstance(domain, Choice):
        index = [-1 if value is None else domain.index(value) for value in values]
        return {"name": name, "kind": "list", "labels": labels(domain.values), "index": index}
    column = {"name": name, "kind": "range", "low": domain.low, "high": domain.high, "dtype": domain.dtype}
    column |= {"log": domain.log, "values": list(values)}
    if domain.dtype == "int" and max(abs(domain.low), abs(domain.high)) > EXACT:
        column["text"] = [None if value is None else str(value) for value in values]
    return column


def columns(trials: Sequence[Trial], head: Head, times: Mapping[int, float]) -> dict[str, Any]:
    """Every trial by column, in the order given."""
    reasons: dict[str, int] = {"": 0}
    phases = {name: at for at, name in enumerate(dict.fromkeys(["search", *(trial.phase for trial in trials)]))}
    metrics = [trial.metrics for trial in trials]
    names = list(dict.fromkeys([*head.metrics, *(name for one in metrics for name in one)]))
    table: dict[str, Any] = {
        "number": [trial.number for trial in trials],
        "statuses": list(STATUSES),
        "status": [STATUSES.index(trial.status) for trial in trials],
        "phases": list(phases),
        "phase": [phases[trial.phase] for trial in trials],
        "cached_from": [trial.cached_from for trial in trials],
        "reward": [trial.reward for trial in trials],
        "reason": [reasons.setdefault(trial.reason, len(reasons)) for trial in trials],
        "reasons": [masked(reason) for reason in reasons],
        "duration_s": [round(trial.duration_s, 6) for trial in trials],
        "closed_s": [round(times[trial.number], 6) if trial.number in times else None for trial in trials],
        "knobs": [
            parameter(name, spec.domain, [trial.action.get(name) for trial in trials])
            for name, spec in head.knobs.items()
        ],
        "env_params": [
            parameter(name, spec.domain, [trial.context.get(name) for trial in trials])
            for name, spec in head.env_params.items()
        ],
        "metrics": [{"name": name, "values": [one.get(name) for one in metrics]} for name in names],
    }
    samples = [samples_of(trial) for trial in trials]
    if any(len(some) > 1 for some in samples):
        spreads = [Measured(some).spread() if len(some) > 1 else {} for some in samples]
        table["samples"] = [len(some) for some in samples]
        for metric in table["metrics"]:
            metric["spread"] = [one.get(metric["name"]) for one in spreads]
    reported = [(position, trial.reports) for position, trial in enumerate(trials) if trial.reports]
    if reported:  # thinned; the last value always stays
        table["curves"] = [
            [position, [*reports[: -1 : max(1, -(-len(reports) // MOST_STEPS))], reports[-1]]]
            for position, reports in reported[:: max(1, -(-len(reported) // MOST_CURVES))]
        ]
    return table


# commands and output --------------------------------------------------------------------------------------


def command_of(results: TrialResults, fixed: Mapping[str, Any]) -> Callable[[Trial], str | None] | None:
    """Gives what a trial ran: the recorded template or call with the trial's values; None for other workloads.

    A trial that ran nothing has no command. A placeholder without a known value stays as it is.
    """
    arguments = results.declared.get("cmd_args", {})
    template, target = arguments.get("command"), arguments.get("callable")
    repeat = "" if results.head.repeats == 1 else "/repeat-1"
    if not isinstance(template or target, str):
        return None

    def command(trial: Trial) -> str | None:
        opened = trial.action or not results.head.knobs
        if trial.cached_from is not None or trial.status == "infeasible" or not opened:
            return None
        values = {**fixed, **trial.action, **trial.context}
        if template is None:
            passed = nested({name: one for name, one in values.items() if not name.startswith("extra_env_vars.")})
            return f"{target}({', '.join(f'{name}={value!r}' for name, value in passed.items())})"
        folder = f"{results.folder.absolute()}/trials/{trial.number:06d}{repeat}"
        values |= {"trial_dir": folder, "scenario_dir": results.scenario_dir, "step": trial.number}
        try:
            parsed = Template.parse(template)
            return parsed.render({name: values.get(name, f"{{{name}}}") for name in parsed.names})
        except TemplateError:  # scenario.toml was edited
            return None

    return command


def by_interest(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that one looks at first come first: failed ones, then by reward, cached ones last."""
    return sorted(
        trials, key=lambda one: (one.cached_from is not None, one.measured, -one.reward if one.measured else one.number)
    )


def commands(trials: Sequence[Trial], command: Callable[[Trial], str | None], budget: int) -> dict[str, Any]:
    """The command of each trial: ``lines`` once each, and for every position the indices of its lines.

    Scripts of many lines differ in a few of them from trial to trial. None where a trial ran nothing, or where
    ``budget`` characters are used up; ``left_out`` counts those.
    """
    lines: dict[str, int] = {}
    made: dict[int, list[int]] = {}
    left_out = 0
    for trial in by_interest(trials):
        if budget <= 0:
            left_out += 1
        elif (text := command(trial)) is not None:
            parts = textwrap.dedent(printable(masked(text))).strip("\n").rstrip().split("\n")
            budget -= sum(len(part) for part in parts if part not in lines) + len(parts)
            made[trial.number] = [lines.setdefault(part, len(lines)) for part in parts]
    return {"lines": list(lines), "of": [made.get(trial.number) for trial in trials], "left_out": left_out}


def tails(folder: Path, trials: Sequence[Trial], budget: int) -> dict[str, list[list[Any]]]:
    """The end of what trials printed: by number a list of file name, text, and whether something is before it.

    Of several repeats the last one counts, which is the one that failed where one did. ``folder`` is an experiment's
    ``trials/``, ``budget`` the characters for all of them together.
    """
    try:
        there = {entry.name for entry in os.scandir(folder)}
    except OSError:
        return {}
    found: dict[str, list[list[Any]]] = {}
    for trial in [one for one in by_interest(trials) if f"{one.number:06d}" in there][:MOST_FOLDERS]:
        files = _files(folder / f"{trial.number:06d}") if budget > 0 else []
        if files:
            found[str(trial.number)] = files
            budget -= sum(len(text) for _, text, _ in files)
    return found


def _files(folder: Path) -> list[list[Any]]:
    repeats = [path.name for path in folder.glob("repeat-*") if path.name[7:].isdigit()]
    last = max(repeats, key=lambda name: int(name[7:]), default="")
    files: list[list[Any]] = []
    for name in FILES:
        text, cut = _tail(folder / last / name)
        if text:
            files.append([f"{last}/{name}" if last else name, text, cut])
    return files


def _tail(path: Path) -> tuple[str, bool]:
    try:
        if not path.is_file():  # a job may have put a pipe there
            return "", False
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 4 * TAIL))
            text = file.read(4 * TAIL).decode("utf-8", "replace")
    except OSError:
        return "", False
    return masked(text)[-TAIL:], size > 4 * TAIL or len(text) > TAIL


def training_curves(folder: Path, windows: Windows) -> list[dict[str, Any]]:
    """The means by window of each training value."""
    curves: dict[str, WindowedCurve] = {}
    last = max(1, windows.ends()[-1])
    for trials, values in policies.read_training(folder)[0]:
        for name, value in values.items():
            if name in curves or len(curves) < MOST_TRAINING:
                curves.setdefault(name, windows.curve()).add(min(max(1, trials), last), value)
    return [{"name": name, **curve.as_dict()} for name, curve in curves.items()]


def rollout_notes(folder: Path) -> list[str]:
    """What became of the rollouts of ``async_ppo``, by the last line of its log; nothing for other agents."""
    with contextlib.suppress(OSError, ValueError, IndexError, KeyError):
        found = msgspec.json.decode((folder / "async.jsonl").read_bytes().splitlines()[-1])["account"]
        dropped = "".join(f" + {count:,} dropped ({why})" for why, count in found["dropped"].items())
        rest = f"{found['lost']:,} lost + {found['left']:,} left"
        return [f"{found['produced']:,} rollouts = {found['trained']:,} trained{dropped} + {rest}"]
    return []
