"""A live experiment's facts as plain data: what ``report.html`` shows and ``tunegym report --json`` prints."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tunegym.tuning.agents import policies
from tunegym.tuning.model.episode import Episode
from tunegym.tuning.reports.live_contexts import Grouped, groupings
from tunegym.tuning.reports.live_results import LiveResults
from tunegym.tuning.reports.live_training import training_curves
from tunegym.tuning.reports.live_windows import Curve, Pace, Windows
from tunegym.tuning.reports.masking import masked
from tunegym.tuning.reports.problems import problem_of
from tunegym.tuning.reports.summary import MOST_REASONS, hosts_of, state_of
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.records import Record

MOST_KINDS = 1_000
"""How many different reasons are told apart; servers make up new ones without end."""
MOST_LOST = 50
OWN_ENDS = ("terminated", "truncated")
"""How an episode ends by the server's word; any other was cut short, and its return says little."""

LOADERS = {"ppo": "PPO", "a2c": "A2C", "dqn": "DQN", "sac": "SAC"}
"""The class of Stable-Baselines3 that loads what an agent leaves."""

_CHANGING = re.compile(r"0x[0-9a-fA-F]+|[0-9]+")
_OTHER = "other reasons"


@dataclass(frozen=True)
class LiveSummary:
    """One live experiment: ``facts`` as plain data, and ``curves`` that only a page shows."""

    facts: dict[str, Any]
    curves: dict[str, Any]


class _Pass:
    """What one pass over a journal adds up. Its memory doesn't grow with the steps."""

    def __init__(self, upto: int, env_params: Mapping[str, Any]) -> None:
        self.windows = Windows(upto)
        self.returns, self.lengths, self.rewards = (Curve(self.windows) for _ in range(3))
        self.pace = Pace(self.windows)
        self.failures = [0] * self.windows.count
        self.groups = [Grouped(one, self.windows) for one in groupings(env_params)]
        self.ends: Counter[str] = Counter()
        self.reasons: Counter[tuple[str, str]] = Counter()
        self.examples: dict[tuple[str, str], str] = {}
        self.recorded = 0
        self.lost: list[list[int]] = []
        self.lost_steps = 0
        self.best: Episode | None = None
        self.starts = self.restarts = 0
        self._upto = self._slots = self._started = 0

    def add(self, record: Record) -> None:
        kind = record["record"]
        if kind == "session":
            self.pace.session()
            self._slots, self._started = record.get("slots") or 1, 0
        elif kind == "job":
            self.starts += 1
            self._started += 1
            self.restarts += self._started > self._slots
        elif kind == "lost":
            self.lost_steps += record["last"] - record["first"] + 1
            self._upto = max(self._upto, record["last"])
            if len(self.lost) < MOST_LOST:
                self.lost.append([record["first"], record["last"]])
        elif kind == "steps":
            self._add_steps(record)

    def _add_steps(self, record: Record) -> None:
        self.pace.add(self._upto, record["upto"], record.get("since", 0.0))
        self._upto = max(self._upto, record["upto"])
        count = record["count"]
        if count:
            self.recorded += count
            first = record.get("first")
            numbers = record["numbers"] if first is None else list(range(first, first + count))
            rewards = record["reward"]
            for at, status, reason in record.get("unmeasured", ()):
                self._add_unmeasured(numbers[at], status, reason)
                rewards[at] = None  # a penalty is no measurement
            self.rewards.add_all(numbers, rewards)
        for episode in reader.ended(record):
            self._add_episode(episode)

    def _add_unmeasured(self, number: int, status: str, reason: str) -> None:
        self.failures[self.windows.of(number)] += 1
        key = status, _CHANGING.sub("#", reason)
        if key not in self.examples:
            if len(self.examples) >= MOST_KINDS:
                key = status, _OTHER
            self.examples[key] = reason if key[1] != _OTHER else _OTHER
        self.reasons[key] += 1

    def _add_episode(self, episode: Episode) -> None:
        self.ends[episode.end] += 1
        if episode.end not in OWN_ENDS:
            return
        self.returns.add(episode.last, episode.total)
        self.lengths.add(episode.last, episode.length)
        if self.best is None or episode.total > self.best.total:
            self.best = episode
        for group in self.groups:
            group.add(episode)


def summarise_live(results: LiveResults, total: int | None = None) -> LiveSummary:
    """The facts of a live experiment. Its steps are streamed.

    Args:
        results: the experiment.
        total: how many steps it has at most; None if that is open or not known.
    """
    past = results.past
    head = past.head or {}
    passed = _Pass(past.upto, head.get("env_params", {}))
    if results.path.exists():
        for record in reader.records(results.path):
            passed.add(record)
    state = state_of(results)
    facts: dict[str, Any] = {
        "name": results.name,
        "live": True,
        "state": state,
        "problem": _problem(state, past),
        "ended": past.ended["reason"] if past.ended is not None else None,
        "agent": head.get("agent"),
        "seed": head.get("seed"),
        "metrics": head.get("metrics", []),
        "steps": {
            "total": total,
            "done": past.upto,
            "recorded": passed.recorded,
            "record": head.get("live", {}).get("record", "all"),
            "statuses": dict(past.statuses.most_common()),
            "lost": passed.lost_steps,
            "lost_ranges": passed.lost,
            "unrecorded": results.unrecorded if state != "running" else 0,
        },
        "episodes": _episodes(past, passed, results.mean_return),
        "per_context": [one for group in passed.groups for one in group.facts()],
        "reasons": _reasons(passed),
        "restarts": passed.restarts if passed.starts else None,
        "policy": _policy(results, head.get("agent")),
        "time": {
            "wall_s": past.elapsed_s,
            "steps_per_s": _rate(past),
            "sessions": len(past.sessions),
            **hosts_of(past.sessions),
        },
    }
    return LiveSummary(facts, _curves(results, passed))


def _problem(state: str, past: reader.Journal) -> str | None:
    """As for trials, in the words of steps."""
    found = problem_of(state, past.statuses, past.ended)
    return None if found is None else found.replace("trials", "steps").replace("made no trial", "took no step")


def _rate(past: reader.Journal) -> float | None:
    taken = past.upto - past.statuses["cancelled"]
    return taken / past.elapsed_s if past.elapsed_s > 0 and taken > 0 else None


def _episodes(past: reader.Journal, passed: _Pass, mean: float | None) -> dict[str, Any]:
    best = passed.best
    return {
        "begun": past.episodes,
        "over": past.over,
        "ends": dict(passed.ends.most_common()),
        "mean_return": mean,
        "mean_return_over": len(past.returns),
        "best": None if best is None else {"episode": best.number, "return": best.total, "last_step": best.last},
    }


def _reasons(passed: _Pass) -> list[dict[str, Any]]:
    """Kinds of reasons, each with the first of its kind for an example."""
    told = [
        {"status": key[0], "reason": masked(passed.examples[key]), "count": count}
        for key, count in passed.reasons.most_common(MOST_REASONS)
    ]
    rest = passed.reasons.total() - sum(one["count"] for one in told)
    return [*told, {"status": "", "reason": _OTHER, "count": rest}] if rest else told


def _policy(results: LiveResults, agent: str | None) -> dict[str, Any] | None:
    """Where the policy is, relative to the run's folder, and how one loads it; None if there is none."""
    found = results.policy
    if found is None:
        return None
    place = found.relative_to(results.folder.parent).as_posix()
    return {"path": place, "load": how_to_load(agent, place)}


def how_to_load(agent: str | None, place: str) -> str | None:
    """Code that makes a policy of a file; None for an agent whose files only its author knows."""
    loader = LOADERS.get(agent or "")
    if loader is None:
        return None
    lines = [f"from stable_baselines3 import {loader}", "", f'model = {loader}.load("{place}")']
    return "\n".join([*lines, "action, _ = model.predict(observation, deterministic=True)"])


def _curves(results: LiveResults, passed: _Pass) -> dict[str, Any]:
    windows = passed.windows
    training = results.folder / policies.FOLDER / policies.TRAINING
    return {
        "width": windows.width,
        "ends": windows.ends(),
        "returns": passed.returns.as_dict(band=True),
        "lengths": passed.lengths.as_dict(band=True),
        "rewards": passed.rewards.as_dict(),
        "failures": passed.failures,
        "pace": passed.pace.as_list(),
        "groups": [one for group in passed.groups if (one := group.curves())["lines"]],
        "training": training_curves(training, windows),
    }
