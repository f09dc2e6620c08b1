"""The Ray runner: trials on the nodes of a Ray cluster. The scenario's files go there, outputs come back.

Each slot is an actor (see ``ray_host``) that holds a trial's resources and runs one trial after another: a call of an
actor costs half of a task, and it can be told of verdicts and of a stop while its job runs. Actors are created when a
trial finds none idle, up to ``slots``, and end with the driver. A dead actor or node is infrastructure: the trial runs
again on another actor.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from tunegym.core.errors import RunnerError
from tunegym.core.processes import end_leftovers
from tunegym.core.ray_cluster import RayConnection, call_at, import_extra
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.trial import Job, JobHandle, JobResult, ReportCallback, what_runs
from tunegym.tuning.runners import ray_host
from tunegym.tuning.runners.command import INTERRUPTED_TEARDOWN_S, untold
from tunegym.tuning.runners.shipment import Entry, ScratchFolder, read_scenario, write_folder

_log = logging.getLogger(__name__)

LOOK_S = 0.1
"""How often a waiting trial looks whether it is to stop."""
STOP_S = INTERRUPTED_TEARDOWN_S + 20.0
"""How long a job that is stopped may take to end, teardown included."""
GONE_S = 45.0
"""How long a cluster may not answer before it counts as gone. After 60 s Ray itself ends this process."""
MOST_LOST = 60
"""How many actors in a row may be lost before they are ready."""
MISFIT_S = 60.0
"""How long a cluster that had a node that is large enough may be without one."""


@dataclass(frozen=True, kw_only=True)
class RayConfig:
    """The settings of ``ray`` in ``[system]``."""

    address: str | None = None  # of the cluster; None for one on this machine, for this run alone
    # what each trial takes on its node
    num_cpus: float = 1
    num_gpus: float = 0
    resources: dict[str, float] = field(default_factory=dict)
    retries: int = 2  # how often a trial runs again after its node or worker was lost

    def __post_init__(self) -> None:
        """Refuse impossible settings."""
        for name in ("num_cpus", "num_gpus", "retries"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0")
        for name, amount in self.resources.items():
            if name in ("CPU", "GPU"):
                raise ValueError(f"resources.{name}: write num_{name.lower()}s instead")
            if amount <= 0:
                raise ValueError(f"resources.{name} must be more than 0")
        if self.address is not None and not self.address.strip():
            raise ValueError("address must not be empty: leave it out for a cluster on this machine")

    @property
    def wanted(self) -> dict[str, float]:
        """What a trial takes, by Ray's names."""
        amounts = {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources}
        return {name: amount for name, amount in amounts.items() if amount}


class HostLostError(Exception):
    """The actor of a trial, its node or the way there is gone; the message says which.

    The cause is a ``RunnerError`` if the actor could not work on its node.
    """


@dataclass(frozen=True, eq=False)
class _Host:
    """An actor that is ready."""

    actor: Any
    node: str
    handle: JobHandle


class RayRunner:
    """Runs jobs on a Ray cluster (the ``ClusterRunner`` port).

    The cluster is contacted at first use. ``stop`` and ``kill`` set a flag only; the threads in ``run`` see it.
    """

    Config: ClassVar[type[RayConfig]] = RayConfig

    def __init__(self, token: str, slots: int = 1, config: RayConfig | None = None, scenario_dir: Path | None = None):
        self._config = config or RayConfig()
        self._token = token
        self._slots = slots
        self._scenario_dir = os.path.abspath(scenario_dir or Path.cwd())  # noqa: PTH100
        self._cluster = Cluster(self._config.address)
        self._stops = 0
        self._lock = threading.Lock()  # of all below
        self._files: Any = None  # a reference to the scenario's files
        self._idle: list[_Host] = []
        self._busy = 0
        self._pending: dict[Any, Any] = {}  # actors that are not ready, by the answer that tells
        self._creations_lost = 0
        self._waiting = 0
        self._has_fitted = False

    # the port -----------------------------------------------------------------------------------------

    def check(self, experiments: Sequence[Experiment]) -> None:
        """Refuse trials on several nodes, and a cluster none of whose nodes can hold a trial."""
        for experiment in experiments:
            if (most := experiment.most_nodes) > 1:
                what = f"{experiment.name}: num_nodes = {most}, but a trial runs on one node of a Ray cluster"
                raise RunnerError(what, hint="leave num_nodes out, or let the command itself use the cluster")
        import_extra("ray", "ray", RunnerError)
        if self._config.address is not None:  # one of our own would only be started to be asked
            self._cluster.connect()
            if misfit := self._misfit():
                raise misfit

    def script(self, job: Job) -> str:
        """The resources, the variables and what runs: Ray has no script."""
        where = self._config.address or "a cluster on this machine, for this run alone"
        lines = [f"# Ray: {where}; a trial takes {_amounts(self._config.wanted) or 'nothing'}"]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in job.env.items()]
        return "\n".join([*lines, what_runs(job)])

    @property
    def waiting(self) -> str:
        """How many trials wait for a node, or for the cluster itself."""
        if self._cluster.away or not self._waiting:
            return self._cluster.away
        trials = "1 trial waits" if self._waiting == 1 else f"{self._waiting} trials wait"
        return f"{trials} for {_amounts(self._config.wanted) or 'a node'} on the Ray cluster"

    def run(self, job: Job, started: Callable[[JobHandle], None], watch: ReportCallback | None = None) -> JobResult:
        """Run one job to its end on some node, again if the node is lost, and bring its files back.

        Values that a lost attempt had reported are not reported again.

        Raises:
            RunnerError: the cluster can't be reached, no node can hold the job, tunegym isn't there, or a folder can't
                be used.
        """
        told: list[int] = []
        nodes: list[str] = []
        while (host := self._take()) is not None:
            nodes.append(host.node)
            is_usable = False
            try:
                started(host.handle)
                result = self._attempt(host, job, untold(watch, told) if watch and job.reports else None)
                is_usable = True
                return replace(result, nodes=tuple(nodes))
            except HostLostError as error:
                if self._stops:
                    break
                _log.warning("job %s, attempt %d on %s: %s", job.name, len(nodes), host.node, error)
                if len(nodes) > self._config.retries:
                    if isinstance(cause := error.__cause__, RunnerError):
                        raise RunnerError(f"{host.node}: {cause.message}", hint=cause.hint) from None
                    what = f"its Ray worker was lost in attempt {len(nodes)}: {error}"
                    return JobResult("exited", error=what, nodes=tuple(nodes))
            finally:
                self._give_back(host, is_usable)
        return JobResult("interrupted", nodes=tuple(nodes))

    def stop(self) -> None:
        """End every running job now; their ``run`` returns ``interrupted``, and so does every later one."""
        self._stops += 1

    def kill(self) -> None:
        """As ``stop``, without grace."""
        self._stops = 2

    def end_leftovers(self, handles: Iterable[JobHandle]) -> int:
        """End what hosts of a killed driver left running, on the machines that it wrote down.

        Ray ends them by itself, but that may take a moment. A machine that left the cluster can't be asked: what was
        there ended with its Ray processes.
        """
        ours = [dict(handle) for handle in handles if "ray" in handle]
        ended = end_leftovers(self._token, ours) if ours else 0
        if ours and self._config.address is not None:
            ended += self._cluster.end_leftovers(self._token, ours)
        return ended

    def close(self) -> None:
        """Release the actors, and the cluster if it is our own. No ``run`` may be under way. Twice is fine."""
        idle, self._idle = [host.actor for host in self._idle], []
        pending, self._pending = list(self._pending.values()), {}
        for actors, timeout_s in ((idle, 10.0), (pending, 3.0)):
            if actors:  # they clean up
                closed = [actor.close.remote() for actor in actors]
                self._cluster.ray.wait(closed, num_returns=len(closed), timeout=timeout_s)
        for actor in (*idle, *pending):
            self._cluster.kill(actor)
        self._cluster.close()

    # one attempt --------------------------------------------------------------------------------------

    def _attempt(self, host: _Host, job: Job, watch: ReportCallback | None) -> JobResult:
        """Run the job on the host, and bring its files back. Raises ``HostLostError``."""
        actor, cluster = host.actor, self._cluster
        ended = actor.run.remote(pickle.dumps(job), watch is not None)
        value = None if watch is None else actor.next_report.remote(None)
        deadline = None
        while not (ready := cluster.wait([ended if value is None else value])) or value is not None:
            if ready and watch is not None:
                report = cluster.get(value)
                value = None if report is None else actor.next_report.remote(watch(*report))
            if self._stops and deadline is None:
                actor.stop.remote()
                deadline = time.monotonic() + STOP_S
            if self._stops > 1 or (deadline is not None and time.monotonic() > deadline):
                raise HostLostError("it doesn't stop")
        result, files, has_more = pickle.loads(cluster.get(ended))

        def entries() -> Iterator[Entry]:
            batch, more = files, has_more
            while batch:
                yield from batch
                batch, more = cluster.get(actor.next_files.remote()) if more else ([], False)

        if result.ending != "interrupted":
            write_folder(entries(), job.folder)
        return result

    # hosts --------------------------------------------------------------------------------------------

    def _take(self) -> _Host | None:
        """An idle host, or a new one; waits until there is one. None if the run stops."""
        with self._lock:
            self._waiting += 1
        try:
            self._cluster.connect()
            look = fits_until = 0.0
            while not self._stops:
                with self._lock:
                    if self._idle:
                        self._busy += 1
                        return self._idle.pop()
                    if len(self._pending) + self._busy < self._slots:
                        self._create()
                    pending = list(self._pending)
                for answer in self._cluster.wait(pending):
                    self._admit(answer)
                if (now := time.monotonic()) < look or self._cluster.away:
                    continue
                look = now + 1.0
                if not (misfit := self._misfit()):
                    self._has_fitted = True
                    fits_until = now + MISFIT_S
                elif not self._has_fitted or now > (fits_until := fits_until or now + MISFIT_S):
                    raise misfit
            return None
        finally:
            with self._lock:
                self._waiting -= 1

    def _create(self) -> None:
        """Create an actor, which may have to wait for resources."""
        ray, config = self._cluster.ray, self._config
        if self._files is None:
            self._files = ray.put(read_scenario(self._scenario_dir))
        actor_class = ray.remote(ray_host.TrialHost).options(
            num_cpus=config.num_cpus,
            num_gpus=config.num_gpus,
            resources=config.resources or None,
            max_concurrency=4,
            scheduling_strategy="SPREAD",
        )
        actor = actor_class.remote(self._token, self._scenario_dir, self._files)
        self._pending[actor.describe.remote()] = actor

    def _admit(self, answer: Any) -> None:
        """Take in a host that is ready, or has failed to become so."""
        with self._lock:
            actor = self._pending.pop(answer, None)
        if actor is None:  # another thread was quicker
            return
        try:
            said = self._cluster.get(answer)
        except HostLostError as error:
            self._creations_lost += 1
            if self._creations_lost > MOST_LOST or "an error in its creation" in str(error):
                hint = f"is tunegym {ray_host.VERSION} installed on every node? has its disk room? then resume the run"
                raise RunnerError(f"a Ray worker doesn't start: {error}", hint=hint) from None
            time.sleep(1.0)  # for a while Ray still chooses nodes that are gone
            return
        if said["version"] != ray_host.VERSION:
            what = f"{said['node']} has tunegym {said['version']}, this machine has {ray_host.VERSION}"
            raise RunnerError(what, hint="install the same version on every node")
        self._creations_lost = 0
        with self._lock:
            self._idle.append(_Host(actor, said["node"], said["handle"]))

    def _give_back(self, host: _Host, is_usable: bool) -> None:
        """Keep the host for the next job, or end it and the idle ones on its node, which is probably gone."""
        with self._lock:
            self._busy -= 1
            self._idle.append(host)
            lost = [] if is_usable else [one for one in self._idle if one.node == host.node]
            self._idle = [one for one in self._idle if one not in lost]
        for one in lost:
            self._cluster.kill(one.actor)

    def _misfit(self) -> RunnerError | None:
        """The error if no node can hold a trial, however long it waits."""
        wanted, nodes = self._config.wanted, self._cluster.nodes()
        has = [{name: node["Resources"].get(name, 0) for name in wanted} for node in nodes]
        if any(all(one[name] >= wanted[name] for name in wanted) for one in has):
            return None
        shown = [f"{node['NodeManagerAddress']} has {_amounts(one)}" for node, one in zip(nodes, has, strict=True)]
        what = f"a trial takes {_amounts(wanted)}, and no node has that: {'; '.join(shown) or 'there is none'}"
        hint = "ask for less in [system] (num_cpus, num_gpus, resources), or add a node that is large enough"
        return RunnerError(what, hint=hint)


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())


# the cluster ------------------------------------------------------------------------------------------


class Cluster(RayConnection):
    """This process's connection to the Ray cluster that runs trials.

    Attributes:
        away: that the cluster doesn't answer; empty while it does.
    """

    def __init__(self, address: str | None) -> None:
        super().__init__(address, _scratch, RunnerError)
        self.away = ""
        self._looked = self._answered = 0.0

    def connect(self) -> None:
        """Connect, if that wasn't done. Raises ``RunnerError``: the cluster can't be reached."""
        if self.ray is None:
            self._looked = self._answered = time.monotonic()
        super().connect()

    def get(self, reference: Any) -> Any:
        """An answer. Raises ``HostLostError``."""
        errors = self.ray.exceptions
        try:
            return self.ray.get(reference)
        except errors.RayTaskError as error:
            cause = error.cause
            if not isinstance(cause, RunnerError):
                cause = RunnerError(f"a Ray worker failed: {type(cause).__name__}: {cause}", hint="resume the run")
            raise HostLostError(cause.message) from cause
        except errors.RayError as error:
            raise HostLostError(_reason(str(error))) from error

    def wait(self, references: list[Any]) -> list[Any]:
        """Those of which the answer is there; waits a moment for the first.

        Raises ``RunnerError``: the cluster has not answered for long. Before that, jobs go on without its head.
        """
        ready: list[Any] = []
        if references:
            ready = self.ray.wait(references, num_returns=1, timeout=LOOK_S)[0]
        else:
            time.sleep(LOOK_S)
        now = time.monotonic()
        if ready or now < self._looked + 2.0:
            return ready
        self._looked = now
        try:
            call_at(self.head, 2.0)
        except OSError as error:
            missing = now - self._answered
            self.away = f"the Ray cluster at {self.head} doesn't answer, for {missing:.0f} s now"
            if missing > GONE_S:
                raise RunnerError(f"{self.away}: {error}", hint="start the cluster, then resume the run") from error
        else:
            self._answered, self.away = now, ""
        return ready

    def kill(self, actor: Any) -> None:
        """End an actor now."""
        with contextlib.suppress(Exception):
            self.ray.kill(actor)

    def end_leftovers(self, token: str, handles: list[dict[str, Any]]) -> int:
        """End what an earlier driver left on the machines that are still in the cluster."""
        self.connect()
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes = {node["NodeManagerAddress"]: node["NodeID"] for node in self.nodes()}
        task = self.ray.remote(end_leftovers)
        calls = []
        for address in {handle["address"] for handle in handles} & nodes.keys():
            strategy = NodeAffinitySchedulingStrategy(nodes[address], soft=False)
            calls.append(task.options(num_cpus=0, scheduling_strategy=strategy).remote(token, handles))
        ended = 0
        for one in calls:
            with contextlib.suppress(HostLostError):  # the node went away meanwhile, and all on it
                ended += self.get(one)
        return ended


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    with contextlib.closing(ScratchFolder()) as folder:
        yield folder.path


def _reason(text: str) -> str:
    """The telling part of an error of Ray, in one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason is known"]
    telling = [line for line in lines if re.search("because|died|dead|killed|lost", line)]
    shown = f"an error in its creation: {lines[-1]}" if "creation task" in text else (telling or lines)[-1]
    return shown if len(shown) <= 300 else f"{shown[:297]}..."
