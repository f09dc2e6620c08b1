"""The results of an experiment of trials: its trials, its best settings, and the facts that a report shows of them."""

from __future__ import annotations

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
from tunegym.tuning.inference.answer import Analysis, Answer, Candidate, Interval, Verdict
from tunegym.tuning.inference.importance import Importance, importance_of
from tunegym.tuning.inference.observations import Question, advantages
from tunegym.tuning.inference.recommendation import PolicyChoice, PolicyTable, Recommendation, recommend
from tunegym.tuning.inference.wording import (
    Background,
    drift_notes,
    interval_text,
    place,
    value_of,
    value_title,
    worded,
)
from tunegym.tuning.model.space import Space
from tunegym.tuning.model.summary import Table
from tunegym.tuning.model.trial import FAILURES, SEARCH, Measured, Trial, samples_of
from tunegym.tuning.model.values import bare, counted, exact_key, number, pairs, seconds
from tunegym.tuning.reports.charts import charts_of
from tunegym.tuning.reports.results import Results, need_pandas
from tunegym.tuning.reports.verdicts import answer_table, best_document, ends, facts_of, front_table
from tunegym.tuning.stores import reader

if TYPE_CHECKING:
    import pandas as pd

BEST = "best.toml"
CPU = "cpu_s"
MOST_ROWS = 20
"""How many rows of a Pareto set are printed; the rest is in best.toml."""


@dataclass(frozen=True)
class TrialResults(Results):
    """One experiment's trials. Iterate over them in the order of closing."""

    unit: ClassVar[str] = "trial"

    def _take(self, journal: reader.Reader) -> tuple[reader.ClosedTrial, ...]:
        return tuple(closed for closed in journal.read(last=True) if isinstance(closed, reader.ClosedTrial))

    @cached_property
    def times(self) -> Mapping[int, float]:
        """Seconds from the experiment's start to each trial's close; time between sessions doesn't count."""
        return {closed.trial.number: closed.elapsed_s for closed in self._read[1]}

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """Every closed trial by number."""
        return tuple(sorted(self, key=lambda trial: trial.number))

    def __iter__(self) -> Iterator[Trial]:
        """Every closed trial in the order of closing."""
        return (closed.trial for closed in self._read[1])

    @property
    def statuses(self) -> Counter[str]:
        """Trials by status."""
        return Counter(trial.status for trial in self)

    @cached_property
    def analysis(self) -> Analysis:
        """The model of the trials, and what follows from it."""
        question = Question.of(self.head)
        trials = tuple(self) if self.journal.head is not None else ()  # a damaged one says nothing of knobs
        own = self._policy.actions(question.contexts) if isinstance(self._policy, PolicyTable) else []
        return Analysis(question, trials, own)

    @cached_property
    def answer(self) -> Answer:
        """What to use, how much better that is than the baseline, and what this rests on."""
        return worded(self.analysis.answer(), self._background)

    @property
    def _background(self) -> Background:
        unfinished = ""
        if self.state in ("running", "interrupted"):
            unfinished = "search" if self.journal.after_search is None else "confirmation"
        unconfirmed = "nothing differs enough, or trials or time ran out"
        if self.head.confirm is None or self.head.confirm.mode == "off":
            unconfirmed = "confirm is off"
        elif unfinished:
            unconfirmed = "the run has not come to that"
        return Background(str(self.folder.parent), unconfirmed, unfinished)

    @property
    def best(self) -> Candidate | None:
        """The best setting over all, as in ``best.toml``; None if nothing can be said."""
        return self.answer.overall.chosen

    @property
    def best_per_context(self) -> tuple[Candidate, ...]:
        """The best setting in each represented context, where there are several."""
        return tuple(verdict.chosen for verdict in self.answer.per_context if verdict.chosen is not None)

    @cached_property
    def pareto(self) -> tuple[Candidate, ...]:
        """With several objectives the settings of which none is better than another in every respect; else empty."""
        return tuple(self.analysis.front())

    @cached_property
    def _front(self) -> list[tuple[Candidate, bool]]:
        """The Pareto set, and whether each was confirmed: finalists first, then by reward."""
        overall = self.answer.overall
        finalists = {exact_key(candidate.action): candidate for candidate in overall.candidates if overall.confirmed}
        keyed = [(exact_key(candidate.action), candidate) for candidate in self.pareto]
        front = [(finalists.get(key, candidate), key in finalists) for key, candidate in keyed]
        return sorted(front, key=lambda pair: (not pair[1], -(pair[0].reward.mean if pair[0].reward else 0.0)))

    @cached_property
    def _job(self) -> Candidate | None:
        """The measurement of an experiment without knobs, which is no answer to anything."""
        trial = next((trial for trial in self if trial.measured), None)
        if self.head.agent is not None or trial is None:
            return None
        values = {name: Interval(value) for name, value in trial.metrics.items()}
        return Candidate(
            action={},
            changes={},
            is_baseline=False,
            gain=None,
            certainty=None,
            values=values,
            reward=Interval(trial.reward),
            trials=(trial.number,),
            failed=0,
            violation=0.0,
        )

    def write_best(self, fixed: Mapping[str, Any]) -> None:
        """Write ``best.toml``: the settings with the fixed parameters beside them, ready to use."""
        write_atomic(self.folder / BEST, dump_toml(best_document(self.answer, self._front, fixed)))

    @cached_property
    def _policy(self) -> PolicyTable | str | None:
        """The choices of the agent's saved policy; a text that says why it can't be used; None if there is none."""
        try:
            table = policies.load(self.folder)
        except StoreError as error:
            return error.message + (f" ({error.hint})" if error.hint else "")
        if table is None or self.journal.head is None:
            return None
        knobs, drawn = self.head.space, Space({name: param.domain for name, param in self.head.params.params.items()})
        choices = []
        for choice in table.choices:
            try:
                action, context = knobs.accept(choice.action), drawn.accept(choice.context)
            except ActionError:
                path = self.folder / policies.FOLDER / policies.FILE
                wrong = f"{pairs(choice.action)} at {pairs(choice.context) or '{}'}"
                hint = "resume the run, and it is written again"
                return f"{path} doesn't belong to this journal: it has {wrong} ({hint})"
            choices.append(replace(choice, action=action, context=context))
        return replace(table, choices=tuple(choices))

    def recommend(self, context: Mapping[str, Any]) -> Recommendation:
        """The settings to use; see ``tunegym.recommend``."""
        return recommend(self.name, self.analysis, self.answer, self._policy, context, self._background)

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
        present = [name for row in rows for name in row]
        nodes = ["nodes"] if "nodes" in present else []
        first = ["step", "status", "cached", "reward", *declared, "duration_s", *nodes, "phase"]
        return pd.DataFrame(rows, columns=list(dict.fromkeys([*first, *present])))

    # counts -------------------------------------------------------------------------------------------

    @cached_property
    def _cached(self) -> int:
        return sum(trial.cached_from is not None for trial in self)

    def _counts(self) -> tuple[dict[str, Any], dict[str, str], tuple[str, ...]]:
        statuses, verdict = self.statuses, self.answer.overall
        best, facts, notes = verdict.chosen, None, ()
        row = {
            "open": number(len(self.journal.open)),
            "measured": number(statuses["measured"]),
            "failed": number(statuses["failed"] + statuses["timed_out"]),
            "infeasible": number(statuses["infeasible"]),
            **({"pruned": number(statuses["pruned"])} if statuses["pruned"] else {}),
            "cached": number(self._cached),
            "best": "" if best is None else self._reached(best),
        }
        if best is not None:
            facts = {**facts_of(best, verdict.confirmed), "answer": verdict.sentence}
            notes = (f"{escaped(self.name)}: {escaped(verdict.sentence)}",) if best.action else ()
        failures = (trial.reason for trial in reversed(self.trials) if trial.status in FAILURES)
        more = {"cached": self._cached, "best": facts, "goals": self.head.goals, "latest_failure": next(failures, None)}
        return more, row, notes

    def _reached(self, best: Candidate) -> str:
        """``seconds (min) 12.5 ±0.3 (threads=4)``; over several contexts, whose values don't compare, the settings."""
        settings = pairs(best.changes) or "your settings"
        value = value_of(self.answer, best)
        return settings if value is None else f"{value_title(self.answer)} {interval_text(value)} ({settings})"

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
        samples = [sample for trial in self if trial.number in own for sample in samples_of(trial)]
        cpu = [sample[CPU] for sample in samples if CPU in sample]
        cached = [(own[trial.cached_from], trial.duration_s) for trial in self if trial.cached_from in own]
        total = sum(by_status.values())
        return {
            "trials_s": total,
            "by_status_s": dict(by_status),
            "not_measured_s": total - by_status[Measured.status],
            "saved_s": sum(max(0.0, saved - took) for saved, took in cached),
            "cpu_s": sum(cpu) if cpu else None,
        }

    def _findings(self) -> tuple[Counter[tuple[str, str]], dict[str, Any], dict[str, Any]]:
        head, answer = self.head, self.answer
        findings = {
            "repeats": head.repeats,
            "objectives": [objective.as_dict() for objective in self.head.objectives],
            "goals": self.head.goals,
            "trials": {
                "done": self._done,
                "open": len(self.journal.open),
                "cached": self._cached,
                "statuses": dict(self.statuses.most_common()),
                "phases": dict(Counter(trial.phase for trial in self).most_common()),
            },
            "answer": msgspec.to_builtins(answer),
            "best": self._best_facts(),
            "per_context": [
                facts_of(verdict.chosen, verdict.confirmed, verdict.context)
                for verdict in answer.per_context
                if verdict.chosen is not None
            ],
            "policy": self._policy_facts(),
            "pareto": [facts_of(candidate, confirmed) for candidate, confirmed in self._front],
            "importance": msgspec.to_builtins(self.importance),
        }
        return self._reasons(), self._time(), findings

    @cached_property
    def importance(self) -> Importance:
        """What each knob is worth, and which values fail."""
        return importance_of(self.analysis.surrogate)

    def _best_facts(self) -> dict[str, Any] | None:
        """The best setting as plain data, and when it was found; of a plain job its measurement."""
        best = self._job or self.best
        if best is None:
            return None
        times: defaultdict[bytes, list[float]] = defaultdict(list)
        for trial in self:
            if trial.measured:
                times[exact_key(trial.action)].append(self.times[trial.number])
        found_s = min(times[exact_key(best.action)], default=None)
        return {**facts_of(best, self.answer.overall.confirmed), "found_s": found_s, "settings_tried": len(times)}

    def _printed(self) -> tuple[Table | None, list[str], str]:
        name, answer, lines = escaped(self.name), self.answer, list[str]()
        if not self.statuses["measured"]:
            lines = [f"{name}: no trial was measured"]
        elif self.head.agent is not None:
            lines = [f"{name}: {escaped(answer.overall.sentence)}"]
            lines += [f"  {escaped(note)}" for note in (*answer.overall.notes, *drift_notes(answer))]
        return self._table(name), lines, "trajectory.csv"

    def _table(self, name: str) -> Table | None:
        """The answer over all and in each context; in one context the Pareto set; or a plain job's metrics."""
        if self._job is not None:
            rows = tuple((escaped(metric), number(value.mean)) for metric, value in self._job.values.items())
            return Table(f"{name}: measured", ("metric", "value"), rows, ("metric",))
        if not self._front or self.answer.per_context:
            return answer_table(f"{name}: best settings", self.answer)
        overall = self.answer.overall
        rows = [(candidate, overall.confirmed) for candidate in overall.candidates]
        known = {exact_key(candidate.action) for candidate in overall.candidates}
        rows += [pair for pair in self._front if exact_key(pair[0].action) not in known]
        title = f"{name}: best settings and the Pareto set of {counted(len(self._front), 'setting')}"
        if len(rows) > MOST_ROWS:
            title += f"; {counted(len(rows) - MOST_ROWS, 'more')} in {BEST}"
        return front_table(title, rows[:MOST_ROWS], self.head.objectives)

    # the policy ---------------------------------------------------------------------------------------

    def _policy_facts(self) -> dict[str, Any] | None:
        """The choices of a saved policy beside the measurements there; None where there is no policy.

        ``error`` says why a policy can't be shown. Where the context has a value of a range, which hardly comes again,
        nothing is counted, and the numbers are None.
        """
        policy = self._policy
        if isinstance(policy, str):
            return {"error": policy, "trials": None, "choices": []}
        if policy is None or not policy.choices:
            return None
        is_counted, choices = self.head.params.size is not None, []
        drawn = Counter(exact_key(trial.context) for trial in self)
        for choice in policy.choices:
            facts = {"context": dict(choice.context), "action": dict(choice.action), "chance": choice.chance}
            counts = dict.fromkeys(("drawn", "samples", "failed", "reward", "best"))
            if is_counted:
                counts = {"drawn": drawn[exact_key(choice.context)], **self._choice_counts(choice)}
            choices.append(facts | counts)
        return {"error": None, "trials": policy.trials, "choices": choices}

    def _choice_counts(self, choice: PolicyChoice) -> dict[str, Any]:
        """What was measured of a policy's choice, and what is recommended in its context."""
        action, context = exact_key(choice.action), exact_key(choice.context)
        trials = self._by_cell.get((action, context), [])
        rewards = [trial.reward for trial in trials if trial.measured]
        verdicts = [verdict for verdict in self._verdicts if exact_key(verdict.context or {}) == context]
        best = next((verdict.chosen for verdict in verdicts), None)
        beside = None
        if best is not None and best.reward is not None:
            beside = {"action": dict(best.action), "reward": best.reward.mean, "samples": best.samples}
            beside["chosen"] = exact_key(best.action) == action
        return {
            "samples": len(rewards),
            "failed": sum(trial.status in FAILURES for trial in trials),
            "reward": sum(rewards) / len(rewards) if rewards else None,
            "best": beside,
        }

    @cached_property
    def _by_cell(self) -> Mapping[tuple[bytes, bytes], list[Trial]]:
        """Trials that ran, by action and context."""
        cells: defaultdict[tuple[bytes, bytes], list[Trial]] = defaultdict(list)
        for trial in self:
            if trial.cached_from is None:
                cells[exact_key(trial.action), exact_key(trial.context)].append(trial)
        return cells

    @property
    def _verdicts(self) -> Sequence[Verdict]:
        return self.answer.per_context or (self.answer.overall,)

    # among other runs ---------------------------------------------------------------------------------

    def _entry(self, peers: Sequence[Results]) -> tuple[dict[str, Any], dict[str, str]]:
        best, chosen = self.facts["best"], self.best
        row = {"trials": number(self._done), "measured": number(self.statuses["measured"])}
        row |= {"best": "none", "gain": "", "samples": "0", "settings": "", "to best": ""}
        if best is not None and chosen is not None:
            labels = {name: bare(value) for name, value in best["action"].items()}
            interval = value_of(self.answer, chosen)
            value = None  # over several contexts
            if interval is not None:
                value = {"title": value_title(self.answer), "mean": interval.mean, "interval": ends(interval)}
            best = {**best, "labels": labels, "value": value, "values": self._values()}
            row["best"] = "\n".join(best["values"]) + ("\nlimits exceeded" if best["violation"] else "")
            row["gain"] = best["better"] + ("" if best["confirmed"] else "\nnot confirmed")
            row["samples"] = number(best["samples"])
            row["settings"] = pairs(best["action"])
            row["to best"] = "" if best["found_s"] is None else seconds(best["found_s"])
        row["total"] = seconds(self.journal.elapsed_s)
        return {
            "best": best,
            "per_context": self.facts["per_context"],
            "objectives": self.facts["objectives"],
            "goals": self.head.goals,
            "reward": self.head.reward or "the goal",
            "knobs": msgspec.to_builtins(self.head.knobs),
            "baseline": self.answer.baseline,
            "contexts": self._met(),
            "curve": self._curve(peers),
        }, row

    def _values(self) -> list[str]:
        """What is recommended reaches in each context."""
        title, values = value_title(self.answer), []
        for verdict in self._verdicts:
            if verdict.chosen is not None:
                text = f"{title} {interval_text(value_of(self.answer, verdict.chosen))}"
                values.append(f"{place(verdict)}: {text}" if verdict.context else text)
        return values

    def _met(self) -> list[str]:
        """The contexts in which something was measured, where they are drawn from lists."""
        listed = self.head.params.size is not None
        return sorted({pairs(trial.context) for trial in self if trial.measured and trial.context}) if listed else []

    def advantages(self, trials: Iterable[Trial]) -> dict[int, float] | None:
        """By number, how far each reward is above what is typical of ``trials`` there; None without contexts."""
        if not self.head.env_params:
            return None
        return advantages(Question.of(self.head), tuple(trials), tuple(self))

    def _curve(self, peers: Sequence[Results]) -> dict[str, Any]:
        """The points where the best so far of the search rises, by trial and by time, and where each curve ends.

        Where contexts vary, it is the best advantage within a context, over what is typical there in all ``peers``.
        """
        params = self.head.env_params
        alike = [peer for peer in peers if isinstance(peer, TrialResults) and peer.head.env_params == params]
        values = self.advantages(trial for peer in alike for trial in peer if trial.phase == SEARCH)
        rewards = {
            trial.number: trial.reward if values is None else values[trial.number]
            for trial in self
            if trial.measured and trial.phase == SEARCH
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


def _rises(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    rises: list[tuple[float, float]] = []
    for when, reward in points:
        if not rises or reward > rises[-1][1]:
            rises.append((when, reward))
    return rises
