"""Jobs: work that a workload plans and a runner runs, and the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Stream:
    """Source of a running command's intermediate values: the matches of a pattern, line by line.

    Attributes:
        pattern: over bytes; the first group that took part is the value, or the whole match without one.
        file: relative to the job's folder. It may appear late, be cut short or be replaced.
    """

    pattern: str
    file: str = "stdout.txt"


@dataclass(frozen=True, slots=True)
class CommandJob:
    """A shell command, run in ``folder`` (made fresh by the runner) with stdout.txt and stderr.txt in it.

    Attributes:
        name: unique within the experiment, such as ``17`` or ``17.2`` for a second repeat.
        setup: runs before; if it fails, the command doesn't run.
        teardown: always runs after, also when the command failed or timed out.
        env: variables on top of the driver's own environment.
        timeout_s: bound on setup and command together, and on teardown by itself; None for no bound.
        stream: where intermediate values come from; None if there are none.
    """

    name: str
    folder: str
    command: str
    setup: str | None = None
    teardown: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    stream: Stream | None = None

    @property
    def reports(self) -> bool:
        """Whether it reports intermediate values."""
        return self.stream is not None


@dataclass(frozen=True, slots=True)
class CallJob:
    """A Python callable, called with ``arguments``.

    Attributes:
        name: as for a command.
        target: ``module:function``.
        paths: folders put in front of ``sys.path``, so that modules beside the scenario are found.
        isolate: in a warm worker process (True) or in the driver's own (False; then no timeout).
        folder: for stdout.txt and stderr.txt; created when there is output.
        env: environment variables during the call.
        reports: the callable gets one more argument, ``report``, and calls it with (step, value).
    """

    name: str
    folder: str
    target: str
    arguments: Mapping[str, Any]
    paths: tuple[str, ...] = ()
    isolate: bool = True
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    reports: bool = False


Job: TypeAlias = CommandJob | CallJob

Watch: TypeAlias = Callable[[int, float], bool]
"""Called with (step, value) for each intermediate value of a job, in order; True means: end the job now."""

JobHandle: TypeAlias = Mapping[str, Any]
"""Names a running job for the runner that started it: plain JSON, opaque to everyone else.

A process is named by pid, start time and boot; a job of a batch system by its id. The store writes handles down, and a
later session gives them back to the same kind of runner.
"""

Ending: TypeAlias = Literal["exited", "timed_out", "interrupted", "pruned"]


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job. A failing job is data; only broken infrastructure is an exception.

    Attributes:
        ending: ``exited`` by itself (or crashed), ``timed_out`` and ended by us, ``interrupted`` because
            the run stops (the trial then stays open), or ``pruned`` because ``watch`` said so.
        exit_code: of a process; negative for a signal, as in ``subprocess``; 0 for a call that returned.
        error: why the job is a failure although it ended by itself; None when it is not.
        value: what a callable returned.
        duration_s, cpu_s, max_rss_mb: the built-in metrics; None where unknown.
    """

    ending: Ending
    exit_code: int | None = None
    error: str | None = None
    value: Any = None
    duration_s: float = 0.0
    cpu_s: float | None = None
    max_rss_mb: float | None = None
