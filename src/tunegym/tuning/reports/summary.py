"""One experiment's facts as plain data: what ``report.html`` shows and ``tunegym report --json`` prints."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunegym.tuning.model.trial import Trial
from tunegym.tuning.model.values import exact_key
from tunegym.tuning.reports.best import Setting
from tunegym.tuning.reports.importance import importance
from tunegym.tuning.reports.results import ExperimentResults
from tunegym.tuning.reports.timing import Cost, closing_times
from tunegym.tuning.stores.lock import living_writer

MOST_REASONS = 50
SURE = 2.0
"""How many standard errors below the best a rival's reward may lie to count as one."""

_EVERYWHERE = b""


def state_of(results: ExperimentResults) -> str:
    """``not started``, ``running``, ``finished`` or ``interrupted``."""
    if results.journal.head is None:
        return "not started"
    if living_writer(results.folder) is not None:
        return "running"
    return "finished" if results.journal.ended is not None else "interrupted"


def kind_of_reason(trial: Trial) -> str:
    """Why a trial was not measured, without what differs from trial to trial: a constraint's or a pruner's values."""
    if trial.status == "pruned":
        return "what it reported was hopeless"
    return trial.reason.rsplit(" (", 1)[0] if trial.status == "infeasible" else trial.reason


@dataclass
class _Pass:
    """What one pass over the trials adds up. ``watched`` are the (action, context) whose rewards are kept."""

    watched: dict[tuple[bytes, bytes], list[float]]
    statuses: Counter[str] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    drawn: Counter[bytes] = field(default_factory=Counter)
    means: dict[bytes, tuple[float, int]] = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)
    cached: int = 0

    def add(self, trial: Trial) -> None:
        self.statuses[trial.status] += 1
        self.cost.add(trial)
        context = exact_key(trial.context)
        self.drawn[context] += 1
        if not trial.measured:
            self.reasons[trial.status, kind_of_reason(trial)] += 1
        elif trial.cached_from is not None:
            self.cached += 1
        else:
            action = exact_key(trial.action)
            total, count = self.means.get(action, (0.0, 0))
            self.means[action] = total + trial.reward, count + 1
            for key in ((action, _EVERYWHERE), (action, context)):
                if key in self.watched:
                    self.watched[key].append(trial.reward)


@dataclass(frozen=True)
class Summary:
    """One experiment: ``facts`` as plain data, and when its trials closed."""

    facts: dict[str, Any]
    times: Mapping[int, float]


def summarise(results: ExperimentResults, shown: Sequence[Trial] = (), total: int | None = None) -> Summary:
    """The facts of one experiment. The trials are streamed.

    Args:
        results: the experiment.
        shown: a sample of its trials from which importance is estimated; all of them where that is possible.
        total: how many trials it has at most; None if that is open or not known.
    """
    journal = results.journal
    head = journal.head or {}
    best, per_context = results.best, results.best_per_context
    passed = _Pass({key: [] for key in _watched(best, per_context)})
    for trial in results:
        passed.add(trial)
    times = closing_times(results.path) if results.path.exists() else {}
    names = dict.fromkeys(head.get("knobs", {}), "knob") | dict.fromkeys(head.get("env_params", {}), "env_param")
    contexts = [_in_context(setting, best, passed) for setting in per_context]
    facts: dict[str, Any] = {
        "name": results.name,
        "state": state_of(results),
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
        "best": None if best is None else _best(best, passed, times),
        "per_context": contexts,
        "mean_gap": _mean_gap(contexts),
        "pareto": [_setting(setting, None) for setting in results.pareto],
        "importance": importance(shown, names),
        "time": {
            **passed.cost.as_dict(journal.elapsed_s),
            "sessions": len(journal.sessions),
            **_hosts(journal.sessions),
        },
    }
    return Summary(facts, times)


def _watched(best: Setting | None, per_context: Sequence[Setting]) -> list[tuple[bytes, bytes]]:
    """The best action everywhere and in each context, and each context's own best there."""
    if best is None:
        return []
    action = exact_key(best.action)
    keys = [(action, _EVERYWHERE)]
    for setting in per_context:
        context = exact_key(setting.context or {})
        keys += [(action, context), (exact_key(setting.action), context)]
    return keys


def _setting(setting: Setting, rewards: Sequence[float] | None) -> dict[str, Any]:
    """A setting as plain data; ``rewards`` of its measured trials where they are known."""
    told: dict[str, Any] = {
        "trial": setting.first,
        "action": dict(setting.action),
        "reward": setting.reward,
        "reward_spread": _reward_spread(setting, rewards or ()),
        "samples": len(setting.samples),
        "trials": None if rewards is None else len(rewards),
        "failed": setting.failed,
        "violation": setting.violation,
        "metrics": setting.metrics(),
        "spread": setting.spread(),
    }
    return told if setting.context is None else told | {"context": dict(setting.context)}


def _reward_spread(setting: Setting, rewards: Sequence[float]) -> float | None:
    """The reward's standard deviation: over samples where the reward is a metric, or its negative, else over trials."""
    means, spread = setting.metrics(), setting.spread()
    for name, deviation in spread.items():
        if math.isclose(abs(means[name]), abs(setting.reward), rel_tol=1e-9):
            return deviation
    if len(rewards) < 2:
        return None
    mean = math.fsum(rewards) / len(rewards)
    return math.hypot(*(reward - mean for reward in rewards)) / math.sqrt(len(rewards) - 1)


def _best(best: Setting, passed: _Pass, times: Mapping[int, float]) -> dict[str, Any]:
    """The best setting, and how sure one can be of it.

    ``standard_error`` and ``rivals`` (how many other settings did about as well) are None where the environment
    varies, or where it was measured only once: then there is nothing to compare with.
    """
    action = exact_key(best.action)
    told = _setting(best, passed.watched[action, _EVERYWHERE])
    told["found_s"] = times.get(best.first)
    spread, varies = told["reward_spread"], len(passed.drawn) > 1
    error = None if spread is None or varies else spread / math.sqrt(max(told["samples"], 1))
    told["standard_error"] = error
    told["settings_tried"] = len(passed.means)
    told["rivals"] = None
    if error is not None:
        bar = best.reward - SURE * error
        told["rivals"] = sum(total / count >= bar for key, (total, count) in passed.means.items() if key != action)
    return told


def _in_context(setting: Setting, best: Setting | None, passed: _Pass) -> dict[str, Any]:
    """A context's own best, and how far the best single setting is below it there."""
    context = exact_key(setting.context or {})
    told = _setting(setting, passed.watched[exact_key(setting.action), context])
    there = passed.watched[exact_key(best.action), context] if best is not None else []
    single = math.fsum(there) / len(there) if there else None
    gap = None if single is None else setting.reward - single
    drawn = passed.drawn[context]
    return told | {"drawn": drawn, "share": drawn / passed.drawn.total(), "single_reward": single, "gap": gap}


def _mean_gap(contexts: Sequence[Mapping[str, Any]]) -> float | None:
    """What the best single setting leaves on the table, contexts weighted by how often they came."""
    known = [(one["share"], one["gap"]) for one in contexts if one["gap"] is not None]
    if not known:
        return None
    return math.fsum(share * gap for share, gap in known) / math.fsum(share for share, _ in known)


def _reasons(reasons: Counter[tuple[str, str]]) -> list[dict[str, Any]]:
    told = [
        {"status": status, "reason": reason, "count": count}
        for (status, reason), count in reasons.most_common(MOST_REASONS)
    ]
    rest = reasons.total() - sum(one["count"] for one in told)
    return [*told, {"status": "", "reason": "other reasons", "count": rest}] if rest else told


def _hosts(sessions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Where and when it ran, and how wide."""
    return {
        "hosts": list(dict.fromkeys(str(session["host"]) for session in sessions if "host" in session)),
        "started_at": sessions[0]["at"] if sessions else None,
        "slots": sessions[-1].get("slots") if sessions else None,
    }
