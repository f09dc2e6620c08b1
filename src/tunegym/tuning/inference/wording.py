"""An answer in words: the sentence, the notes, and the cells of a table, all from the same numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tunegym.tuning.inference.answer import Answer, Candidate, Gain, Interval, Verdict
from tunegym.tuning.inference.coordinates import changes_from
from tunegym.tuning.model.values import Action, counted, number, pairs, plus_minus, with_goal

NONE_SURE = "not confirmed"


@dataclass(frozen=True)
class Background:
    """What sentences say of an answer's run."""

    run: str  # its folder, for the command that continues it
    unconfirmed: str  # why there were no rounds
    unfinished: str = ""  # the phase that isn't over


def worded(answer: Answer, background: Background) -> Answer:
    """Return the answer with its sentences."""
    writer = _Writer(answer, background)
    return replace(
        answer,
        overall=writer.worded(answer.overall, coverage(answer)),
        per_context=tuple(writer.worded(verdict, f"at {place(verdict)}") for verdict in answer.per_context),
    )


def worded_verdict(answer: Answer, verdict: Verdict, where: str, background: Background) -> Verdict:
    """Return one verdict of an answer with its sentence; ``where`` names its contexts."""
    return _Writer(answer, background).worded(verdict, where)


def coverage(answer: Answer) -> str:
    """Return which contexts the answer over all stands for; empty where there is only one."""
    count = len(answer.per_context)
    if not count:
        return ""
    stand = "" if answer.is_exact else " that stand for all"
    if answer.over_contexts != "mean":
        return f"in the worst of {count} contexts{stand}"
    return f"over all {count} contexts{stand}"


def place(verdict: Verdict) -> str:
    """Return a context in words."""
    return pairs(verdict.context or {})


def gain_text(gain: Gain | None) -> str:
    """Return ``x1.25 (x1.18 to x1.33)``, or ``+3.2 (+1.1 to +5.3)`` for a difference."""
    if gain is None:
        return ""
    return f"{_size(gain.mean, gain)} ({_size(gain.low, gain)} to {_size(gain.high, gain)})"


def interval_text(interval: Interval | None) -> str:
    """Return ``4.75 ±0.12``: the mean, and half of the interval's width where it is known."""
    if interval is None:
        return ""
    half = None
    if interval.low is not None and interval.high is not None:
        half = (interval.high - interval.low) / 2
    return plus_minus(interval.mean, half)


def _size(value: float, gain: Gain) -> str:
    """Return a ratio or a difference in as many digits as tell it from none."""
    if not gain.is_ratio:
        return f"{'+' if value > 0 else ''}{number(value, 3)}"
    digits = 3
    while digits < 6 and number(value, digits) == "1":
        digits += 1
    return f"x{number(value, digits)}"


def value_title(answer: Answer) -> str:
    """Return ``seconds (min)``: what settings are judged by, and which way is better."""
    metric = answer.metric or "reward"
    return with_goal(metric, {metric: answer.goal})


def value_of(answer: Answer, candidate: Candidate) -> Interval | None:
    """Return the value that a setting is judged by; None over several contexts."""
    return candidate.values.get(answer.metric or "", candidate.reward)


def context_sentences(answer: Answer) -> list[str]:
    """Return the sentences of the contexts whose settings differ from those over all."""
    common = answer.overall.chosen
    return [
        verdict.sentence
        for verdict in answer.per_context
        if common is None or verdict.chosen is None or verdict.chosen.action != common.action
    ]


def cells(answer: Answer, verdict: Verdict, candidate: Candidate) -> dict[str, str]:
    """Return the cells of a setting's row in the table of an answer."""
    if candidate.is_baseline:
        certainty = "keep" if verdict.keeps_baseline else ""
    elif verdict.confirmed:
        certainty = candidate.certainty or ""
    else:
        certainty = NONE_SURE
    return {
        "gain": gain_text(candidate.gain),
        "certainty": certainty,
        value_title(answer): interval_text(value_of(answer, candidate)),
        "samples": number(candidate.samples),
        "failed": number(candidate.failed) if candidate.failed else "",
    }


class _Writer:
    def __init__(self, answer: Answer, background: Background) -> None:
        confirmed = any(verdict.confirmed for verdict in (answer.overall, *answer.per_context))
        self._unsure = f"not confirmed: {'too few trials for it' if confirmed else background.unconfirmed}"
        self._answer, self._background = answer, background
        self._metric = answer.metric or "reward"
        self._has_baseline = answer.baseline is not None

    def worded(self, verdict: Verdict, where: str) -> Verdict:
        """Return a verdict with its sentence and notes."""
        sentence = self._sentence(verdict)
        if where:
            sentence = f"{where}, {sentence}"
        if self._background.unfinished and verdict.chosen is not None:
            sentence = f"{self._background.unfinished} not finished, so far: {sentence}"
        return replace(verdict, sentence=f"{sentence[:1].upper()}{sentence[1:]}.", notes=tuple(self._notes(verdict)))

    def _sentence(self, verdict: Verdict) -> str:
        best = verdict.best
        if verdict.chosen is None:
            return f"nothing can be recommended: {verdict.reason}"
        if best is None:
            return f"keep your settings: nothing in the search looked better by more than noise; {self._unsure}"
        if not self._has_baseline:
            return f"use {pairs(best.action)}: {self._value(best)}, {self._beside_runner_up(verdict)}"
        if best.gain is None:
            return f"use {_change(best)}: your settings {self._broken(verdict)}, so there is no gain on them"
        if not verdict.keeps_baseline:
            advice = self._advice(verdict) if verdict.settles_at else ""
            return f"use {_change(best)}: {self._gain(verdict, best.gain)}{advice}"
        if not _is_better(best.gain):
            runner_up = f"the runner-up, {_change(best)}, was {self._gain(verdict, best.gain)}"
            return f"keep your settings: they look best; {runner_up}"
        looks = f"{_change(best)} looks best, {self._gain(verdict, best.gain)}"
        return f"unclear, so keep your settings for now: {looks}{self._advice(verdict)}"

    def _gain(self, verdict: Verdict, gain: Gain) -> str:
        """Return a gain, how sure it is, and what it rests on."""
        if not verdict.confirmed:
            said = [verdict.certainty or "", f"about {_size(gain.mean, gain)}", self._unsure]
            return f"{self._metric} {said[1]} by the search ({said[0]}; {said[2]})"
        certainty = "" if verdict.certainty == "unclear" else f"{verdict.certainty}, "
        backing = "and sure over all contexts, " if verdict.backed else ""
        if not _is_better(gain) and not verdict.keeps_baseline:
            backing += "by the search and the rounds together, "
        better = " better than your settings" if _is_better(gain) and not verdict.keeps_baseline else ""
        ends = f"95 % CI {_size(gain.low, gain)} to {_size(gain.high, gain)}"
        rests = f"{certainty}{backing}{ends}, {counted(verdict.rounds, 'round')}"
        return f"{self._metric} {_size(gain.mean, gain)}{better} ({rests})"

    def _advice(self, verdict: Verdict) -> str:
        if not verdict.confirmed:
            return ""
        if verdict.settles_at is None:
            return "; ten times as many trials would not settle it"
        budget = verdict.settles_at
        command = f"tunegym resume {self._background.run} --agent-steps {budget}"
        return f"; {budget:,} trials in all would probably settle it: {command}"

    def _beside_runner_up(self, verdict: Verdict) -> str:
        """Say how sure the best setting is where there is no baseline."""
        if not verdict.confirmed:
            return f"{self._unsure}; the best value of a search flatters itself"
        rounds = counted(verdict.rounds, "round")
        if verdict.certainty == "unclear":
            return f"which can't be told apart from the runner-up after {rounds}; there is no baseline"
        return f"{verdict.certainty} to be better than the runner-up, {rounds}; there is no baseline"

    def _broken(self, verdict: Verdict) -> str:
        """Say what is wrong with the baseline."""
        baseline = _baseline(verdict)
        return "exceed the limits" if baseline is not None and baseline.violation else "failed"

    def _value(self, candidate: Candidate) -> str:
        interval = value_of(self._answer, candidate)
        if interval is None:
            return "its values differ by context"
        ends = ""
        if interval.low is not None and interval.high is not None and interval.low < interval.high:
            ends = f" (95 % CI {number(interval.low)} to {number(interval.high)})"
        return f"{self._metric} {number(interval.mean)}{ends}"

    def _notes(self, verdict: Verdict) -> list[str]:
        notes: list[str] = []
        chosen = verdict.chosen
        if chosen is None:
            return notes
        if verdict.ties:
            tied = ", ".join(_change_of(action, self._answer.baseline) for action in verdict.ties)
            notes.append(f"it can't be told apart from {tied}; of ties the nearest to your settings is recommended")
        if chosen.failed:
            notes.append(f"{counted(chosen.failed, 'trial')} of these settings failed")
        if chosen.violation:
            notes.append("it exceeds the limits; no setting that was measured keeps them all")
        baseline = _baseline(verdict)
        if baseline is not None and baseline is not chosen and baseline.failed:
            notes.append(f"your settings failed in {counted(baseline.failed, 'trial')}")
        return notes


def drift_notes(answer: Answer) -> list[str]:
    """Return how the machine surely changed while the run went on."""
    if answer.drift is None:
        return []
    return [
        f"the machine drifted: from the search to the rounds your settings became {gain_text(answer.drift)} as good"
    ]


def _is_better(gain: Gain) -> bool:
    return gain.mean > (1.0 if gain.is_ratio else 0.0)


def _baseline(verdict: Verdict) -> Candidate | None:
    return next((candidate for candidate in verdict.candidates if candidate.is_baseline), None)


def _change(candidate: Candidate) -> str:
    return pairs(candidate.changes) if candidate.changes else pairs(candidate.action)


def _change_of(action: Action, baseline: Action | None) -> str:
    return pairs(action if baseline is None else changes_from(baseline, action)) or "your settings"
