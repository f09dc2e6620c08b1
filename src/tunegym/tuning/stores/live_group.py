"""Steps of a live system that are written down together: one record, and a row in each CSV for every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, Literal, NamedTuple

import numpy as np
import orjson
from gymnasium import spaces

from tunegym.tuning.model.episode import Episode
from tunegym.tuning.model.values import Context, exact_key
from tunegym.tuning.stores.columns import Columns
from tunegym.tuning.stores.reader import Steps
from tunegym.tuning.stores.records import Record
from tunegym.tuning.stores.views import line

MOST_ROWS = 1024
MOST_BYTES = 4 << 20
MEASURED = "measured"
TERMINATED, TRUNCATED = 1, 2


class Row(NamedTuple):
    """A step that waits to be written. Quick systems' are plain tuples of the same.

    Attributes:
        action, observation: as ``Columns.pack`` gives them.
        ended: 0, or the sum of TERMINATED and TRUNCATED.
        unmeasured: status and reason; None of a measured one.
    """

    number: int
    episode: int
    action: Any
    observation: Any
    reward: float
    duration: float
    ended: int
    context: Context
    metrics: Mapping[str, float]
    unmeasured: tuple[str, str] | None


class Group:
    """Steps that are written together, as columns; ``fill`` or ``load`` comes first.

    Attributes:
        most: how many steps there may be, for their size.

    Args:
        actions, observations: the server's spaces.
        metrics: the names of what is recorded of a step's info.
        env_params: the names of what a context has.
        most: how many steps there may be, whatever their size.
    """

    def __init__(
        self,
        actions: spaces.Space[Any],
        observations: spaces.Space[Any],
        metrics: Sequence[str],
        env_params: Sequence[str],
        most: int = MOST_ROWS,
    ) -> None:
        self.actions, self.observations = Columns(actions), Columns(observations)
        each = self.actions.row_bytes + self.observations.row_bytes
        self.most = max(1, min(most, MOST_BYTES // max(each, 1)))
        self._metrics = tuple(metrics)
        self._env_params = tuple(env_params)
        self.fill(())

    def fill(self, rows: Sequence[Row], over: Sequence[Episode] = ()) -> None:
        """Take in steps, and episodes that are over."""
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [()] * len(Row._fields)
        self.numbers, self.episodes, actions, observations, self.rewards, self.durations, *others = columns
        ended, self.contexts, self.values, unmeasured = others
        ends = list(compress(range(len(rows)), ended))
        self.terminated = [at for at in ends if ended[at] & TERMINATED]
        self.truncated = [at for at in ends if ended[at] & TRUNCATED]
        self.unmeasured = {at: unmeasured[at] for at in compress(range(len(rows)), unmeasured)}
        self.over = over
        self._texts: dict[str, bytes] = {}
        self.actions.fill(actions)
        self.observations.fill(observations)

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
                "reward": orjson.Fragment(self._text("reward")),
                "duration_s": orjson.Fragment(self._text("duration_s")),
                "terminated": self.terminated,
                "truncated": self.truncated,
            }
            for name, columns in (("action", self.actions), ("observation", self.observations)):
                record[name] = {"row": sides[name]} if name in sides else columns.plain()
            if self._env_params:
                record["context"] = _runs(self.contexts)
            if self._metrics:
                record["metrics"] = {name: [one.get(name) for one in self.values] for name in self._metrics}
            if self.unmeasured:
                record["unmeasured"] = [[at, *told] for at, told in self.unmeasured.items()]
        if self.over:
            record["episodes"] = [
                [one.number, one.lane, one.first, one.last, one.length, one.total, one.end, one.context]
                for one in self.over
            ]
        return record

    def lines(self) -> tuple[str, str]:
        """The rows of both CSVs, from the same columns."""
        count = len(self.numbers)
        if not count:
            return "", ""
        steps = _split(orjson.dumps(self.numbers))
        drawn = self._drawn()
        parts = [steps, self._statuses(count), _split(self._text("reward"))]
        parts += self.actions.cells() if self.actions.inline else []
        parts += [drawn] if drawn else []
        parts += self.observations.cells() if self.observations.inline else []
        parts += [[_cell(one.get(name)) for one in self.values] for name in self._metrics]
        parts += [_split(self._text("duration_s")), self._tails()]
        rows = _rows(parts, count)
        env = "\n".join(map(",".join, zip(steps, drawn, strict=True)) if drawn else steps)
        return rows, f"{env}\n"

    def _text(self, column: Literal["reward", "duration_s"]) -> bytes:
        """A column's JSON, made once for the record and the CSV."""
        text = self._texts.get(column)
        if text is None:
            values = self.rewards if column == "reward" else np.round(self.durations, 6)
            self._texts[column] = text = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
        return text

    def _statuses(self, count: int) -> list[str]:
        """Status and cached, which is never so."""
        statuses = ["measured,false"] * count
        for at, (status, _) in self.unmeasured.items():
            statuses[at] = f"{status},false"
        return statuses

    def _tails(self) -> list[str]:
        """Episode, terminated and truncated."""
        texts = {episode: f"{episode},false,false" for episode in set(self.episodes)}
        tails = list(map(texts.__getitem__, self.episodes))
        for at in {*self.terminated, *self.truncated}:
            flags = ("true" if at in ends else "false" for ends in (self.terminated, self.truncated))
            tails[at] = f"{self.episodes[at]},{','.join(flags)}"
        return tails

    def episode_lines(self) -> str:
        """A row of ``episodes.csv`` for each episode that is over."""
        return "".join(episode_line(one, self._env_params) for one in self.over)

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
        self.over = ()
        self._texts = {}
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
                columns.load(arrays)


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


def _split(text: bytes) -> list[str]:
    """The numbers in a JSON array."""
    return text.decode()[1:-1].split(",")


def _cell(value: float | None) -> str:
    return "" if value is None else repr(value)
