"""The results of an experiment of trials: its trials, its best settings, and the facts that a report shows of them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from tunegym.core.errors import ActionError, StoreError
from tunegym.core.files import dump_toml, write_atomic
from tunegym.core.text import escaped
from tunegym.tuning.agents import policies
from tunegym.tuning.answers.certainty import SLACK, SURE, RewardMetric, reward_metric, reward_spread
from tunegym.tuning.answers.contexts import domain, domains_of
from tunegym.tuning.answers.importance import importance
from tunegym.tuning.answers.ranking import Best, Measurements, Setting, best_among, samples_of
from tunegym.tuning.answers.recommendation import PolicyChoice, PolicyTable, Recommendation, Recommender
from tunegym.tuning.model.scenario import Objective
from tunegym.tuning.model.space import Space, nested
from tunegym.tuning.model.summary import Table
from tunegym.tuning.model.trial import FAILURES, Measured, Trial
from tunegym.tuning.model.values import bare, counted, exact_key, number, pairs, plus_minus, seconds, spelled, with_goal
from tunegym.tuning.reports.charts import charts_of
from tunegym.tuning.reports.results import Results, need_pandas
from tunegym.tuning.stores import reader

if TYPE_CHECKING:
    import pandas as pd

BEST = "best.toml"
CPU = "cpu_s"
MOST_CHOICES = 100
"""How many of a policy's choices are shown."""
MOST_ROWS = 20
"""How many rows of a Pareto set are printed; the rest is in best.toml."""

UNCLEAR = "not distinguishable"
EXCEEDS = "exceeds a limit"
"""Notes on a gap: the single setting did no worse there, or only by exceeding a limit."""
REWARD = "reward (max)"
"""A column of rewards: more is always better."""
EXCEEDED = "limits exceeded"
"""Beside a reward that comes with metrics outside the objectives' limits."""


@dataclass(frozen=True)
class TrialResults(Results):
    """One experiment's trials. Iterate over them in the order of closing."""

    unit: ClassVar[str] = "trial"

    def _take(self, journal: reader.Reader) -> tuple[reader.ClosedTrial, ...]:
        return tuple(one for one in journal.read(last=True) if isinstance(one, reader.ClosedTrial))

    @cached_property
    def times(self) -> Mapping[int, float]:
        """Seconds from the experiment's start to each trial's close; time between sessions doesn't count."""
        return {one.trial.number: one.elapsed_s for one in self._read[1]}

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """Every closed trial by number."""
        return tuple(sorted(self, key=lambda trial: trial.number))

    def __iter__(self) -> Iterator[Trial]:
        """Every closed trial in the order of closing."""
        return (one.trial for one in self._read[1])

    @property
    def statuses(self) -> Counter[str]:
        """Trials by status."""
        return Counter(trial.status for trial in self)

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """Which way each metric is better; empty where the reward alone says so."""
        return tuple(Objective(**document) for document in self.head.get("objectives", ()))

    @property
    def goals(self) -> Mapping[str, str]:
        """``min`` or ``max`` by metric, where a direction is known; empty in journals that record none."""
        return self.head.get("goals", {})

    @cached_property
    def measurements(self) -> Measurements:
        """The trials by action and context."""
        return Measurements(self, self.objectives)

    @cached_property
    def _best(self) -> Best:
        return best_among(self.measurements)

    @property
    def best(self) -> Setting | None:
        """The best setting over all, as in ``best.toml``; None if nothing was measured."""
        return self._best.overall

    @property
    def best_per_context(self) -> tuple[Setting, ...]:
        """The best setting in each context, where there are several and not too many."""
        return self._best.per_context

    @property
    def pareto(self) -> tuple[Setting, ...]:
        """With several objectives the settings of which none is better than another in every respect; else empty."""
        return self._best.pareto

    def write_best(self, fixed: Mapping[str, Any]) -> None:
        """Write ``best.toml``: the settings with the fixed parameters beside them, ready to use."""
        document = self._best.as_dict()
        for setting in [*([document["best"]] if "best" in document else []), *document.get("pareto", [])]:
            if fixed:
                setting["fixed"] = nested(fixed)
        write_atomic(self.folder / BEST, dump_toml(document))

    def policy_choices(self) -> PolicyTable | None:
        """The choices of the agent's saved policy in each context; None if there is no policy.

        Raises:
            StoreError: it can't be read, or belongs to other knobs or env_params.
        """
        table = policies.load(self.folder)
        if table is None or not self.head:
            return None
        knobs = Space({name: domain(spec) for name, spec in self.head["knobs"].items()})
        drawn = Space(domains_of(self.head))
        choices = []
        for one in table.choices:
            try:
                choices.append(replace(one, action=knobs.accept(one.action), context=drawn.accept(one.context)))
            except ActionError as error:
                place = self.folder / policies.FOLDER / policies.FILE
                told = f"{pairs(one.action)} at {pairs(one.context) or '{}'}"
                what = f"{place} doesn't belong to this journal: it has {told}"
                raise StoreError(what, hint="resume the run, and it is written again") from error
        return replace(table, choices=tuple(choices))

    def recommend(self, context: Mapping[str, Any]) -> Recommendation:
        """The settings to use; see ``tunegym.recommend``."""
        policy: PolicyTable | str | None
        try:
            policy = self.policy_choices()
        except StoreError as error:
            policy = error.message + (f" ({error.hint})" if error.hint else "")
        return Recommender(self.name, tuple(self), self.head, self.declared, policy).recommend(context)

    def charts(self, fixed: Mapping[str, Any], share: float = 1.0) -> dict[str, Any]:
        """Plain data that ``report.html`` plots: ``fixed`` completes commands, ``share`` is its part of a page."""
        return charts_of(self, fixed, share)

    def to_pandas(self) -> pd.DataFrame:
        """One row per trial: the columns of ``trajectory.csv``, then every other metric, the spreads and the reason."""
        need_pandas()
        import pandas as pd

        rows = [_row(trial) for trial in self.trials]
        named = {"action": "knobs", "context": "env_params", "observation": "metrics"}
        declared = [f"{kind}.{name}" for kind, key in named.items() for name in self.head.get(key, ())]
        found = (name for cells in rows for name in cells)
        columns = dict.fromkeys(["step", "status", "cached", "reward", *declared, "duration_s", *found])
        return pd.DataFrame(rows, columns=list(columns))

    # counts -------------------------------------------------------------------------------------------

    @cached_property
    def _cached(self) -> int:
        return sum(trial.cached_from is not None for trial in self)

    def _counts(self) -> tuple[dict[str, Any], dict[str, str], tuple[str, ...]]:
        statuses = self.statuses
        best = max((trial for trial in self if trial.measured), key=lambda trial: trial.reward, default=None)
        found = None
        if best is not None:
            found = {"step": best.number, "reward": best.reward, "action": best.action, "context": best.context}
        metric = reward_metric(self.head.get("metrics", []), self.objectives, self.declared)
        cells = {
            "open": number(len(self.journal.open)),
            "measured": number(statuses["measured"]),
            "failed": number(statuses["failed"] + statuses["timed_out"]),
            "infeasible": number(statuses["infeasible"]),
            **({"pruned": number(statuses["pruned"])} if statuses["pruned"] else {}),
            "cached": number(self._cached),
            "best": "" if best is None else reached(best, metric, self.goals),
        }
        failures = (trial.reason for trial in reversed(self.trials) if trial.status in FAILURES)
        facts = {"cached": self._cached, "best": found, "goals": self.goals, "latest_failure": next(failures, None)}
        return facts, cells, ()

    # the summary --------------------------------------------------------------------------------------

    def _reasons(self) -> Counter[tuple[str, str]]:
        """Without what differs from trial to trial: a constraint's or a pruner's values."""
        reasons: Counter[tuple[str, str]] = Counter()
        for trial in self:
            if trial.status == "pruned":
                reasons["pruned", "what it reported was hopeless"] += 1
            elif not trial.measured:
                reason = trial.reason.rsplit(" (", 1)[0] if trial.status == "infeasible" else trial.reason
                reasons[trial.status, reason] += 1
        return reasons

    def _time(self) -> dict[str, Any]:
        """Time and cost.

        ``trials_s`` is the sum over trials (more than ``wall_s`` where they run in parallel), ``not_measured_s`` the
        part spent on trials without a measurement, ``saved_s`` what the cached ones would have taken, and ``cpu_s``
        the CPU time of the measurements, None where no workload tells it.
        """
        by_status: defaultdict[str, float] = defaultdict(float)
        for trial in self:
            by_status[trial.status] += trial.duration_s
        own = {trial.number: trial.duration_s for trial in self if trial.measured and trial.cached_from is None}
        cpu = [one[CPU] for trial in self if trial.number in own for one in samples_of(trial) if CPU in one]
        cached = [(trial.cached_from, trial.duration_s) for trial in self if trial.cached_from is not None]
        return {
            "trials_s": sum(by_status.values()),
            "by_status_s": dict(by_status),
            "not_measured_s": sum(total for status, total in by_status.items() if status != Measured.status),
            "saved_s": sum(max(0.0, own.get(source, took) - took) for source, took in cached),
            "cpu_s": sum(cpu) if cpu else None,
        }

    def _findings(self) -> tuple[Counter[tuple[str, str]], dict[str, Any], dict[str, Any]]:
        head, facts = self.head, SettingFacts(self)
        contexts = [facts.in_context(setting) for setting in self.best_per_context]
        names = dict.fromkeys(head.get("knobs", {}), "knob") | dict.fromkeys(head.get("env_params", {}), "env_param")
        findings = {
            "repeats": head.get("repeats", 1),
            "objectives": [objective.as_dict() for objective in self.objectives],
            "goals": self.goals,
            "trials": {
                "done": self._done,
                "open": len(self.journal.open),
                "cached": self._cached,
                "statuses": dict(self.statuses.most_common()),
            },
            "best": None if self.best is None else facts.best(self.best),
            "per_context": contexts,
            **_mean_gap(contexts),
            "policy": facts.policy(),
            "pareto": [facts.of(setting) for setting in self.pareto],
            "importance": importance(list(self), names),
        }
        return self._reasons(), self._time(), findings

    def _printed(self) -> tuple[Table | None, list[str], str]:
        lines = [] if self.best is not None else [f"{escaped(self.name)}: no trial was measured"]
        if self.best is not None and self.best.violation:
            lines.append("  no setting keeps the limits; these come closest")
        return self._best_table(), lines, "trajectory.csv"

    def _best_table(self) -> Table | None:
        """The best settings over all and in each context, or the Pareto set; None if nothing was measured."""
        best, pareto, contexts = self.best, self.pareto, self.best_per_context
        if best is None:
            return None
        title = f"{escaped(self.name)}: best settings"
        if pareto:
            more = f", {MOST_ROWS} of them" if len(pareto) > MOST_ROWS else ""
            many = counted(len(pareto), "setting")
            title = f"{escaped(self.name)}: Pareto set of {many}{more}; the highest reward first"
        shown = sorted(pareto, key=lambda setting: -setting.reward)[:MOST_ROWS] if pareto else [best]
        metrics = self.head.get("metrics", [])
        rows: list[tuple[str, ...]] = []
        for setting in [*shown, *contexts]:
            label = "over all" if setting.context is None else pairs(setting.context)
            rows.append((*([label] if contexts else []), *_cells(setting, list(best.action), metrics)))
        knobs = tuple(escaped(knob) for knob in best.action)
        columns = (*knobs, REWARD, *(with_goal(metric, self.goals) for metric in metrics), "samples", "trial")
        return Table(title, (*(["context"] if contexts else []), *columns), tuple(rows), ("context", *knobs))

    # among other runs ---------------------------------------------------------------------------------

    def _entry(self) -> tuple[dict[str, Any], dict[str, str]]:
        best = self.facts["best"]
        cells = {"trials": number(self._done), "measured": number(self.statuses["measured"])}
        cells |= {f"best {REWARD}": "none", "samples": "0", "settings": "", "to best": ""}
        if best is not None:
            shown = {name: bare(value) for name, value in best["action"].items()}
            best = {**best, "note": EXCEEDED if best["violation"] else None, "labels": shown}
            note = "" if best["note"] is None else f"\n{best['note']}"
            cells[f"best {REWARD}"] = plus_minus(best["reward"], best["reward_spread"]) + note
            cells["samples"] = number(best["samples"])
            # The table is for comparing, best.toml for using.
            settings = {name: float(f"{v:.5g}") if isinstance(v, float) else v for name, v in best["action"].items()}
            cells["settings"] = "\n".join(pairs({name: one}) for name, one in settings.items())
            cells["to best"] = "" if best["found_s"] is None else seconds(best["found_s"])
        cells["total"] = seconds(self.journal.elapsed_s)
        entry = {
            "best": best,
            "objectives": self.facts["objectives"],
            "goals": self.goals,
            "reward": self.declared.get("agent_reward_function", "the goal"),
            "knobs": self.head.get("knobs", {}),
            "curve": self._curve(),
        }
        return entry, cells

    def _curve(self) -> dict[str, Any]:
        """The points where the best so far rises, by trial and by time, and where each curve ends."""
        rewards = {trial.number: trial.reward for trial in self if trial.measured}
        return {
            "trials": _rises(sorted(rewards.items())),
            "seconds": _rises(sorted((self.times[number], reward) for number, reward in rewards.items())),
            "last_trial": max(self.times, default=0),
            "last_s": max(self.times.values(), default=0.0),
        }


def _row(trial: Trial) -> dict[str, Any]:
    """A trial as flat, named cells."""
    cells: dict[str, Any] = {
        "step": trial.number,
        "status": trial.status,
        "cached": trial.cached_from is not None,
        "reward": trial.reward,
    }
    cells |= {f"action.{name}": value for name, value in trial.action.items()}
    cells |= {f"context.{name}": value for name, value in trial.context.items()}
    if isinstance(trial.outcome, Measured):
        cells |= {f"observation.{name}": value for name, value in trial.metrics.items()}
        if len(trial.outcome.samples) > 1:
            cells |= {f"spread.{name}": value for name, value in trial.outcome.spread().items()}
    nodes = {"nodes": " ".join(trial.nodes)} if trial.nodes else {}
    return cells | {"duration_s": trial.duration_s, **nodes, "reason": trial.reason}


def reached(trial: Trial, metric: RewardMetric | None, goals: Mapping[str, str]) -> str:
    """``seconds (min) 12.5 (threads=4 at load=0.1)``; the reward where that is no metric."""
    context = f" at {pairs(trial.context)}" if trial.context else ""
    what, value = REWARD, trial.reward
    if metric is not None and metric.name in goals and not metric.limited:
        what, value = with_goal(metric.name, goals), trial.metrics[metric.name]
    return f"{what} {number(value)} ({pairs(trial.action)}{context})"


def _cells(setting: Setting, knobs: Sequence[str], metrics: Sequence[str]) -> list[str]:
    mean, spread = setting.metrics(), setting.spread()
    cells = [*(spelled(setting.action[knob]) for knob in knobs), number(setting.reward)]
    cells += [plus_minus(mean[metric], spread.get(metric)) if metric in mean else "" for metric in metrics]
    return [*cells, number(len(setting.samples)), str(setting.first)]


def _rises(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for at, reward in points:
        if not found or reward > found[-1][1]:
            found.append((at, reward))
    return found


def _mean_gap(contexts: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """The mean loss of the best single setting, contexts weighted by how often they came.

    Nothing is known of contexts in which it was not measured: ``mean_gap_over`` is the share of draws in the others.
    """
    known = [(one["share"], one["gap"]) for one in contexts if one["gap"] is not None]
    if not known:
        return {"mean_gap": None, "mean_gap_over": None}
    over = math.fsum(share for share, _ in known)
    return {"mean_gap": math.fsum(share * gap for share, gap in known) / over, "mean_gap_over": over}


class SettingFacts:
    """Plain data about settings: how good each is, and how sure one can be of it."""

    def __init__(self, results: TrialResults) -> None:
        self._results = results
        self._found = results.measurements
        self._metric = reward_metric(results.head.get("metrics", []), results.objectives, results.declared)

    def of(self, setting: Setting) -> dict[str, Any]:
        """The facts of any setting."""
        spread = reward_spread(setting, self._metric, self._found.objectives)
        facts: dict[str, Any] = {
            "trial": setting.first,
            "action": dict(setting.action),
            "reward": setting.reward,
            "reward_spread": None if spread is None else spread.deviation,
            "reward_spread_over": None if spread is None else spread.over,
            "samples": len(setting.samples),
            "trials": len(setting.trials),
            "failed": setting.failed,
            "violation": setting.violation,
            "metrics": setting.metrics(),
            "spread": setting.spread(),
        }
        return facts if setting.context is None else facts | {"context": dict(setting.context)}

    def best(self, best: Setting) -> dict[str, Any]:
        """The best setting, and how sure one can be of it.

        ``rivals`` is how many other settings did about as well, without those that exceed the limits by more, which
        ``exceeding`` counts. Both and ``standard_error`` are None where the environment varies, or where the reward
        has no spread: then there is nothing to compare with.
        """
        found, action = self._found, exact_key(best.action)
        facts = self.of(best) | {"found_s": self._results.times.get(best.first), "settings_tried": len(found.actions)}
        facts |= dict.fromkeys(("standard_error", "rivals", "exceeding"))
        spread = reward_spread(best, self._metric, found.objectives)
        if spread is not None and len(found.contexts) == 1:
            others = [key for key in found.actions if key != action]
            equal = [key for key in others if found.violation(key) <= best.violation + SLACK]
            bar = best.reward - SURE * spread.standard_error
            facts["standard_error"] = spread.standard_error
            facts["rivals"] = sum(found.reward.over_all(key).mean >= bar for key in equal)
            facts["exceeding"] = len(others) - len(equal)
        return facts

    def in_context(self, setting: Setting) -> dict[str, Any]:
        """A context's own best, and how far the best single setting is below it there.

        ``gap`` is never below 0. The own best is the one that did better for sure, so a single setting measured less
        often may have the higher mean; ``gap_note`` then says that they are not distinguishable.
        """
        facts, found = self.of(setting), self._found
        context = exact_key(setting.context or {})
        drawn = sum(len(cells.get(context, ())) for cells in found.cells.values())
        facts |= {"drawn": drawn, "share": found.reward.share(context)}
        facts |= dict.fromkeys(("single_reward", "gap", "gap_note"))
        best = self._results.best
        single = None if best is None else found.setting(best.action, setting.context)
        if single is not None and single.samples:
            facts |= {"single_reward": single.reward, "gap": max(0.0, setting.reward - single.reward)}
            if single.violation > setting.violation + SLACK:
                facts["gap_note"] = EXCEEDS
            elif single.reward > setting.reward:
                facts["gap_note"] = UNCLEAR
        return facts

    def policy(self) -> dict[str, Any] | None:
        """The choices of a saved policy beside the measurements there; None where there is no policy.

        ``error`` says why a policy can't be shown. ``choices`` are those of the contexts drawn most often where there
        are more than ``MOST_CHOICES``, of ``of`` in all. Where the context has a value of a range, which hardly comes
        again, nothing is counted, and the numbers are None.
        """
        results = self._results
        try:
            policy = results.policy_choices()
        except StoreError as error:
            return {"error": str(error), "trials": None, "of": 0, "choices": []}
        if policy is None or not policy.choices:
            return None
        is_counted = all("values" in spec for spec in results.head.get("env_params", {}).values())
        drawn = Counter(exact_key(trial.context) for trial in results)
        shown = list(policy.choices)
        if len(shown) > MOST_CHOICES and is_counted:
            shown = sorted(shown, key=lambda one: -drawn[exact_key(one.context)])[:MOST_CHOICES]
        shown = shown[:: max(1, -(-len(shown) // MOST_CHOICES))]
        bests = {exact_key(one.context or {}): one for one in (*results.best_per_context, results.best) if one}
        choices = []
        for one in shown:
            context = exact_key(one.context)
            found: dict[str, Any] = dict.fromkeys(_COUNTED)
            if is_counted:
                found = self._choice(one, drawn[context], bests.get(context))
            choices.append({"context": dict(one.context), "action": dict(one.action), "chance": one.chance, **found})
        return {"error": None, "trials": policy.trials, "of": len(policy.choices), "choices": choices}

    def _choice(self, one: PolicyChoice, drawn: int, best: Setting | None) -> dict[str, Any]:
        """The measurements of a policy's choice, beside the best in its context."""
        setting = self._found.setting(one.action, one.context)
        spread = reward_spread(setting, self._metric, self._found.objectives) if setting.trials else None
        reward = setting.reward if setting.samples else None
        failed = setting.failed - setting.cancelled
        values = (drawn, len(setting.samples), failed, reward, None if spread is None else spread.deviation)
        beside = None
        if best is not None:
            beside = {
                "action": dict(best.action),
                "reward": best.reward,
                "samples": len(best.samples),
                "chosen": exact_key(best.action) == exact_key(one.action),
            }
        return dict(zip(_COUNTED, (*values, beside), strict=True))


_COUNTED = ("drawn", "samples", "failed", "reward", "reward_spread", "best")
