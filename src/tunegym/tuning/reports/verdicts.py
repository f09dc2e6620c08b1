"""An answer as tables, ``best.toml``, ``--json`` and ``report.html`` show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from tunegym.tuning.inference.answer import Answer, Candidate, Interval, Verdict
from tunegym.tuning.inference.wording import (
    NONE_SURE,
    cells,
    drift_notes,
    gain_text,
    interval_text,
    place,
    value_of,
    value_title,
)
from tunegym.tuning.model.scenario import Objective
from tunegym.tuning.model.space import nested
from tunegym.tuning.model.summary import Table, table_of
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import number, pairs, with_goal

LEFT = ("context", "settings", "certainty")


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


# best.toml ------------------------------------------------------------------------------------------------


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


def best_document(answer: Answer, front: Sequence[tuple[Candidate, bool]], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``best.toml`` holds. ``front`` is the Pareto set, and whether each setting was confirmed."""
    overall, document = answer.overall, dict[str, Any]()
    unsaid = replace(overall, chosen=None)
    more = {"fixed": nested(fixed)} if fixed else {}
    if overall.chosen is not None:
        document["best"] = toml_of(overall.chosen, overall) | more
    for candidate in overall.candidates:
        if candidate.is_baseline:
            document["baseline"] = toml_of(candidate, unsaid)
    if front:
        by_rounds = {True: replace(unsaid, basis="rounds"), False: replace(unsaid, basis="model")}
        document["pareto"] = [toml_of(candidate, by_rounds[confirmed]) | more for candidate, confirmed in front]
    several = [toml_of(verdict.chosen, verdict) for verdict in answer.per_context if verdict.chosen is not None]
    if several:
        document["per_context"] = several
    return document


# tables ---------------------------------------------------------------------------------------------------


def answer_table(title: str, answer: Answer) -> Table | None:
    """Return what looks best and the baseline, over all and in each context; None if nothing can be said."""
    rows = [row for verdict in (answer.overall, *answer.per_context) for row in _answer_rows(answer, verdict)]
    return _table(title, rows) if rows else None


def _answer_rows(answer: Answer, verdict: Verdict) -> list[dict[str, str]]:
    """Return rows of few cells, so that a table of two contexts fits into 80 columns."""
    where = place(verdict) or ("over all" if answer.per_context else "")
    rows: list[dict[str, str]] = []
    for candidate in verdict.candidates:
        texts = cells(answer, verdict, candidate)
        texts["gain"] = _narrow(texts["gain"])
        del texts["samples"]
        if (candidate is verdict.best or candidate.is_baseline) and any(texts.values()):
            rows.append({"context": "" if rows else where, "settings": _label(candidate), **texts})
    return rows


def front_table(title: str, front: Sequence[tuple[Candidate, bool]], aims: Sequence[Objective]) -> Table:
    """Return the Pareto set, each setting with its values of all aims."""
    rows = []
    for candidate, confirmed in front:
        row = {"settings": _label(candidate), "gain": _narrow(gain_text(candidate.gain))}
        for aim in aims:
            row[with_goal(aim.metric, {aim.metric: aim.goal})] = interval_text(candidate.values.get(aim.metric))
        rows.append(row | {"certainty": (candidate.certainty or "") if confirmed else NONE_SURE})
    return _table(title, rows)


def _table(title: str, rows: Sequence[Mapping[str, str]]) -> Table:
    """Return a table without empty columns."""
    empty = {name for name in rows[0] if not any(row[name] for row in rows)}
    return table_of(title, [{name: row[name] for name in row if name not in empty} for row in rows], LEFT)


def _narrow(gain: str) -> str:
    """Return a gain above its interval."""
    return gain.replace(" (", "\n").rstrip(")")


def _label(candidate: Candidate) -> str:
    return "your settings" if candidate.is_baseline else pairs(candidate.changes or candidate.action)


# the page -------------------------------------------------------------------------------------------------


def answer_chart(answer: Answer, trials: Sequence[Trial], tried: str) -> dict[str, Any]:
    """Return the answer as the page shows it: over all first, then each context where there are several."""
    phases = Counter(trial.phase for trial in trials)
    return {
        "verdicts": [_chart(answer, verdict) for verdict in (answer.overall, *answer.per_context)],
        "phases": ", ".join(f"{number(count)} {phase}" for phase, count in phases.items()),
        "drift": "; ".join(drift_notes(answer)),
        "tried": tried,
    }


def _chart(answer: Answer, verdict: Verdict) -> dict[str, Any]:
    """Return one verdict's rows: the gains on the baseline, or without one the values."""
    gains = [candidate.gain for candidate in verdict.candidates if candidate.gain is not None]
    is_ratio = any(gain.is_ratio for gain in gains)
    title = value_title(answer)
    if gains:
        title += ": times as good as your settings" if is_ratio else ": gained on your settings"
    return {
        "context": place(verdict) or None,
        "sentence": verdict.sentence,
        "notes": list(verdict.notes),
        "title": title,
        "is_ratio": is_ratio,
        "rows": [_row(answer, verdict, candidate, bool(gains), is_ratio) for candidate in verdict.candidates],
    }


def _row(answer: Answer, verdict: Verdict, candidate: Candidate, has_gains: bool, is_ratio: bool) -> dict[str, Any]:
    gain, shown = candidate.gain, value_of(answer, candidate)
    if has_gains:
        shown = Interval(float(is_ratio)) if candidate.is_baseline else None
    if gain is not None:
        shown = Interval(gain.mean, gain.low, gain.high)
    both = ends(shown) or [None, None]
    return {
        "label": _label(candidate),
        "baseline": candidate.is_baseline,
        "role": _role(verdict, candidate),
        "mean": None if shown is None else shown.mean,
        "low": both[0],
        "high": both[1],
        "cells": cells(answer, verdict, candidate),
    }


def _role(verdict: Verdict, candidate: Candidate) -> str:
    if candidate is verdict.chosen:
        return "answer"
    return "tie" if candidate.action in verdict.ties else "other"
