"""An answer as tables, ``best.toml``, ``--json`` and ``report.html`` show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tunegym.tuning.inference.answer import Answer, Candidate, Interval, Verdict
from tunegym.tuning.inference.wording import cells, drift_notes, gain_text, place
from tunegym.tuning.model.space import nested
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import number, pairs, with_goal

REWARD = "reward (max)"
"""A column of rewards: more is always better."""


def ends(interval: Interval | None) -> list[float] | None:
    """Return the ends of an interval; None where they are unknown."""
    if interval is None or interval.low is None or interval.high is None:
        return None
    return [interval.low, interval.high]


def facts_of(candidate: Candidate, confirmed: bool, context: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a setting as plain data, for ``--json``."""
    intervals = {name: ends(interval) for name, interval in candidate.values.items()}
    facts: dict[str, Any] = {
        "trial": candidate.trials[0] if candidate.trials else None,
        "action": dict(candidate.action),
        "changes": dict(candidate.changes),
        "reward": None if candidate.reward is None else candidate.reward.mean,
        "interval": ends(candidate.reward),
        "gain": None if candidate.gain is None else asdict(candidate.gain),
        "better": gain_text(candidate.gain),
        "certainty": candidate.certainty,
        "samples": candidate.samples,
        "failed": candidate.failed,
        "violation": candidate.violation,
        "metrics": {name: interval.mean for name, interval in candidate.values.items()},
        "intervals": {name: both for name, both in intervals.items() if both is not None},
        "confirmed": confirmed,
    }
    return facts if context is None else facts | {"context": dict(context)}


def toml_of(candidate: Candidate, verdict: Verdict) -> dict[str, Any]:
    """Return a setting as ``best.toml`` has it: facts that are known, with nested tables as in ``cmd_args``."""
    facts = facts_of(candidate, verdict.confirmed, verdict.context)
    if candidate is verdict.chosen:
        facts |= {"answer": verdict.sentence, "note": "; ".join(verdict.notes) or None}
    named = {"measured": facts.pop("samples"), "settings": nested(facts.pop("action"))}
    for name in ("changes", "context"):
        if name in facts:
            named[name] = nested(facts.pop(name))
    document = {**facts, **named}
    document.pop("better")
    if not candidate.violation:
        del document["violation"]
    return {key: value for key, value in document.items() if value not in (None, {}, [])}


# the page -------------------------------------------------------------------------------------------------


def answer_chart(answer: Answer, trials: Sequence[Trial], tried: str) -> dict[str, Any]:
    """Return the answer as the page shows it: over all first, then each context where there are several."""
    verdicts = [answer.overall, *answer.per_context]
    metric = answer.metric or "reward"
    chosen = answer.overall.chosen
    phases = Counter(trial.phase for trial in trials)
    return {
        "verdicts": [_chart(verdict, metric, answer.goal) for verdict in verdicts],
        "titles": [] if chosen is None else list(cells(answer.overall, chosen, metric)),
        "phases": ", ".join(f"{number(count)} {phase}" for phase, count in phases.items()),
        "noise": "; ".join(drift_notes(answer)),
        "tried": tried,
    }


def _chart(verdict: Verdict, metric: str, goal: str) -> dict[str, Any]:
    """Return one verdict's rows: the gains on the baseline, or without one the values."""
    has_gains = any(candidate.gain is not None for candidate in verdict.candidates)
    title = "times as good as your settings" if has_gains else with_goal(metric, {metric: goal})
    if has_gains and not all(candidate.gain is None or candidate.gain.is_ratio for candidate in verdict.candidates):
        title = f"{metric} gained on your settings"
    return {
        "context": place(verdict) or None,
        "sentence": verdict.sentence,
        "notes": list(verdict.notes),
        "title": title,
        "rows": [_row(verdict, candidate, metric, has_gains) for candidate in verdict.candidates],
    }


def _row(verdict: Verdict, candidate: Candidate, metric: str, has_gains: bool) -> dict[str, Any]:
    shown = _interval(candidate, metric, has_gains)
    if has_gains and candidate.is_baseline:
        shown = Interval(_no_gain(verdict))
    texts = cells(verdict, candidate, metric)
    role = "answer" if candidate is verdict.chosen else "tie" if candidate.action in verdict.ties else "other"
    both = ends(shown) or [None, None]
    return {
        "label": "your settings" if candidate.is_baseline else pairs(candidate.changes or candidate.action),
        "baseline": candidate.is_baseline,
        "role": role,
        "mean": None if shown is None else shown.mean,
        "low": both[0],
        "high": both[1],
        "gain": texts["gain"],
        "cells": list(texts.values()),
        "tip": [pair for pair in texts.items() if pair[1]],
    }


def _interval(candidate: Candidate, metric: str, has_gains: bool) -> Interval | None:
    gain = candidate.gain
    if has_gains:
        return None if gain is None else Interval(gain.mean, gain.low, gain.high)
    return candidate.values.get(metric, candidate.reward)


def _no_gain(verdict: Verdict) -> float:
    gains = [candidate.gain for candidate in verdict.candidates if candidate.gain is not None]
    return 1.0 if gains[0].is_ratio else 0.0
