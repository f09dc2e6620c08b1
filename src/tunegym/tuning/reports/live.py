"""The results of a live experiment: steps, episodes, spaces, and where its policy is.

The journal is read in one pass, whose memory doesn't grow with the steps.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tunegym.core.errors import StoreError
from tunegym.core.text import escaped
from tunegym.tuning.agents import policies
from tunegym.tuning.inference.episodes import ContextGroups, Pace, Windows, context_groups
from tunegym.tuning.model.summary import Table
from tunegym.tuning.model.trial import FAILURES, Episode
from tunegym.tuning.model.values import counted, number, seconds
from tunegym.tuning.reports.charts import training_curves
from tunegym.tuning.reports.results import Results, need_pandas
from tunegym.tuning.stores import reader
from tunegym.tuning.stores.journal import living_writer
from tunegym.tuning.stores.reader import OWN_ENDS, Entry
from tunegym.tuning.stores.records import JobRecord, Lost, SessionRecord, Steps

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from gymnasium import spaces

    from tunegym.tuning.inference.recommendation import Recommendation

STABLE_BASELINES = """from stable_baselines3 import {0}

model = {0}.load("{1}")
action, _ = model.predict(observation, deterministic=True)"""
ASYNC = """from tunegym.asyncrl.policy import load

policy, weights = load("{1}")
chosen, probability = policy.greedy(weights, observation)"""
LOADERS = {
    **{one.lower(): (policies.MODEL, STABLE_BASELINES, one) for one in ("PPO", "A2C", "DQN", "SAC")},
    "async_ppo": ("checkpoint.pt", ASYNC, "tunegym.asyncrl.policy"),
}
"""By agent the file with its policy, how it is loaded, and the class or module that does."""
MOST_LOST = 50

_CHANGING = re.compile(r"0x[0-9a-fA-F]+|[0-9]+")


class _Pass:
    """The sums of one pass over a journal."""

    def __init__(self) -> None:
        self.windows = Windows()
        self.returns, self.lengths, self.rewards, self.failures = (self.windows.curve() for _ in range(4))
        self.pace = Pace(self.windows)
        self.groups: list[ContextGroups] = []
        self.ends: Counter[str] = Counter()
        self.reasons: Counter[tuple[str, str]] = Counter()
        self.lost: list[list[int]] = []
        self.recorded = self.lost_steps = self.starts = self.restarts = 0
        self.best: Episode | None = None
        self.unfinished: list[Episode] = []  # of a killed session, until a resume records them
        self.latest: str | None = None
        self._examples: dict[tuple[str, str], str] = {}
        self._upto = self._slots = self._started = 0

    def add(self, entry: Entry, elapsed_s: float) -> None:
        if isinstance(entry, SessionRecord):
            self._slots, self._started = entry.slots, 0
        elif isinstance(entry, JobRecord):
            self.starts += 1
            self._started += 1
            self.restarts += self._started > self._slots
        elif isinstance(entry, Lost):
            self.lost_steps += entry.last - entry.first + 1
            self._reach(entry.last)
            if len(self.lost) < MOST_LOST:
                self.lost.append([entry.first, entry.last])
        elif isinstance(entry, Steps):
            self.pace.add(self._upto, entry.upto, elapsed_s)
            self._add_steps(entry)

    def _reach(self, upto: int) -> None:
        self._upto = max(self._upto, upto)
        self.windows.reach(self._upto)

    def _add_steps(self, steps: Steps) -> None:
        self._reach(steps.upto)
        self.recorded += len(steps.numbers)
        rewards: list[float | None] = list(steps.rewards)
        for at, (status, reason) in steps.unmeasured.items():
            rewards[at] = None  # a penalty is no measurement
            self.failures.add(steps.numbers[at], 1.0)
            example = self._examples.setdefault((status, _CHANGING.sub("#", reason)), reason)
            self.reasons[status, example] += 1
            self.latest = reason if status in FAILURES else self.latest
        if steps.numbers:
            self.rewards.add_all(steps.numbers, rewards)
        self.add_episodes(steps.over)

    def add_episodes(self, over: Iterable[Episode]) -> None:
        for episode in over:
            self.ends[episode.end] += 1
            if episode.end not in OWN_ENDS:
                continue
            self.returns.add(episode.last, episode.total)
            self.lengths.add(episode.last, episode.length)
            if self.best is None or episode.total > self.best.total:
                self.best = episode
            for group in self.groups:
                group.add(episode)


@dataclass(frozen=True)
class LiveResults(Results):
    """One live experiment. It has steps and episodes instead of trials, and a policy instead of settings."""

    unit: ClassVar[str] = "step"

    def _take(self, journal: reader.Reader) -> _Pass:
        found, running = _Pass(), living_writer(self.folder) is not None
        for entry in journal.read(last=True):
            if not found.groups and journal.journal.head is not None:
                found.groups = context_groups(journal.journal.head.env_params, found.windows)
            found.add(entry, journal.journal.elapsed_s)
        if not running:
            found.unfinished = journal.journal.finish_episodes()
            found.add_episodes(found.unfinished)
        return found

    # steps --------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """How many steps were taken, whether each was recorded or not."""
        return self.journal.upto

    @property
    def statuses(self) -> Counter[str]:
        """Steps by status. ``cancelled`` are those that a session lost or was stopped in."""
        return self.journal.statuses

    @property
    def unrecorded(self) -> int:
        """How many steps at most were taken and are not on record; a resume counts these as lost."""
        return max(0, self.journal.reserved - self.journal.upto)

    def to_pandas(
        self, first: int | None = None, last: int | None = None, columns: Sequence[str] | None = None
    ) -> pd.DataFrame:
        """One row per recorded step: the columns of ``trajectory.csv``, then ``reason`` and ``row``.

        ``row`` is the step's place in ``observations()`` and ``actions()``; -1 for one that was lost. Memory holds
        only the steps and columns that are asked for.

        Args:
            first: the number of the first step; None for the very first.
            last: the number of the last step; None for the very last.
            columns: their names; None for all.
        """
        need_pandas()
        from tunegym.tuning.reports.steps import step_table

        return step_table(self, first, last, columns)

    # episodes -----------------------------------------------------------------------------------------

    @cached_property
    def episodes(self) -> tuple[Episode, ...]:
        """Every episode that is over, in the order of ending."""
        return tuple(self.stream_episodes())

    def stream_episodes(self) -> Iterator[Episode]:
        """As ``episodes``, without holding them all."""
        unfinished = self._read[1].unfinished
        return chain(reader.episodes(self.path), unfinished)

    @property
    def mean_return(self) -> float | None:
        """Of the newest episodes that the server itself ended, at most 100; None if there is none."""
        return reader.mean_return(self.journal.returns)

    def episodes_to_pandas(self) -> pd.DataFrame:
        """One row per episode: the columns of ``episodes.csv``."""
        need_pandas()
        from tunegym.tuning.reports.steps import episode_table

        return episode_table(self)

    # spaces -------------------------------------------------------------------------------------------

    @property
    def action_space(self) -> spaces.Space[Any] | None:
        """The server's; None if it never answered."""
        found = reader.spaces_of(self.path, self.journal)
        return found and found[0]

    @property
    def observation_space(self) -> spaces.Space[Any] | None:
        """The server's own, without the context; None if it never answered."""
        found = reader.spaces_of(self.path, self.journal)
        return found and found[1]

    def observations(self) -> np.ndarray:
        """The observation after each recorded step: a structured array, one field per part of ``observation_space``.

        A space that is one array itself has the field ``value``. Row i belongs to the i-th recorded step that was not
        lost: the column ``row`` of ``to_pandas()``. Large ones (``observations.bin``) are a read-only memory map;
        small ones come from the journal into memory.

        Raises:
            StoreError: the file is not there, or too short, or the journal is damaged.
        """
        return self._elements("observation", self.observation_space)

    def actions(self) -> np.ndarray:
        """The action of each recorded step, as ``observations`` has it (``actions.bin`` where they are large)."""
        return self._elements("action", self.action_space)

    def _elements(self, kind: str, space: spaces.Space[Any] | None) -> np.ndarray:
        from tunegym.tuning.reports.steps import elements

        if space is None:
            raise StoreError(f"{self.name}: its server has not answered yet", hint="nothing was recorded")
        return elements(self, kind, space)

    # the policy ---------------------------------------------------------------------------------------

    @property
    def policy(self) -> Path | None:
        """The file that Stable-Baselines3's, or our, ``load`` takes; None if the agent has left none."""
        name, *_ = LOADERS.get(self.head.agent or "", (policies.MODEL,))
        place = self.folder / policies.FOLDER / name
        return place if place.is_file() else None

    def recommend(self, context: Mapping[str, Any]) -> Recommendation:
        """Always raises ``StoreError``: there are no settings. It says where the policy is and how it is used."""
        agent, place = self.head.agent, self.policy
        what = f"{self.name} is a live experiment: it has no settings to recommend"
        if place is None:
            hint = "an agent that learns, such as ppo, leaves one in policy/"
            raise StoreError(f"{what}, and {agent or 'its agent'} has left no policy", hint=hint)
        loader = LOADERS.get(agent or "")
        use = loader[1].format(loader[2], place).replace("\n\n", "\n").replace("\n", "; ") if loader else str(place)
        raise StoreError(f"{what}, but a policy: {place}", hint=f"use it with {use}")

    def write_best(self, fixed: Mapping[str, Any]) -> None:
        """Nothing to write: there are no settings."""

    def _policy_facts(self) -> dict[str, Any] | None:
        """The policy's path, relative to the run's folder, and how it is loaded; None if there is none."""
        if self.policy is None:
            return None
        place = self.policy.relative_to(self.folder.parent).as_posix()
        loader = LOADERS.get(self.head.agent or "")
        return {"path": place, "load": loader[1].format(loader[2], place) if loader else None}

    # summaries ----------------------------------------------------------------------------------------

    @property
    def _done(self) -> int:
        return self.journal.upto

    @property
    def _record(self) -> str:
        return "all" if self.head.live is None else self.head.live.spelled

    @property
    def _rate(self) -> float | None:
        taken = self.journal.upto - self.journal.statuses["cancelled"]
        return taken / self.journal.elapsed_s if self.journal.elapsed_s > 0 and taken > 0 else None

    def _counts(self) -> tuple[dict[str, Any], dict[str, str], tuple[str, ...]]:
        past, statuses, mean = self.journal, self.statuses, self.mean_return
        live = {
            "begun": past.episodes,
            "episodes": past.over,
            "mean_return": mean,
            "mean_return_over": len(past.returns),
            "unrecorded": self.unrecorded,
            "record": self._record,
        }
        cells = {
            "measured": number(statuses["measured"]),
            "failed": number(statuses["failed"] + statuses["timed_out"]),
            "cancelled": number(statuses["cancelled"]),
            "episodes": number(past.over),
            "mean return (max)": "" if mean is None else f"{number(mean)} (last {len(past.returns)})",
        }
        return {"live": live, "latest_failure": self._read[1].latest}, cells, self._cut_off()

    def _cut_off(self) -> tuple[str, ...]:
        """The steps that a resume will count as lost; while it runs, they are on their way to the disk."""
        steps, done = self.unrecorded, self.journal.upto
        if not steps or self.state != "interrupted":
            return ()
        numbers = f"number {done + 1}" if steps == 1 else f"numbers {done + 1} to {done + steps}"
        many, are = counted(steps, "step"), "is" if steps == 1 else "are"
        taken = f"it was cut off: up to {many} may have been taken and {are} not on record"
        return (f"{escaped(self.name)}: {taken}; a resume counts {numbers} as lost, and continues after them",)

    def _findings(self) -> tuple[Counter[tuple[str, str]], dict[str, Any], dict[str, Any]]:
        past, passed = self._read
        best = passed.best
        return (
            passed.reasons,
            {"steps_per_s": self._rate},
            {
                "steps": {
                    "done": past.upto,
                    "recorded": passed.recorded,
                    "record": self._record,
                    "statuses": dict(past.statuses.most_common()),
                    "lost": passed.lost_steps,
                    "lost_ranges": passed.lost,
                    "unrecorded": self.unrecorded if self.state != "running" else 0,
                },
                "episodes": {
                    "begun": past.episodes,
                    "over": past.over,
                    "ends": dict(passed.ends.most_common()),
                    "mean_return": self.mean_return,
                    "mean_return_over": len(past.returns),
                    "best": best and {"episode": best.number, "return": best.total, "last_step": best.last},
                },
                "per_context": [one for group in passed.groups for one in group.facts()],
                "restarts": passed.restarts if passed.starts else None,
                "policy": self._policy_facts(),
            },
        )

    def _printed(self) -> tuple[Table | None, list[str], str]:
        past, mean, place = self.journal, self.mean_return, self.policy
        parts = [counted(past.upto, "step"), counted(past.over, "episode")]
        if mean is not None:
            parts.append(f"mean return {number(mean)} in the last {len(past.returns)}")
        lines = [f"{escaped(self.name)}: {', '.join(parts)}"]
        if place is not None:
            below = place.is_relative_to(Path.cwd())
            lines.append(f"  policy: {place.relative_to(Path.cwd()) if below else place}")
        return None, lines, "report.html"

    def charts(self, fixed: Mapping[str, Any], share: float = 1.0) -> dict[str, Any]:
        """Plain data that ``report.html`` plots. It is small, and there are no commands."""
        del fixed, share
        passed = self._read[1]
        return {
            "notes": [],
            "training": training_curves(self.folder, passed.windows),
            "width": passed.windows.width,
            "ends": passed.windows.ends(),
            "returns": passed.returns.as_dict(band=True),
            "lengths": passed.lengths.as_dict(band=True),
            "rewards": passed.rewards.as_dict(),
            "failures": passed.failures.as_dict()["count"],
            "pace": passed.pace.as_list(),
            "groups": [one for group in passed.groups if (one := group.curves())["lines"]],
        }

    def _entry(self, peers: Sequence[Results]) -> tuple[dict[str, Any], dict[str, str]]:
        past, passed = self._read
        mean, pace = self.mean_return, self._rate
        spread = statistics.stdev(past.returns) if len(past.returns) > 1 else None
        entry = {
            "spaces": past.spaces and {"action": past.spaces.action, "observation": past.spaces.observation},
            "live": {
                "episodes": past.over,
                "mean_return": mean,
                "mean_return_over": len(past.returns),
                "return_spread": spread,
                "steps_per_s": pace,
                "failed": past.upto - past.statuses["measured"] - past.statuses["cancelled"],
            },
            "curve": {"ends": passed.windows.ends(), "returns": passed.returns.as_dict()["mean"]},
        }
        cells = {
            "steps": number(past.upto),
            "measured": number(past.statuses["measured"]),
            "episodes": number(past.over),
            "mean return (max)": "none" if mean is None else number(mean),
            "spread": "" if spread is None else number(spread, 2),
            "last": number(len(past.returns)),
            "steps/s": "" if pace is None else number(pace, 3),
            "total": seconds(past.elapsed_s),
        }
        return entry, cells
