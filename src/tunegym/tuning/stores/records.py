"""The records of a journal: one JSON object per line, parsed once into the values of this module.

``record`` names its kind:

- ``head``: format version and the experiment's description; once, first;
- ``session``: a driver started or resumed; later records belong to it;
- ``open``: number, context and action, before anything runs;
- ``job``: the handle of a job of an open trial, or of a live server;
- ``close``: the outcome; a number that was held and never used has only this one, with its context;
- ``end``: the session came to its end by itself.

A live experiment has these instead of ``open`` and ``close``:

- ``spaces``: the server's action and observation space; once;
- ``reserve``: numbers up to this one may be used from now on, or, at an end, were used;
- ``steps``: up to 1,024 steps by column, and the episodes that are over;
- ``lost``: numbers reserved by a session that was cut off, of which nothing is on record.

``at`` is the time of day; ``since`` counts the seconds since the session began, by a monotonic clock. Whatever has its
usual value is left out.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from tunegym.core.text import printable
from tunegym.tuning.model.head import Head
from tunegym.tuning.model.trial import SEARCH, Episode, Measured, OpenTrial, Reports, Trial, outcome_of
from tunegym.tuning.model.values import Context, Scalar, native

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Sample: TypeAlias = dict[str, float]


class Timed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="record"):
    """What every record but the head has."""

    at: float = 0.0
    since: float = 0.0


class SessionRecord(Timed, frozen=True, tag="session"):
    """One driver's time with the journal."""

    fingerprint: str  # of the workload; trials of another fingerprint are not served from the cache
    parts: dict[str, str] = {}  # the fingerprint's parts by name, so that a change can be named
    slots: int = 1
    runner: str = "local"
    agent_steps: int | None = None
    host: str = ""
    boot: str = ""
    pid: int = 0


class OpenRecord(Timed, frozen=True, tag="open"):
    """A decision."""

    number: Count
    context: dict[str, Scalar]
    action: dict[str, Scalar]
    weight_version: int | None = None
    phase: str = SEARCH

    @property
    def trial(self) -> OpenTrial:
        """The trial that it begins."""
        return OpenTrial(self.number, self.context, self.action, self.weight_version, self.phase)


class JobRecord(Timed, frozen=True, tag="job"):
    """A process of a trial, or with number 0 of a live server, was started."""

    number: Count
    handle: dict[str, Any]


class CloseRecord(Timed, frozen=True, tag="close"):
    """The end of a trial. Each stands for itself: a cached one repeats the measurement it was given."""

    number: Count
    status: Literal["measured", "infeasible", "failed", "timed_out", "cancelled", "pruned"]
    reward: float
    duration_s: float
    cached_from: Count | None = None
    samples: tuple[Sample, ...] = ()
    reason: str = ""
    reports: Reports = ()
    nodes: tuple[str, ...] = ()
    warmup: tuple[Sample, ...] = ()
    context: dict[str, Scalar] | None = None  # of a number that was never opened

    @classmethod
    def of(cls, trial: Trial, at: float, since: float, opened: bool) -> CloseRecord:
        """The record that closes ``trial``."""
        outcome = trial.outcome
        return cls(
            at=at,
            since=since,
            number=trial.number,
            status=outcome.status,  # type: ignore[arg-type]
            reward=trial.reward,
            duration_s=trial.duration_s,
            cached_from=trial.cached_from,
            samples=outcome.samples if isinstance(outcome, Measured) else (),  # type: ignore[arg-type]
            reason=printable(trial.reason),
            reports=trial.reports,
            nodes=trial.nodes,
            warmup=trial.warmup,  # type: ignore[arg-type]
            context=None if opened else dict(trial.context),
        )

    def trial(self, opened: OpenTrial) -> Trial:
        """The trial that it closes."""
        return Trial(
            number=self.number,
            context=opened.context,
            action=opened.action,
            outcome=outcome_of(self.status, self.reason, self.samples),
            reward=self.reward,
            duration_s=self.duration_s,
            cached_from=self.cached_from,
            reports=self.reports,
            nodes=self.nodes,
            weight_version=opened.weight_version,
            phase=opened.phase,
            warmup=self.warmup,
        )


class EndRecord(Timed, frozen=True, tag="end"):
    """The session came to its end by itself."""

    code: int
    reason: str


class SpacesRecord(Timed, frozen=True, tag="spaces"):
    """The server's spaces, as ``tunegym.tuning.spaces`` describes them."""

    action: Any
    observation: Any


class ReserveRecord(Timed, frozen=True, tag="reserve"):
    """Numbers up to ``upto`` may be used from now on."""

    upto: Count


class Lost(Timed, frozen=True, tag="lost"):
    """Numbers of a session that was cut off: their steps were taken or not, and nothing of them is on record."""

    first: Count
    last: Count


class Steps(Timed, frozen=True, kw_only=True, tag="steps"):
    """Recorded steps that were written together, and the episodes that were over by then; either may be empty.

    Places count from 0. ``actions`` and ``observations`` have a list for each leaf of the space (its JSON, while it is
    written); None if they are in a side file, from ``action_row`` or ``observation_row`` on.
    """

    upto: Count  # the highest number used by then, recorded or not
    begun: Count  # episodes
    statuses: dict[str, Count]  # of the steps since the record before, recorded or not
    worst: float | None  # the worst reward measured by then
    largest: float  # the largest size of a reward measured by then
    numbers: list[Count] = []
    episodes: list[Count] = []
    rewards: list[float] = []
    durations: list[float] = []
    terminated: list[Count] = []  # places
    truncated: list[Count] = []
    actions: list[Any] | None = None
    observations: list[Any] | None = None
    action_row: Count = 0
    observation_row: Count = 0
    contexts: list[tuple[Count, dict[str, Scalar]]] = []  # with the place from which each holds
    metrics: dict[str, list[float | None]] = {}
    unmeasured: dict[Count, tuple[str, str]] = {}  # status and reason by place
    over: list[Episode] = []
    weight_versions: list[int] = []  # of the policy that chose each action; empty if its agent doesn't count them

    def __post_init__(self) -> None:
        count = len(self.numbers)
        columns = {"episodes": self.episodes, "rewards": self.rewards, "durations": self.durations, **self.metrics}
        leaves = [*(self.actions or ()), *(self.observations or ())]
        columns |= {f"leaf {index}": leaf for index, leaf in enumerate(leaves) if type(leaf) is not msgspec.Raw}
        columns |= {"weight_versions": self.weight_versions} if self.weight_versions else {}
        for name, column in columns.items():
            if len(column) != count:
                raise ValueError(f"{name} doesn't fit its {count} steps")
        places = {*self.terminated, *self.truncated, *self.unmeasured, *(start for start, _ in self.contexts)}
        if max(places, default=-1) >= count or len(self.context_of()) != count:
            raise ValueError(f"terminated, truncated, unmeasured or contexts doesn't fit its {count} steps")

    def context_of(self) -> list[Context]:
        """The context of each step."""
        contexts: list[Context] = []
        ends = [*(start for start, _ in self.contexts[1:]), len(self.numbers)]
        for (start, context), end in zip(self.contexts, ends, strict=False):
            contexts += [context] * (end - start)
        return contexts or [{}] * len(self.numbers)


Record: TypeAlias = (
    Head
    | SessionRecord
    | OpenRecord
    | JobRecord
    | CloseRecord
    | EndRecord
    | SpacesRecord
    | ReserveRecord
    | Steps
    | Lost
)


ENCODER = msgspec.json.Encoder(enc_hook=native)
DECODER = msgspec.json.Decoder(Record)


class Stub(msgspec.Struct):
    """What is left to say of a record that can't be parsed."""

    record: Any = ""
    version: Any = None
