"""The findings of an experiment of trials: facts for ``report.html`` and ``--json``, tables for the terminal."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tunegym.core.errors import StoreError
from tunegym.core.text import escaped
from tunegym.tuning.answers.certainty import SLACK, SURE, RewardMetric, reward_metric, reward_spread
from tunegym.tuning.answers.importance import importance
from tunegym.tuning.answers.ranking import Measurements, Setting
from tunegym.tuning.answers.recommendation import PolicyChoice, failed_runs
from tunegym.tuning.model.summary import Counts, Summary, Table
from tunegym.tuning.model.trial import Measured, Trial
from tunegym.tuning.model.values import counted, exact_key, labels, masked, number, pairs, seconds, spelled

if TYPE_CHECKING:
    from tunegym.tuning.reports.results import JournalResults, TrialResults

MOST_REASONS = 50
MOST_CHOICES = 100
"""How many of a policy's choices are shown."""
MOST_ROWS = 20
"""How many rows of a Pareto set are printed; the rest is in best.toml."""
CPU = "cpu_s"

UNCLEAR = "not distinguishable"
EXCEEDS = "exceeds a limit"
"""Notes on a gap: the single setting did no worse there, or only by exceeding a limit."""
EXCEEDED = "limits exceeded"
"""Beside a reward that comes with metrics outside the objectives' limits."""


def summarise(results: TrialResults, facts: dict[str, Any]) -> Summary:
    """The facts of one experiment, and what the end of a run prints."""
    lines = [] if results.best is not None else [f"{escaped(results.name)}: no trial was measured"]
    if results.best is not None and results.best.violation:
        lines.append("  no setting keeps the limits; these come closest")
    lines += reason_lines(facts["reasons"], "trajectory.csv")
    return Summary(results.name, facts, _best_table(results), tuple(lines))


def facts_of(results: TrialResults) -> dict[str, Any]:
    """Plain data, as ``tunegym report --json`` prints it."""
    journal, head, found = results.journal, results.head, results.measurements
    metric = reward_metric(head.get("metrics", []), results.objectives, results.declared)
    statuses = Counter(trial.status for trial in results)
    contexts = [_in_context(setting, results.best, found, metric) for setting in results.best_per_context]
    names = dict.fromkeys(head.get("knobs", {}), "knob") | dict.fromkeys(head.get("env_params", {}), "env_param")
    return {
        **common_facts(results, "trial", statuses, _reasons_of(results), _cost(results)),
        "repeats": head.get("repeats", 1),
        "objectives": [objective.as_dict() for objective in results.objectives],
        "trials": {
            "total": None,
            "done": statuses.total(),
            "open": len(journal.open),
            "cached": sum(trial.cached_from is not None for trial in results),
            "statuses": dict(statuses.most_common()),
        },
        "best": None if results.best is None else _best(results.best, found, metric, results.times),
        "per_context": contexts,
        **_mean_gap(contexts),
        "policy": _policy(results, metric),
        "pareto": [_setting(setting, found, metric) for setting in results.pareto],
        "importance": importance(list(results), names),
    }


# what both kinds say --------------------------------------------------------------------------------------


def common_facts(
    results: JournalResults,
    unit: str,
    statuses: Mapping[str, int],
    reasons: Counter[tuple[str, str]],
    time: Mapping[str, Any],
) -> dict[str, Any]:
    """The facts that a report has of every experiment.

    Args:
        results: the experiment.
        unit: ``trial`` or ``step``.
        statuses: how many of them there are of each status.
        reasons: why some were not measured, by status and reason.
        time: what the kind itself says about time.
    """
    head, sessions = results.head, results.journal.sessions
    return {
        "name": results.name,
        "live": unit == "step",
        "state": results.state,
        "problem": _problem(results, unit, statuses),
        "ended": results.ended,
        "agent": head.get("agent"),
        "seed": head.get("seed"),
        "metrics": head.get("metrics", []),
        "reasons": _most_common(reasons),
        "time": {
            "wall_s": results.journal.elapsed_s,
            **time,
            "sessions": len(sessions),
            "hosts": list(dict.fromkeys(str(session["host"]) for session in sessions if "host" in session)),
            "started_at": sessions[0]["at"] if sessions else None,
            "slots": sessions[-1].get("slots") if sessions else None,
        },
    }


def common_entry(results: JournalResults, done: int, measured: int, reward: str | None) -> dict[str, Any]:
    """The plain data that a comparison has of every experiment."""
    return {
        "experiment": results.name,
        "state": results.state,
        "agent": results.head.get("agent"),
        "trials": done,
        "measured": measured,
        "best": None,
        "total_s": results.journal.elapsed_s,
        "metrics": results.head.get("metrics", []),
        "objectives": [],
        "reward": results.declared.get("agent_reward_function", reward),
        "knobs": {},
        "env_params": results.head.get("env_params", {}),
        "spaces": None,
        "live": None,
    }


def common_counts(
    results: JournalResults, unit: str, total: int | None, statuses: Counter[str], done: int, **facts: Any
) -> tuple[dict[str, Any], dict[str, str]]:
    """The plain data of ``tunegym status --json``, and the first cells of its table."""
    shown = f"{done}/{total}" if total is not None else str(done)
    row = {"experiment": escaped(results.name), "state": results.state, "done" if unit == "trial" else "steps": shown}
    plain = {
        "name": results.name,
        "state": results.state,
        "total": total,
        "done": done,
        "open": len(results.journal.open),
        "statuses": dict(statuses),
        "cached": 0,
        "best": None,
        "elapsed_s": results.journal.elapsed_s,
        "ended": results.ended,
        "live": None,
    }
    return plain | facts, row


def _problem(results: JournalResults, unit: str, statuses: Mapping[str, int]) -> str | None:
    """The reason why it is no success; None if it is one, and while it may still become one."""
    ended = results.journal.ended
    if results.state not in ("finished", "interrupted"):
        return None
    if any(statuses.values()) and not statuses.get("measured", 0):
        return f"none of its {unit}s was measured"
    if ended is not None and not any(statuses.values()):
        return "it made no trial" if unit == "trial" else "it took no step"
    if ended is not None and ended["code"]:
        return f"it ended with code {ended['code']} ({ended['reason']})"
    return None


def _most_common(reasons: Counter[tuple[str, str]]) -> list[dict[str, Any]]:
    """Statuses and reasons with their counts, the most common first; the rest together."""
    shown = [
        {"status": status, "reason": masked(reason), "count": count}
        for (status, reason), count in reasons.most_common(MOST_REASONS)
    ]
    rest = reasons.total() - sum(one["count"] for one in shown)
    return [*shown, {"status": "", "reason": "other reasons", "count": rest}] if rest else shown


def reason_lines(reasons: list[dict[str, Any]], where: str) -> list[str]:
    """The three most common reasons, to be printed at the end of a run; ``where`` has the others."""
    lines = [f"  {one['count']} x {one['status']}: {escaped(one['reason'])}" for one in reasons[:3]]
    more = f"  and {len(reasons) - 3} more reasons: see {where} and journal.jsonl"
    return [*lines, more] if len(reasons) > 3 else lines


# settings -------------------------------------------------------------------------------------------------


def _setting(setting: Setting, found: Measurements, metric: RewardMetric | None) -> dict[str, Any]:
    context = None if setting.context is None else exact_key(setting.context)
    trials = found.measured(exact_key(setting.action), context)
    spread = reward_spread(setting, trials, metric, found.objectives)
    facts: dict[str, Any] = {
        "trial": setting.first,
        "action": dict(setting.action),
        "reward": setting.reward,
        "reward_spread": None if spread is None else spread.deviation,
        "reward_spread_over": None if spread is None else spread.over,
        "samples": len(setting.samples),
        "trials": len(trials),
        "failed": setting.failed,
        "violation": setting.violation,
        "metrics": setting.metrics(),
        "spread": setting.spread(),
    }
    return facts if setting.context is None else facts | {"context": dict(setting.context)}


def _best(
    best: Setting, found: Measurements, metric: RewardMetric | None, times: Mapping[int, float]
) -> dict[str, Any]:
    """The best setting, and how sure one can be of it.

    ``rivals`` is how many other settings did about as well, without those that exceed the limits by more, which
    ``exceeding`` counts. Both and ``standard_error`` are None where the environment varies, or where the reward has
    no spread: then there is nothing to compare with.
    """
    action = exact_key(best.action)
    facts = _setting(best, found, metric)
    facts["found_s"] = times.get(best.first)
    facts["settings_tried"] = len(found.actions)
    facts |= dict.fromkeys(("standard_error", "rivals", "exceeding"))
    spread = reward_spread(best, found.measured(action), metric, found.objectives)
    if spread is not None and len({context for cells in found.cells.values() for context in cells}) == 1:
        others = [key for key in found.actions if key != action]
        equal = [key for key in others if found.violation(key) <= best.violation + SLACK]
        bar = best.reward - SURE * spread.standard_error
        facts["standard_error"] = spread.standard_error
        facts["rivals"] = sum(found.reward.over_all(key).mean >= bar for key in equal)
        facts["exceeding"] = len(others) - len(equal)
    return facts


def _in_context(
    setting: Setting, best: Setting | None, found: Measurements, metric: RewardMetric | None
) -> dict[str, Any]:
    """A context's own best, and how far the best single setting is below it there.

    ``gap`` is never below 0. The own best is the one that did better for sure, so a single setting measured less
    often may have the higher mean; ``gap_note`` then says that they are not distinguishable.
    """
    facts = _setting(setting, found, metric)
    context = exact_key(setting.context or {})
    drawn = sum(cells[context].drawn for cells in found.cells.values() if context in cells)
    facts |= {"drawn": drawn, "share": found.usual.share(context), "single_reward": None, "gap": None}
    facts["gap_note"] = None
    single = None if best is None else found.setting(best.action, setting.context)
    if single is not None and single.samples:
        facts |= {"single_reward": single.reward, "gap": max(0.0, setting.reward - single.reward)}
        if single.violation > setting.violation + SLACK:
            facts["gap_note"] = EXCEEDS
        elif single.reward > setting.reward:
            facts["gap_note"] = UNCLEAR
    return facts


def _mean_gap(contexts: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """The mean loss of the best single setting, contexts weighted by how often they came.

    Nothing is known of contexts in which it was not measured: ``mean_gap_over`` is the share of draws in the others.
    """
    known = [(one["share"], one["gap"]) for one in contexts if one["gap"] is not None]
    if not known:
        return {"mean_gap": None, "mean_gap_over": None}
    over = math.fsum(share for share, _ in known)
    return {"mean_gap": math.fsum(share * gap for share, gap in known) / over, "mean_gap_over": over}


# the policy -----------------------------------------------------------------------------------------------


def _policy(results: TrialResults, metric: RewardMetric | None) -> dict[str, Any] | None:
    """The choices of a saved policy beside the measurements there; None where there is no policy.

    ``error`` says why a policy can't be shown. ``choices`` are those of the contexts drawn most often where there are
    more than ``MOST_CHOICES``, of ``of`` in all. Where the context has a value of a range, which hardly comes again,
    nothing is counted, and the numbers are None.
    """
    try:
        policy = results.policy_choices()
    except StoreError as error:
        return {"error": str(error), "trials": None, "of": 0, "choices": []}
    if policy is None or not policy.choices:
        return None
    found = results.measurements
    is_counted = all("values" in spec for spec in results.head.get("env_params", {}).values())
    drawn = Counter(exact_key(trial.context) for trial in results)
    shown = list(policy.choices)
    if len(shown) > MOST_CHOICES and is_counted:
        shown = sorted(shown, key=lambda one: -drawn[exact_key(one.context)])[:MOST_CHOICES]
    shown = shown[:: max(1, -(-len(shown) // MOST_CHOICES))]
    bests = {exact_key(one.context or {}): one for one in results.best_per_context}
    if results.best is not None:
        bests.setdefault(exact_key({}), results.best)

    def choice(one: PolicyChoice) -> dict[str, Any]:
        facts: dict[str, Any] = {"context": dict(one.context), "action": dict(one.action), "chance": one.chance}
        if not is_counted:
            return facts | dict.fromkeys(("drawn", "samples", "failed", "reward", "reward_spread", "best"))
        setting = found.setting(one.action, one.context)
        context = exact_key(one.context)
        trials = found.measured(exact_key(one.action), context)
        spread = reward_spread(setting, trials, metric, found.objectives) if trials else None
        best = bests.get(context)
        return facts | {
            "drawn": drawn[context],
            "samples": len(setting.samples),
            "failed": failed_runs(found, one.action, one.context),
            "reward": setting.reward if setting.samples else None,
            "reward_spread": None if spread is None else spread.deviation,
            "best": None
            if best is None
            else {
                "action": dict(best.action),
                "reward": best.reward,
                "samples": len(best.samples),
                "chosen": exact_key(best.action) == exact_key(one.action),
            },
        }

    return {
        "error": None,
        "trials": policy.trials,
        "of": len(policy.choices),
        "choices": [choice(one) for one in shown],
    }


# reasons and time ----------------------------------------------------------------------------------------


def _reasons_of(results: TrialResults) -> Counter[tuple[str, str]]:
    """Why trials were not measured, without what differs from trial to trial: a constraint's or a pruner's values."""
    reasons: Counter[tuple[str, str]] = Counter()
    for trial in results:
        if trial.status == "pruned":
            reasons["pruned", "what it reported was hopeless"] += 1
        elif not trial.measured:
            reason = trial.reason.rsplit(" (", 1)[0] if trial.status == "infeasible" else trial.reason
            reasons[trial.status, reason] += 1
    return reasons


def _cost(trials: Iterable[Trial]) -> dict[str, Any]:
    """Time and cost.

    ``trials_s`` is the sum over trials (more than ``wall_s`` where they run in parallel), ``not_measured_s`` the part
    spent on trials without a measurement, ``saved_s`` what the cached ones would have taken, and ``cpu_s`` the CPU
    time of the measurements, None where no workload tells it.
    """
    by_status: defaultdict[str, float] = defaultdict(float)
    own: dict[int, float] = {}
    served: list[tuple[int, float]] = []
    cpu: list[float] = []
    for trial in trials:
        by_status[trial.status] += trial.duration_s
        if isinstance(trial.outcome, Measured) and trial.cached_from is None:
            own[trial.number] = trial.duration_s
            cpu += [sample[CPU] for sample in trial.outcome.samples if CPU in sample]
        elif trial.cached_from is not None:
            served.append((trial.cached_from, trial.duration_s))
    return {
        "trials_s": sum(by_status.values()),
        "by_status_s": dict(by_status),
        "not_measured_s": sum(total for status, total in by_status.items() if status != Measured.status),
        "saved_s": sum(max(0.0, own.get(source, took) - took) for source, took in served),
        "cpu_s": sum(cpu) if cpu else None,
    }


# the terminal ---------------------------------------------------------------------------------------------


def counts_of(results: TrialResults, total: int | None) -> Counts:
    """How far the experiment is, for ``tunegym status``."""
    statuses = Counter(trial.status for trial in results)
    done, cached = statuses.total(), sum(trial.cached_from is not None for trial in results)
    best = max((trial for trial in results if trial.measured), key=lambda trial: trial.reward, default=None)
    found = None
    if best is not None:
        found = {"step": best.number, "reward": best.reward, "action": best.action, "context": best.context}
    facts, row = common_counts(results, "trial", total, statuses, done, cached=cached, best=found)
    row |= {
        "open": str(len(results.journal.open)),
        "measured": str(statuses["measured"]),
        "failed": str(statuses["failed"] + statuses["timed_out"]),
        "infeasible": str(statuses["infeasible"]),
        **({"pruned": str(statuses["pruned"])} if statuses["pruned"] else {}),
        "cached": str(cached),
        "best": "" if best is None else reached(best),
    }
    return Counts(results.name, "trial", results.state, total, done, facts, row)


def reached(trial: Trial) -> str:
    """``12.5 (threads=4)``, and where the environment varies ``12.5 (threads=4 at load=0.1)``."""
    context = f" at {pairs(trial.context)}" if trial.context else ""
    return f"{number(trial.reward)} ({pairs(trial.action)}{context})"


def _best_table(results: TrialResults) -> Table | None:
    """The best settings over all and in each context, or the Pareto set; None if nothing was measured."""
    best, pareto, contexts = results.best, results.pareto, results.best_per_context
    if best is None:
        return None
    title = f"{escaped(results.name)}: best settings"
    if pareto:
        more = f", {MOST_ROWS} of them" if len(pareto) > MOST_ROWS else ""
        title = (
            f"{escaped(results.name)}: Pareto set of {counted(len(pareto), 'setting')}{more}; the highest reward first"
        )
    shown = sorted(pareto, key=lambda setting: -setting.reward)[:MOST_ROWS] if pareto else [best]
    metrics = results.head.get("metrics", [])
    rows: list[tuple[str, ...]] = []
    for setting in [*shown, *contexts]:
        label = "over all" if setting.context is None else pairs(setting.context)
        rows.append((*([label] if contexts else []), *_cells(setting, list(best.action), metrics)))
    knobs = tuple(escaped(knob) for knob in best.action)
    columns = (*knobs, "reward", *(escaped(metric) for metric in metrics), "samples", "trial")
    return Table(title, (*(["context"] if contexts else []), *columns), tuple(rows), ("context", *knobs))


def _cells(setting: Setting, knobs: Sequence[str], metrics: Sequence[str]) -> list[str]:
    mean, spread = setting.metrics(), setting.spread()
    cells = [spelled(setting.action[knob]) for knob in knobs]
    cells.append(number(setting.reward))
    for metric in metrics:
        if metric not in mean:
            cells.append("")
        elif spread.get(metric, 0.0) > SLACK * abs(mean[metric]):
            cells.append(f"{number(mean[metric])} ±{spread[metric]:.2g}")
        else:
            cells.append(number(mean[metric]))
    return [*cells, str(len(setting.samples)), str(setting.first)]


# among other runs -----------------------------------------------------------------------------------------


def compared(results: TrialResults, facts: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The experiment among others: plain data, and the cells of a table by column."""
    best, total_s = facts["best"], facts["time"]["wall_s"]
    if best is not None:
        shown = {name: labels([value])[0] for name, value in best["action"].items()}
        best = {**best, "note": EXCEEDED if best["violation"] else None, "labels": shown}
    trials = facts["trials"]
    entry = common_entry(results, trials["done"], trials["statuses"].get("measured", 0), "identity")
    entry |= {"best": best, "objectives": facts["objectives"], "knobs": results.head.get("knobs", {})}
    entry["curve"] = _curve(results)
    cells = {"trials": str(entry["trials"]), "measured": str(entry["measured"])}
    cells |= {"best": "none", "samples": "0", "settings": "", "to best": ""}
    if best is not None:
        spread = "" if best["reward_spread"] is None else f" ±{best['reward_spread']:.2g}"
        note = "" if best["note"] is None else f"\n{best['note']}"
        cells["best"] = f"{number(best['reward'])}{spread}{note}"
        cells["samples"] = str(best["samples"])
        # The table is for comparing, best.toml for using.
        rounded = {name: float(f"{one:.5g}") if isinstance(one, float) else one for name, one in best["action"].items()}
        cells["settings"] = "\n".join(pairs({name: one}) for name, one in rounded.items())
        cells["to best"] = "" if best["found_s"] is None else seconds(best["found_s"])
    return entry, {**cells, "total": seconds(total_s)}


def _curve(results: TrialResults) -> dict[str, Any]:
    """The points where the best so far rises, by trial and by time, and where each curve ends."""
    times = results.times
    rewards = {trial.number: trial.reward for trial in results if trial.measured}
    timed = sorted((times[number], reward) for number, reward in rewards.items())
    return {
        "trials": _rises(sorted(rewards.items())),
        "seconds": _rises(timed),
        "last_trial": max(times, default=0),
        "last_s": max(times.values(), default=0.0),
    }


def _rises(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for at, reward in points:
        if not found or reward > found[-1][1]:
            found.append((at, reward))
    return found
