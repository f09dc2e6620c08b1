"""The results of an experiment of trials: its trials, its best settings, and the facts that a report shows of them."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from tunegym.core.errors import ActionError, StoreError
from tunegym.core.files import dump_toml, write_atomic
from tunegym.core.text import escaped
from tunegym.tuning.agents import policies
from tunegym.tuning.answers.answer import Answer, Evidence, Verdict, answer, evidence_of
from tunegym.tuning.answers.contexts import OverContexts, domains_of, trials_at
from tunegym.tuning.answers.importance import importance
from tunegym.tuning.answers.ranking import Measurements, pareto, samples_of, winner
from tunegym.tuning.answers.recommendation import PolicyChoice, PolicyTable, Recommendation, recommend
from tunegym.tuning.model.scenario import Experiment, Objective
from tunegym.tuning.model.space import Space, nested
from tunegym.tuning.model.summary import Table, table_of
from tunegym.tuning.model.trial import FAILURES, Measured, Trial
from tunegym.tuning.model.values import bare, counted, exact_key, number, pairs, rounded, seconds, spelled, with_goal
from tunegym.tuning.reports.charts import charts_of
from tunegym.tuning.reports.results import Results, need_pandas
from tunegym.tuning.reports.verdicts import BETTER, REWARD, better, cells, facts_of, interval_text, toml_of
from tunegym.tuning.stores import reader

if TYPE_CHECKING:
    import pandas as pd

BEST = "best.toml"
CPU = "cpu_s"
MOST_NEAR = 200
"""How many trials say what is typical of a context where it is drawn from a range."""
MOST_CHOICES = 100
"""How many of a policy's choices are shown."""
MOST_ROWS = 20
"""How many rows of a Pareto set are printed; the rest is in best.toml."""

_COUNTED = ("drawn", "samples", "failed", "reward", "best")


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
        return self.head.objectives

    @property
    def goals(self) -> Mapping[str, str]:
        """``min`` or ``max`` by metric, where a direction is known."""
        return self.head.goals

    @cached_property
    def measurements(self) -> Measurements:
        """The trials by action and context, without those that confirm what the others say."""
        return Measurements(self, self.objectives, OverContexts.of(self.head))

    @cached_property
    def answer(self) -> Answer:
        """What to use, how much better that is than the baseline, and what this rests on."""
        policy = self._policy if isinstance(self._policy, PolicyTable) else None
        found = answer(tuple(self), self.head, policy)
        told = [self._told(one) for one in (found.overall, *found.per_context)]
        return replace(found, overall=told[0], per_context=tuple(told[1:]))

    def _told(self, verdict: Verdict) -> Verdict:
        """A verdict as users see it: "so far" before the end."""
        if verdict.chosen is not None and self.state in ("running", "interrupted"):
            what = "search" if self.journal.after_search is None else "confirmation"
            return replace(verdict, sentence=f"{what} not finished, so far: {verdict.sentence}")
        return verdict

    @property
    def best(self) -> Evidence | None:
        """The evidence of the best setting over all, as in ``best.toml``; None if nothing can be said."""
        return self.answer.overall.chosen

    @property
    def best_per_context(self) -> tuple[Evidence, ...]:
        """The best setting in each context, where there are several and not too many."""
        return tuple(one.chosen for one in self.answer.per_context if one.chosen is not None)

    @cached_property
    def pareto(self) -> tuple[Evidence, ...]:
        """With several objectives the settings of which none is better than another in every respect; else empty."""
        found, valued = self.measurements, len(self.answer.per_context) < 2
        return tuple(evidence_of(found, action, valued=valued) for action in pareto(found))

    @property
    def _plain_job(self) -> Evidence | None:
        """The measurement of an experiment without knobs, which is no answer to anything."""
        job = None if self.best or self.head.agent is not None else winner(self.measurements)
        return None if job is None else evidence_of(self.measurements, job)

    @cached_property
    def _front(self) -> list[tuple[Evidence, bool]]:
        """The Pareto set, and whether each was confirmed: finalists, then the rest, as the search measured it."""
        found, rest = self.answer, {exact_key(one.action): one for one in self.pareto}
        known = [one for one in found.overall.finalists if rest.pop(exact_key(one.action), None)]
        ranked = sorted(rest, key=self.measurements.mean, reverse=True)
        return [(one, found.overall.confirmed) for one in known] + [(rest[one], False) for one in ranked]

    @property
    def judged(self) -> str | None:
        """The metric that settings are judged by; None where that is the reward."""
        return self.head.judged.metric

    def write_best(self, fixed: Mapping[str, Any]) -> None:
        """Write ``best.toml``: the settings with the fixed parameters beside them, ready to use."""
        found, more = self.answer, {"fixed": nested(fixed)} if fixed else {}
        document: dict[str, Any] = {}
        if found.overall.chosen is not None:
            document["best"] = toml_of(found.overall.chosen, found.overall) | more
        for one in found.overall.finalists:
            if one.is_baseline:
                document["baseline"] = toml_of(one, found.overall)
        silent = replace(found.overall, chosen=None)
        if front := [toml_of(one, replace(silent, confirmed=sure)) | more for one, sure in self._front]:
            document["pareto"] = front
        if several := [toml_of(one.chosen, one) for one in found.per_context if one.chosen is not None]:
            document["per_context"] = several
        write_atomic(self.folder / BEST, dump_toml(document))

    @cached_property
    def _policy(self) -> PolicyTable | str | None:
        """The choices of the agent's saved policy; a text that says why it can't be used; None if there is none."""
        try:
            table = policies.load(self.folder)
        except StoreError as error:
            return error.message + (f" ({error.hint})" if error.hint else "")
        if table is None or self.journal.head is None:
            return None
        knobs, drawn = self.head.space, Space(domains_of(self.head))
        choices = []
        for one in table.choices:
            try:
                choices.append(replace(one, action=knobs.accept(one.action), context=drawn.accept(one.context)))
            except ActionError:
                place = self.folder / policies.FOLDER / policies.FILE
                told = f"{pairs(one.action)} at {pairs(one.context) or '{}'}"
                hint = "resume the run, and it is written again"
                return f"{place} doesn't belong to this journal: it has {told} ({hint})"
        return replace(table, choices=tuple(choices))

    def recommend(self, context: Mapping[str, Any]) -> Recommendation:
        """The settings to use; see ``tunegym.recommend``."""
        found = recommend(self.name, tuple(self), self.head, self._policy, context)
        return replace(found, verdict=self._told(found.verdict))

    def charts(self, fixed: Mapping[str, Any], share: float = 1.0) -> dict[str, Any]:
        """Plain data that ``report.html`` plots: ``fixed`` completes commands, ``share`` is its part of a page."""
        return charts_of(self, fixed, share)

    def to_pandas(self) -> pd.DataFrame:
        """One row per trial: the columns of ``trajectory.csv``, then every other metric, the spreads and the reason."""
        need_pandas()
        import pandas as pd

        rows = [_row(trial) for trial in self.trials]
        named = {"action": self.head.knobs, "context": self.head.env_params, "observation": self.head.metrics}
        declared = [f"{kind}.{name}" for kind, names in named.items() for name in names]
        found = [name for row in rows for name in row]
        nodes = ["nodes"] if "nodes" in found else []
        columns = dict.fromkeys(
            ["step", "status", "cached", "reward", *declared, "duration_s", *nodes, "phase", *found]
        )
        return pd.DataFrame(rows, columns=list(columns))

    # counts -------------------------------------------------------------------------------------------

    @cached_property
    def _cached(self) -> int:
        return sum(trial.cached_from is not None for trial in self)

    def _counts(self) -> tuple[dict[str, Any], dict[str, str], tuple[str, ...]]:
        statuses, verdict = self.statuses, self.answer.overall
        best, notes = verdict.chosen, ()
        row = {
            "open": number(len(self.journal.open)),
            "measured": number(statuses["measured"]),
            "failed": number(statuses["failed"] + statuses["timed_out"]),
            "infeasible": number(statuses["infeasible"]),
            **({"pruned": number(statuses["pruned"])} if statuses["pruned"] else {}),
            "cached": number(self._cached),
            "best": "" if best is None else self._reached(best),
        }
        found = None
        if best is not None:
            found = {**facts_of(best, verdict.confirmed), "answer": verdict.sentence}
            notes = (f"{escaped(self.name)}: {escaped(verdict.sentence)}",) if best.action else ()
        failures = (trial.reason for trial in reversed(self.trials) if trial.status in FAILURES)
        facts = {"cached": self._cached, "best": found, "goals": self.goals, "latest_failure": next(failures, None)}
        return facts, row, notes

    def _reached(self, best: Evidence) -> str:
        """``seconds (min) 12.5 ±0.3 (threads=4)``; over several contexts, whose values don't compare, the settings."""
        settings, metric = pairs(best.action), self.judged
        if metric is not None and metric in self.goals and metric in best.metrics:
            return f"{with_goal(metric, self.goals)} {interval_text(best.metrics[metric])} ({settings})"
        return settings if best.reward is None else f"{REWARD} {interval_text(best.reward)} ({settings})"

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
        head, found, best, job = self.head, self.answer, self.best, self._plain_job
        names = dict.fromkeys(head.knobs, "knob") | dict.fromkeys(head.env_params, "env_param")
        findings = {
            "repeats": head.repeats,
            "objectives": [objective.as_dict() for objective in self.objectives],
            "goals": self.goals,
            "trials": {
                "done": self._done,
                "open": len(self.journal.open),
                "cached": self._cached,
                "statuses": dict(self.statuses.most_common()),
                "phases": dict(Counter(trial.phase for trial in self).most_common()),
            },
            "answer": found.as_dict(),
            "best": job and facts_of(job, confirmed=False) | {"found_s": None},
            "per_context": [facts_of(one.chosen, one.confirmed) for one in found.per_context if one.chosen],
            "policy": self._policy_facts(),
            "pareto": [facts_of(one, confirmed) for one, confirmed in self._front],
            "importance": importance(list(self), names),
        }
        if best is not None:
            same = exact_key(best.action)
            when = [self.times[one.number] for one in self if one.measured and exact_key(one.action) == same]
            tried = {"found_s": min(when, default=None), "settings_tried": len(self.measurements.actions)}
            findings["best"] = facts_of(best, found.overall.confirmed) | tried
        return self._reasons(), self._time(), findings

    def _printed(self) -> tuple[Table | None, list[str], str]:
        verdict, best = self.answer.overall, self.best
        lines = [f"{escaped(self.name)}: no trial was measured"] if not self.statuses["measured"] else []
        if not lines and self.head.agent is not None:
            lines = [f"{escaped(self.name)}: {escaped(verdict.sentence)}"]
        if best is not None and best.violation:
            lines.append("  no setting keeps the limits; these come closest")
        return self._best_table(), lines, "trajectory.csv"

    def _best_table(self) -> Table | None:
        """The answer over all and in each context beside the baseline, or the Pareto set; None if there is none."""
        found, job, front = self.answer, self._plain_job, [one for one, _ in self._front]
        several, rows = len(found.per_context) > 1, []

        def row(one: Evidence) -> dict[str, str]:
            knobs = {escaped(knob): spelled(rounded(value)) for knob, value in one.action.items()}
            return knobs | cells(one, self.head.metrics, self.goals, self.judged)

        for verdict in (found.overall, *(found.per_context if several else ())):
            place = {"context": pairs(verdict.context) if verdict.context else "over all"} if several else {}
            some = [verdict.chosen, *front]
            rows += [place | row(one) for one in verdict.finalists if one.is_baseline or one in some]
        rest = [one for one in front if one not in found.overall.finalists]
        shown, column = [] if several else rest[:MOST_ROWS], BETTER if found.baseline else "evidence"
        rows += [row(one) | {column: "not confirmed"} for one in shown] + ([row(job)] if job else [])
        empty = {name for name in rows[0] if not any(row.get(name) for row in rows)} if rows else set()
        if self.judged in self.goals and all(objective.limit is None for objective in self.objectives):
            empty.add(REWARD)  # it is the metric, or minus it
        title = f"{escaped(self.name)}: {'best settings' if job is None else 'measured'}"
        if self.pareto:
            empty.add("spread")
            more = f"; {number(len(rest) - len(shown))} of them, not confirmed, in {BEST}" if rest[len(shown) :] else ""
            title = f"{escaped(self.name)}: Pareto set of {counted(len(self.pareto), 'setting')}{more}"
        rows = [{name: text for name, text in row.items() if name not in empty} for row in rows]
        return table_of(title, rows, ("context", *map(escaped, self.head.knobs))) if rows else None

    # the policy ---------------------------------------------------------------------------------------

    def _policy_facts(self) -> dict[str, Any] | None:
        """The choices of a saved policy beside the measurements there; None where there is no policy.

        ``error`` says why a policy can't be shown. ``choices`` are those of the contexts drawn most often where there
        are more than ``MOST_CHOICES``, of ``of`` in all. Where the context has a value of a range, which hardly comes
        again, nothing is counted, and the numbers are None.
        """
        policy = self._policy
        if isinstance(policy, str):
            return {"error": policy, "trials": None, "of": 0, "choices": []}
        if policy is None or not policy.choices:
            return None
        is_counted = self.head.params.size is not None
        drawn = Counter(exact_key(trial.context) for trial in self)
        shown = list(policy.choices)
        if len(shown) > MOST_CHOICES and is_counted:
            shown = sorted(shown, key=lambda one: -drawn[exact_key(one.context)])[:MOST_CHOICES]
        shown = shown[:: max(1, -(-len(shown) // MOST_CHOICES))]
        bests = {
            exact_key(verdict.context or {}): max(measured)[2]
            for verdict in (*self.answer.per_context, self.answer.overall)
            if (measured := [(one.reward.mean, -at, one) for at, one in enumerate(verdict.finalists) if one.reward])
        }
        choices = []
        for one in shown:
            context = exact_key(one.context)
            found: dict[str, Any] = dict.fromkeys(_COUNTED)
            if is_counted:
                found = self._choice(one, drawn[context], bests.get(context))
            choices.append({"context": dict(one.context), "action": dict(one.action), "chance": one.chance, **found})
        return {"error": None, "trials": policy.trials, "of": len(policy.choices), "choices": choices}

    def _choice(self, one: PolicyChoice, drawn: int, best: Evidence | None) -> dict[str, Any]:
        """The measurements of a policy's choice, beside the best in its context."""
        found, key, context = self.measurements, exact_key(one.action), exact_key(one.context)
        count = len(found.measured(key, context))
        reward = found.mean(key, context) if count else None
        beside = None
        if best is not None and best.reward is not None:
            chosen = exact_key(best.action) == exact_key(one.action)
            known = {"action": dict(best.action), "reward": best.reward.mean, "samples": best.samples}
            beside = {**known, "chosen": chosen}
        values = (drawn, count, found.failed(key, context), reward, beside)
        return dict(zip(_COUNTED, values, strict=True))

    # among other runs ---------------------------------------------------------------------------------

    def _entry(self, peers: Sequence[Results]) -> tuple[dict[str, Any], dict[str, str]]:
        best, chosen = self.facts["best"], self.best
        row = {"trials": number(self._done), "measured": number(self.statuses["measured"])}
        row |= {f"best {REWARD}": "none", "spread": "", BETTER: "", "samples": "0", "settings": "", "to best": ""}
        if best is not None and chosen is not None:
            shown = {name: bare(value) for name, value in best["action"].items()}
            note = "limits exceeded" if best["violation"] else None
            there = [
                f"{pairs(one.context)}: {interval_text(one.reward)}"
                for verdict in self.answer.per_context
                for one in verdict.finalists
                if one.context is not None and exact_key(one.action) == exact_key(chosen.action)
            ]
            best = {**best, "note": note, "labels": shown, "better": better(chosen.gain, self.judged)}
            best["values"] = there or [interval_text(chosen.reward)]
            judged = self.judged or "reward"
            row[f"best {REWARD}"] = "\n".join([*best["values"], *([note] if note else [])])
            row["spread"] = number(chosen.spread[judged], 2) if judged in chosen.spread else ""
            row[BETTER] = best["better"] + ("" if best["confirmed"] else "\nnot confirmed")
            row["samples"] = number(best["samples"])
            row["settings"] = "\n".join(pairs({name: one}) for name, one in best["action"].items())
            row["to best"] = "" if best["found_s"] is None else seconds(best["found_s"])
        row["total"] = seconds(self.journal.elapsed_s)
        return {
            "best": best,
            "per_context": self.facts["per_context"],
            "objectives": self.facts["objectives"],
            "goals": self.goals,
            "reward": self.head.reward or "the goal",
            "knobs": msgspec.to_builtins(self.head.knobs),
            "baseline": self.answer.baseline,
            "contexts": self._met(),
            "curve": self._curve(peers),
        }, row

    def _met(self) -> list[str]:
        """The contexts in which something was measured, where they are drawn from lists."""
        listed = self.head.params.size is not None
        return sorted({pairs(trial.context) for trial in self if trial.measured and trial.context}) if listed else []

    def advantages(self, trials: Iterable[Trial]) -> dict[int, float] | None:
        """By number, how far each reward is above the median of ``trials`` in its context; None without contexts.

        Of a range, the nearest trials count.
        """
        drawn = self.head.env_params.keys()
        if not drawn:
            return None
        pool = [one for one in trials if one.measured and one.cached_from is None and one.context.keys() == drawn]
        domains = domains_of(self.head)
        if self.head.params.size is None:
            pool = pool[:: max(1, len(pool) // MOST_NEAR)]
        typical: dict[bytes, float] = {}
        for trial in self:
            if trial.measured and (key := exact_key(trial.context)) not in typical:
                near = [one.reward for one in trials_at(pool, trial.context, domains)[0]]
                typical[key] = statistics.median(near) if near else trial.reward
        return {trial.number: trial.reward - typical[exact_key(trial.context)] for trial in self if trial.measured}

    def _curve(self, peers: Sequence[Results]) -> dict[str, Any]:
        """The points where the best so far of the search rises, by trial and by time, and where each curve ends.

        Where contexts vary, it is the best advantage within a context, over what is typical there in all ``peers``.
        """
        domains = domains_of(self.head)
        alike = [one for one in peers if isinstance(one, TrialResults) and domains_of(one.head) == domains]
        values = self.advantages(trial for one in alike for trial in one if trial.phase == "search")
        rewards = {
            trial.number: trial.reward if values is None else values[trial.number]
            for trial in self
            if trial.measured and trial.phase == "search"
        }
        return {
            "what": "reward" if values is None else "advantage within its context",
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
    return cells | {"duration_s": trial.duration_s, **nodes, "phase": trial.phase, "reason": trial.reason}


def reached(trial: Trial, experiment: Experiment) -> str:
    """``seconds (min) 12.5 (threads=4 at load=0.1)``; the reward where that is no metric."""
    context = f" at {pairs(trial.context)}" if trial.context else ""
    what, value = REWARD, trial.reward
    metric, limits = experiment.judged.metric, [objective.limit for objective in experiment.objectives]
    if metric is not None and metric in experiment.goals and limits.count(None) == len(limits):
        what, value = with_goal(metric, experiment.goals), trial.metrics[metric]
    return f"{what} {number(value)} ({pairs(trial.action)}{context})"


def _rises(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for at, reward in points:
        if not found or reward > found[-1][1]:
            found.append((at, reward))
    return found
