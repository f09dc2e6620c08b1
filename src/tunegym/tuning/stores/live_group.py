"""Steps of a live system that are written down together: one record, and a row in each CSV for every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from gymnasium import spaces

from tunegym.tuning.model.step import Episode
from tunegym.tuning.model.values import Context, exact_key
from tunegym.tuning.stores.columns import Columns
from tunegym.tuning.stores.live_reader import Steps
from tunegym.tuning.stores.records import Record
from tunegym.tuning.stores.views import line

MOST_ROWS = 1024
MOST_BYTES = 4 << 20
MEASURED = "measured"


class Group:
    """Steps that wait to be written.

    Args:
        actions, observations: the server's spaces.
        metrics: the names of what is recorded of a step's info.
        env_params: the names of what a context has.
        most: how many steps there may be.
    """

    def __init__(
        self,
        actions: spaces.Space[Any],
        observations: spaces.Space[Any],
        metrics: Sequence[str],
        env_params: Sequence[str],
        most: int = MOST_ROWS,
    ) -> None:
        self.actions, self.observations = Columns(actions, 1), Columns(observations, 1)
        each = sum(buffer.nbytes for buffer in (*self.actions.buffers, *self.observations.buffers))
        self.rows = max(1, min(most, MOST_BYTES // max(each, 1)))
        self.actions, self.observations = Columns(actions, self.rows), Columns(observations, self.rows)
        self._metrics = tuple(metrics)
        self._env_params = tuple(env_params)
        self._clear()

    def _clear(self) -> None:
        self.numbers: list[int] = []
        self.episodes: list[int] = []
        self.rewards: list[float] = []
        self.durations: list[float] = []
        self.terminated: list[int] = []
        self.truncated: list[int] = []
        self.contexts: list[Context] = []
        self.values: list[Mapping[str, float]] = []
        self.unmeasured: dict[int, tuple[str, str]] = {}
        self.over: dict[int, Episode] = {}

    def trim(self) -> int:
        """Forget what was put of a step whose number was not, as somebody was interrupted; how many are left."""
        count = len(self.numbers)
        for column in (self.episodes, self.rewards, self.durations, self.contexts, self.values):
            del column[count:]
        for flags in (self.terminated, self.truncated):
            flags[:] = [at for at in flags if at < count]
        self.unmeasured = {at: told for at, told in self.unmeasured.items() if at < count}
        return count

    def header(self) -> tuple[str, str]:
        """The first row of both CSVs."""
        columns = [
            *("step", "status", "cached", "reward"),
            *(self.actions.names("action") if self.actions.inline else ()),
            *(f"context.{name}" for name in self._env_params),
            *(self.observations.names("observation") if self.observations.inline else ()),
            *(f"metric.{name}" for name in self._metrics),
            *("duration_s", "episode", "terminated", "truncated"),
        ]
        return line(columns), line(["step", *self._env_params])

    def record(self, sides: Mapping[str, int]) -> Record:
        """Everything that waits, but for the session's own facts.

        Args:
            sides: for ``action`` and ``observation``, where they have a file of their own, its row of the first step.
        """
        count = len(self.numbers)
        record: Record = {"record": "steps", "count": count}
        if count:
            first = self.numbers[0]
            contiguous = self.numbers[-1] - first == count - 1
            record |= {"first": first} if contiguous else {"numbers": self.numbers}
            record |= {
                "episode": self.episodes,
                "reward": self.rewards,
                "duration_s": self._rounded(),
                "terminated": self.terminated,
                "truncated": self.truncated,
            }
            for name, columns in (("action", self.actions), ("observation", self.observations)):
                record[name] = {"row": sides[name]} if name in sides else columns.plain(count)
            if self._env_params:
                record["context"] = _runs(self.contexts)
            if self._metrics:
                record["metrics"] = {name: [one.get(name) for one in self.values] for name in self._metrics}
            if self.unmeasured:
                record["unmeasured"] = [[at, *told] for at, told in self.unmeasured.items()]
        if self.over:
            record["episodes"] = [
                [one.number, one.lane, one.first, one.last, one.length, one.total, one.end, one.context]
                for one in self.over.values()
            ]
        return record

    def lines(self) -> tuple[str, str]:
        """The rows of both CSVs, from the same columns."""
        count = len(self.numbers)
        if not count:
            return "", ""
        steps = list(map(str, self.numbers))
        drawn = self._drawn()
        parts = [steps, self._statuses(count), _numbers(self.rewards)]
        parts += self.actions.cells(count) if self.actions.inline else []
        parts += [drawn] if drawn else []
        parts += self.observations.cells(count) if self.observations.inline else []
        parts += [[_cell(one.get(name)) for one in self.values] for name in self._metrics]
        parts += [_numbers(self._rounded()), self._tails()]
        rows = _rows(parts, count)
        env = "\n".join(map(",".join, zip(steps, drawn, strict=True)) if drawn else steps)
        return rows, f"{env}\n"

    def _rounded(self) -> np.ndarray:
        return np.round(self.durations, 6)

    def _statuses(self, count: int) -> list[str]:
        """Status and cached, which is never so."""
        statuses = ["measured,false"] * count
        for at, (status, _) in self.unmeasured.items():
            statuses[at] = f"{status},false"
        return statuses

    def _tails(self) -> list[str]:
        """Episode, terminated and truncated."""
        texts = {episode: f"{episode},false,false" for episode in set(self.episodes)}
        tails = [texts[episode] for episode in self.episodes]
        for at in {*self.terminated, *self.truncated}:
            flags = ("true" if at in ends else "false" for ends in (self.terminated, self.truncated))
            tails[at] = f"{self.episodes[at]},{','.join(flags)}"
        return tails

    def episode_lines(self) -> str:
        """A row of ``episodes.csv`` for each episode that is over."""
        return "".join(episode_line(one, self._env_params) for one in self.over.values())

    def _drawn(self) -> list[str]:
        """The cells of each step's context, joined."""
        if not self._env_params:
            return []
        seen: tuple[Context, str] | None = None
        cells: list[str] = []
        for context in self.contexts:
            if seen is None or seen[0] is not context:
                seen = context, line([context.get(name, "") for name in self._env_params])[:-1]
            cells.append(seen[1])
        return cells

    def lost_lines(self, number: int, empty: int) -> tuple[str, str]:
        """The row in both CSVs of a number of which nothing is on record."""
        return f"{number},cancelled,false{',' * empty}\n", f"{number}{',' * len(self._env_params)}\n"

    def load(self, steps: Steps) -> None:
        """Take in what was recorded, so that the same rows come of it."""
        count = len(steps.numbers)
        self._clear()
        self.numbers, self.episodes = steps.numbers, steps.episodes
        self.rewards, self.durations = steps.rewards, steps.durations
        self.terminated, self.truncated = steps.terminated, steps.truncated
        self.contexts = steps.context_of()
        self.unmeasured = dict(steps.unmeasured)
        self.values = [
            {name: value for name, column in steps.metrics.items() if (value := column[at]) is not None}
            for at in range(count if self._metrics else 0)
        ]
        for columns, arrays in ((self.actions, steps.actions), (self.observations, steps.observations)):
            if arrays is not None:
                columns.load(arrays, count)

    def clear(self) -> None:
        """Begin anew."""
        self._clear()


EPISODE_COLUMNS = ("episode", "first_step", "last_step", "length", "return", "end", "lane")


def episode_line(episode: Episode, env_params: Sequence[str]) -> str:
    """An episode's row in ``episodes.csv``."""
    one = episode
    cells = f"{one.number},{one.first},{one.last},{one.length},{one.total!r},{one.end},{one.lane}"
    if not env_params:
        return f"{cells}\n"
    return f"{cells},{line([one.context.get(name, '') for name in env_params])}"


def _runs(contexts: Sequence[Context]) -> list[list[Any]]:
    """Contexts with the row from which each holds."""
    runs: list[list[Any]] = []
    last: Context | None = None
    for at, context in enumerate(contexts):
        if context is not last and (last is None or exact_key(context) != exact_key(last)):
            runs.append([at, context])
        last = context
    return runs


def _rows(columns: list[list[str]], count: int) -> str:
    """Rows of cells, joined at once: a third quicker than row by row."""
    width = 2 * len(columns)
    pieces = [","] * (width * count)
    for at, cells in enumerate(columns):
        pieces[2 * at :: width] = cells
    pieces[width - 1 :: width] = ["\n"] * count
    return "".join(pieces)


def _numbers(values: list[float] | np.ndarray) -> list[str]:
    return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY).decode()[1:-1].split(",")


def _cell(value: float | None) -> str:
    return "" if value is None else repr(value)
