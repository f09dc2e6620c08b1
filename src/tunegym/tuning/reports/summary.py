"""One experiment's facts as plain data: what ``report.html`` shows and ``tunegym report --json`` prints."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import exact_key
from tunegym.tuning.reports.best import Setting
from tunegym.tuning.reports.certainty import SURE, RewardMetric, reward_metric, reward_spread
from tunegym.tuning.reports.importance import importance
from tunegym.tuning.reports.masking import masked
from tunegym.tuning.reports.policy_facts import PolicyFacts
from tunegym.tuning.reports.problems import problem_of
from tunegym.tuning.reports.results import ExperimentResults
from tunegym.tuning.reports.timing import closing_times
from tunegym.tuning.reports.tried import EVERYWHERE, Key, Pass, Watched
from tunegym.tuning.stores.lock import living_writer

MOST_REASONS = 50

UNCLEAR = "not distinguishable"
EXCEEDS = "exceeds a limit"
"""What a gap alone would not say: the single setting did no worse there, or only by exceeding a limit."""

_SLACK = 1e-9
"""Violations that differ by less are the same: the means behind them were added up in another order."""


def state_of(results: ExperimentResults) -> str:
    """``not started``, ``running``, ``finished`` or ``interrupted``."""
    if results.journal.head is None:
        return "not started"
    if living_writer(results.folder) is not None:
        return "running"
    return "finished" if results.journal.ended is not None else "interrupted"


@dataclass(frozen=True)
class Summary:
    """One experiment: ``facts`` as plain data, and when its trials closed."""

    facts: dict[str, Any]
    times: Mapping[int, float]


def summarise(
    results: ExperimentResults, declared: Mapping[str, Any], shown: Sequence[Trial] = (), total: int | None = None
) -> Summary:
    """The facts of one experiment. The trials are streamed.

    Args:
        results: the experiment.
        declared: the same experiment in the scenario, which names its reward.
        shown: a sample of its trials from which importance is estimated; all of them where that is possible.
        total: how many trials it has at most; None if that is open or not known.
    """
    journal = results.journal
    head = journal.head or {}
    best, per_context = results.best, results.best_per_context
    passed = Pass(_watched(best, per_context), results.objectives)
    policy = PolicyFacts(results)
    for trial in results:
        passed.add(trial)
        policy.add(trial)
    metric = reward_metric(head.get("metrics", []), results.objectives, declared)
    times = closing_times(results.path) if results.path.exists() else {}
    names = dict.fromkeys(head.get("knobs", {}), "knob") | dict.fromkeys(head.get("env_params", {}), "env_param")
    contexts = [_in_context(setting, best, passed, metric) for setting in per_context]
    state = state_of(results)
    facts: dict[str, Any] = {
        "name": results.name,
        "live": False,
        "state": state,
        "problem": problem_of(state, passed.statuses, journal.ended),
        "ended": journal.ended["reason"] if journal.ended is not None else None,
        "agent": head.get("agent"),
        "seed": head.get("seed"),
        "repeats": head.get("repeats", 1),
        "metrics": head.get("metrics", []),
        "objectives": [objective.as_dict() for objective in results.objectives],
        "trials": {
            "total": total,
            "done": passed.statuses.total(),
            "open": len(journal.open),
            "cached": passed.cached,
            "statuses": dict(passed.statuses.most_common()),
        },
        "reasons": _reasons(passed.reasons),
        "best": None if best is None else _best(best, passed, metric, times),
        "per_context": contexts,
        **_mean_gap(contexts),
        "policy": policy.as_dict(best, per_context, metric),
        "pareto": [_setting(setting, metric, None) for setting in results.pareto],
        "importance": importance(shown, names),
        "time": {
            **passed.cost.as_dict(journal.elapsed_s),
            "sessions": len(journal.sessions),
            **hosts_of(journal.sessions),
        },
    }
    return Summary(facts, times)


def _watched(best: Setting | None, per_context: Sequence[Setting]) -> list[Key]:
    """The best action everywhere and in each context, and each context's own best there."""
    if best is None:
        return []
    action = exact_key(best.action)
    keys = [(action, EVERYWHERE)]
    for setting in per_context:
        context = exact_key(setting.context or {})
        keys += [(action, context), (exact_key(setting.action), context)]
    return keys


def _setting(setting: Setting, metric: RewardMetric | None, watched: Watched | None) -> dict[str, Any]:
    """A setting as plain data; ``watched`` are its measured trials where they are known."""
    spread = reward_spread(setting, metric, watched)
    told: dict[str, Any] = {
        "trial": setting.first,
        "action": dict(setting.action),
        "reward": setting.reward,
        "reward_spread": None if spread is None else spread.deviation,
        "reward_spread_over": None if spread is None else spread.over,
        "samples": len(setting.samples),
        "trials": None if watched is None else watched.count,
        "failed": setting.failed,
        "violation": setting.violation,
        "metrics": setting.metrics(),
        "spread": setting.spread(),
    }
    return told if setting.context is None else told | {"context": dict(setting.context)}


def _best(best: Setting, passed: Pass, metric: RewardMetric | None, times: Mapping[int, float]) -> dict[str, Any]:
    """The best setting, and how sure one can be of it.

    ``rivals`` is how many other settings did about as well, without those that exceed the limits by more, which
    ``exceeding`` counts. Both and ``standard_error`` are None where the environment varies, or where the reward
    has no spread: then there is nothing to compare with.
    """
    action = exact_key(best.action)
    watched = passed.watched[action, EVERYWHERE]
    told = _setting(best, metric, watched)
    told["found_s"] = times.get(best.first)
    told["settings_tried"] = len(passed.tried)
    told |= dict.fromkeys(("standard_error", "rivals", "exceeding"))
    spread = reward_spread(best, metric, watched)
    if spread is not None and len(passed.drawn) == 1:
        others = [one for key, one in passed.tried.items() if key != action]
        equal = [one for one in others if one.violation(passed.limits) <= best.violation + _SLACK]
        bar = best.reward - SURE * spread.standard_error
        told["standard_error"] = spread.standard_error
        told["rivals"] = sum(one.reward >= bar for one in equal)
        told["exceeding"] = len(others) - len(equal)
    return told


def _in_context(setting: Setting, best: Setting | None, passed: Pass, metric: RewardMetric | None) -> dict[str, Any]:
    """A context's own best, and how far the best single setting is below it there.

    ``gap`` is never below 0. The own best is the one that did better for sure, so a single setting measured
    less often may have the higher mean; ``gap_note`` then says that they are not distinguishable.
    """
    context = exact_key(setting.context or {})
    told = _setting(setting, metric, passed.watched[exact_key(setting.action), context])
    there = passed.watched[exact_key(best.action), context] if best is not None else Watched()
    drawn = passed.drawn[context]
    told |= {"drawn": drawn, "share": drawn / passed.drawn.total(), "single_reward": None, "gap": None}
    told["gap_note"] = None
    if there.count:
        single = math.fsum(there.rewards) / there.count
        told |= {"single_reward": single, "gap": max(0.0, setting.reward - single)}
        if there.violation(passed.limits) > setting.violation + _SLACK:
            told["gap_note"] = EXCEEDS
        elif single > setting.reward:
            told["gap_note"] = UNCLEAR
    return told


def _mean_gap(contexts: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """What the best single setting leaves on the table, contexts weighted by how often they came.

    Nothing is known of contexts that it was not measured in: ``mean_gap_over`` is the share of draws in the others.
    """
    known = [(one["share"], one["gap"]) for one in contexts if one["gap"] is not None]
    if not known:
        return {"mean_gap": None, "mean_gap_over": None}
    over = math.fsum(share for share, _ in known)
    return {"mean_gap": math.fsum(share * gap for share, gap in known) / over, "mean_gap_over": over}


def _reasons(reasons: Counter[tuple[str, str]]) -> list[dict[str, Any]]:
    told = [
        {"status": status, "reason": masked(reason), "count": count}
        for (status, reason), count in reasons.most_common(MOST_REASONS)
    ]
    rest = reasons.total() - sum(one["count"] for one in told)
    return [*told, {"status": "", "reason": "other reasons", "count": rest}] if rest else told


def hosts_of(sessions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Where and when it ran, and how wide."""
    return {
        "hosts": list(dict.fromkeys(str(session["host"]) for session in sessions if "host" in session)),
        "started_at": sessions[0]["at"] if sessions else None,
        "slots": sessions[-1].get("slots") if sessions else None,
    }
