"""An answer as tables, ``best.toml``, ``--json`` and ``report.html`` show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tunegym.tuning.answers.answer import Answer, Evidence, Gain, Noise, Verdict, between
from tunegym.tuning.answers.intervals import Interval
from tunegym.tuning.model.space import nested
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import number, pairs, plus_minus, with_goal

REWARD = "reward (max)"
"""A column of rewards: more is always better."""
BETTER = "gain on baseline"


def bounds(interval: Interval | None) -> list[float] | None:
    """The ends of an interval; None where they are unknown."""
    return [interval.low, interval.high] if interval is not None and interval.known else None


def interval_text(interval: Interval | None) -> str:
    """``4.748 ±0.12``: the mean, and half of the interval's width where it is known."""
    if interval is None:
        return ""
    return plus_minus(interval.mean, (interval.high - interval.low) / 2 if interval.known else None)


def better(gain: Gain | None, judged: str | None) -> str:
    """``12 % (9 to 15 %)``: how much better than the baseline; in units of the reward where that is no metric."""
    if gain is None or not gain.on_baseline:
        return ""
    shown, unit = (gain.reward, "") if gain.percent is None or gain.metric != judged else (gain.percent, " %")
    return f"{number(shown.mean, 2)}{unit}{between(shown, unit, 2, named=False)}"


def cells(one: Evidence, metrics: Sequence[str], goals: Mapping[str, str], judged: str | None) -> dict[str, str]:
    """One setting's evidence by column: reward, metrics, the spread of the ``judged`` one, gain and samples."""
    found = {REWARD: number(one.reward.mean) if judged and one.reward else interval_text(one.reward)}
    found |= {with_goal(name, goals): interval_text(one.metrics.get(name)) for name in metrics}
    spread = one.spread.get(judged or "reward")
    found["spread"] = "" if spread is None else number(spread, 2)
    found[BETTER] = "baseline" if one.is_baseline else better(one.gain, judged)
    return found | {"samples": number(one.samples), "failed": number(one.failed) if one.failed else ""}


def facts_of(one: Evidence, confirmed: bool) -> dict[str, Any]:
    """A setting as plain data, for ``--json``."""
    means = {name: interval.mean for name, interval in one.metrics.items()}
    facts: dict[str, Any] = {
        "trial": one.trials[0] if one.trials else None,
        "action": dict(one.action),
        "reward": None if one.reward is None else one.reward.mean,
        "interval": bounds(one.reward),
        "gain": _gain(one.gain),
        "samples": one.samples,
        "failed": one.failed,
        "violation": one.violation,
        "metrics": means,
        "intervals": {name: ends for name, interval in one.metrics.items() if (ends := bounds(interval)) is not None},
        "spread": dict(one.spread),
        "confirmed": confirmed,
    }
    return facts if one.context is None else facts | {"context": dict(one.context)}


def toml_of(one: Evidence, verdict: Verdict) -> dict[str, Any]:
    """A setting as ``best.toml`` has it: facts that are known, with nested tables as in ``cmd_args``."""
    facts = facts_of(one, verdict.confirmed)
    if one == verdict.chosen:
        facts |= {
            "answer": verdict.sentence,
            "note": "; ".join(verdict.notes) or None,
            "ties": [nested(tie.action) for tie in verdict.ties],
        }
    named = {"measured": facts.pop("samples"), "settings": nested(facts.pop("action"))}
    if "context" in facts:
        named["context"] = nested(facts.pop("context"))
    found = {**facts, **named}
    return {key: one for key, one in found.items() if one not in (None, {}, []) and (key != "violation" or one)}


def _gain(gain: Gain | None) -> dict[str, Any] | None:
    if gain is None:
        return None
    found = {"on_baseline": gain.on_baseline, "reward": gain.reward.mean, "interval": bounds(gain.reward)}
    if gain.percent is not None:
        found |= {"metric": gain.metric, "percent": gain.percent.mean, "percent_interval": bounds(gain.percent)}
    return {key: value for key, value in found.items() if value is not None}


# the page -------------------------------------------------------------------------------------------------


def answer_chart(
    answer: Answer, trials: Sequence[Trial], metrics: Sequence[str], goals: Mapping[str, str], judged: str | None
) -> dict[str, Any]:
    """The answer as the page shows it: over all first, then each context where there are several."""
    several = len(answer.per_context) > 1
    verdicts = [answer.overall, *(answer.per_context if several else ())]
    chosen = answer.overall.chosen
    levels = [one.reward.confidence for each in verdicts for one in each.finalists if one.reward is not None]
    phases = Counter(trial.phase for trial in trials)
    return {
        "verdicts": [_chart(one, metrics, goals, judged, several and one is answer.overall) for one in verdicts],
        "titles": list(cells(chosen, metrics, goals, judged)) if chosen is not None else [],
        "confidence": number(100 * levels[0]) if levels else "",
        "phases": ", ".join(f"{number(count)} {name}" for name, count in phases.items()),
        "noise": _noise_text(answer.noise),
        "not_tested": answer.not_tested,
    }


def _noise_text(noise: Noise | None) -> str:
    if noise is None:
        return ""
    spread = noise.relative_spread
    parts = [] if spread is None else [f"one setting spreads by {number(100 * spread, 2)} %"]
    if noise.drift is not None:
        ends = between(noise.drift, " %", 2, named=False)
        parts.append(f"from start to end it drifted by {number(noise.drift.mean, 2)} %{ends}")
    return "; ".join(parts)


def _chart(
    verdict: Verdict, metrics: Sequence[str], goals: Mapping[str, str], judged: str | None, over_all: bool
) -> dict[str, Any]:
    """One verdict's rows: on the scale of its metric, or over several contexts of its gain, else of its reward."""
    found = verdict.finalists
    title, shown = REWARD, {id(one): one.reward for one in found}
    gains = {id(one): one.gain for one in found if one.gain is not None}
    than = "the baseline" if all(one.on_baseline for one in gains.values()) else "the median of the search"
    if over_all and gains and all(one.percent and one.metric == judged for one in gains.values()):
        title, shown = f"% better than {than}", {key: one.percent for key, one in gains.items()}
    elif over_all:
        title, shown = f"reward above {than}", {key: one.reward for key, one in gains.items()}
    elif judged is not None:
        title, shown = with_goal(judged, goals), {id(one): one.metrics.get(judged) for one in found}
    differ = [name for name in (found[0].action if found else ()) if len({repr(one.action[name]) for one in found}) > 1]
    rows = []
    for one in found:
        interval = shown.get(id(one))
        ends = bounds(interval) or [None, None]
        role = "answer" if one == verdict.chosen else "tie" if one in verdict.ties else "other"
        texts = cells(one, metrics, goals, judged)
        mean = interval.mean if interval is not None else 0.0 if one.is_baseline and over_all and gains else None
        place = {"mean": mean, "low": ends[0], "high": ends[1], "gain": texts[BETTER]}
        known = {"label": pairs({name: one.action[name] for name in differ or one.action}), "baseline": one.is_baseline}
        text = {"cells": list(texts.values()), "tip": [pair for pair in texts.items() if pair[1]]}
        rows.append({**known, "role": role, **place, **text})
    context = None if verdict.context is None else pairs(verdict.context)
    return {
        "context": context,
        "sentence": verdict.sentence,
        "notes": list(verdict.notes),
        "title": title,
        "rows": rows,
    }
