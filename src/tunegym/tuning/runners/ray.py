"""The Ray runner: trials on the nodes of a Ray cluster. The scenario's files go there, outputs come back.

Each slot is an actor (see ``ray_host``) that holds a trial's resources and runs one trial after another: a call of an
actor costs half of a task, and it can be told of verdicts and of a stop while its job runs. Actors are created when a
trial finds none idle, up to ``slots``, and end with the driver. A dead actor or node is infrastructure: the trial runs
again on another actor.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import itertools
import logging
import os
import pickle
import re
import shlex
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from tunegym.core.errors import RunnerError
from tunegym.core.processes import boot_id
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.space import Choice
from tunegym.tuning.model.trial import SHELLS, CallJob, Job, JobHandle, JobResult, ReportCallback
from tunegym.tuning.runners import ray_host
from tunegym.tuning.runners.command import INTERRUPTED_TEARDOWN_S
from tunegym.tuning.runners.shipping import Scratch, Shipment, pack_scenario, put_small, remove, unpack

_log = logging.getLogger(__name__)

LOOK_S = 0.1
"""How often a waiting trial looks whether it is to stop."""
STOP_S = INTERRUPTED_TEARDOWN_S + 20.0
"""How long a job that is stopped may take to end, teardown included."""
CONNECT_S = 10.0
GONE_S = 45.0
"""How long a cluster may not answer before it counts as gone. After 60 s Ray itself ends this process."""
MOST_LOST = 60
"""How many actors in a row may be lost before they are ready."""
CREATION = "an error in its creation"
MISFIT_S = 60.0
"""How long a cluster may be without a node that is large enough before that is an error."""


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
    """The actor of a trial, its node or the way there is gone; the message says which."""


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
        self._closed = False
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # of all below
        self._shipped: tuple[Shipment, list[Any]] | None = None
        self._idle: list[_Host] = []
        self._busy = 0
        self._pending: dict[Any, Any] = {}  # actors that are not ready, by the answer that tells
        self._creations_lost = 0
        self._waiting = 0
        self._misfit_after: float | None = None
        self._misfit_looked = 0.0

    # the port -----------------------------------------------------------------------------------------

    def check(self, experiments: Sequence[Experiment]) -> None:
        """Refuse trials on several nodes, and a cluster none of whose nodes can hold a trial."""
        for experiment in experiments:
            if (most := _most_nodes(experiment)) > 1:
                raise RunnerError(
                    f"experiment {experiment.name} asks for num_nodes = {most}, but a trial runs on one node with "
                    'runner = "ray"',
                    hint="leave num_nodes out, or let the command itself use the cluster",
                )
        import_ray()
        if self._config.address is not None:  # one of our own would only be started to be asked
            self._cluster.connect()
            if misfit := self._misfit():
                raise RunnerError(misfit, hint=_MISFIT_HINT)

    def script(self, job: Job) -> str:
        """The resources and the command, as dry-run shows them."""
        where = self._config.address or "a cluster on this machine, for this run alone"
        lines = [f"# Ray: {where}; a trial takes {_amounts(self._config.wanted) or 'nothing'}"]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in job.env.items()]
        if isinstance(job, CallJob):
            arguments = ", ".join(f"{name}={value!r}" for name, value in job.arguments.items())
            return "\n".join([*lines, f"# Python: {job.target}({arguments})"])
        name = job.shell or "bash"
        shell = shlex.join([name, *SHELLS[Path(name).name], "-c"])
        texts = (("setup", job.setup), ("", job.command), ("teardown", job.teardown))
        for part, text in texts:
            if text is not None:
                lines.append(f"{shell} {shlex.quote(text)}" + (f"  # {part}" if part else ""))
        return "\n".join(lines)

    @property
    def waiting(self) -> str:
        """How many trials wait for a node, or for the cluster itself."""
        if away := self._cluster.away:
            return away
        if not self._waiting:
            return ""
        trials = "1 trial waits" if self._waiting == 1 else f"{self._waiting} trials wait"
        return f"{trials} for {_amounts(self._config.wanted) or 'a node'} on the Ray cluster"

    def run(self, job: Job, started: Callable[[JobHandle], None], watch: ReportCallback | None = None) -> JobResult:
        """Run one job to its end on some node, again if the node is lost, and bring its files back.

        Values that a lost attempt had reported are not reported again.

        Raises:
            RunnerError: the cluster can't be reached, no node can hold the job, tunegym isn't there, or a folder can't
                be used.
        """
        if self._closed:
            raise RunnerError("the runner is closed", hint="make a new one")
        if job.num_nodes > 1:
            raise RunnerError(f"job {job.name} asks for {job.num_nodes} nodes", hint="a trial runs on one Ray node")
        values = _ValuesOnce(watch) if watch is not None and job.reports else None
        nodes: list[str] = []
        while (host := self._take()) is not None:
            nodes.append(host.node)
            try:
                reply = self._attempt(host, job, started, values)
                if reply.result is not None:
                    self._bring_back(host, job.folder, reply)
                    self._give_back(host)
                    return replace(reply.result, nodes=tuple(nodes))
                what, hint = reply.broken
                fault: RunnerError | HostLostError = RunnerError(f"{host.node}: {what}", hint=hint)
            except HostLostError as error:
                fault = error
            except BaseException:
                self._drop(host)
                raise
            self._drop(host)
            if self._stops:
                break
            _log.warning("job %s, attempt %d on %s: %s", job.name, len(nodes), host.node, fault)
            if len(nodes) > self._config.retries:
                if isinstance(fault, RunnerError):
                    raise fault
                error = f"its Ray worker was lost in attempt {len(nodes)}: {fault}"
                return JobResult("exited", error=error, nodes=tuple(nodes))
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
        if not ours:
            return 0
        here = [handle for handle in ours if handle.get("boot") == boot_id()]
        ended = ray_host.end_leftovers(self._token, here) if here else 0
        elsewhere = [handle for handle in ours if handle.get("boot") != boot_id()]
        if elsewhere and self._config.address is not None:
            self._cluster.connect()
            ended += self._cluster.end_leftovers(self._token, elsewhere)
        return ended

    def close(self) -> None:
        """Release the actors, and the cluster if it is our own. No ``run`` may be under way. Twice is fine."""
        self._closed = True
        with self._lock:
            idle, self._idle = self._idle, []
            pending, self._pending = list(self._pending.values()), {}
        for actor in pending:
            self._cluster.kill(actor)
        self._cluster.dismiss([host.actor for host in idle])
        self._cluster.close()

    # one attempt --------------------------------------------------------------------------------------

    def _attempt(
        self, host: _Host, job: Job, started: Callable[[JobHandle], None], watch: _ValuesOnce | None
    ) -> ray_host.Reply:
        """Run the job on the host. Raises ``HostLostError``."""
        started(host.handle)
        if watch is not None:
            watch.seen = 0
        number = next(self._numbers)
        call, actor = self._cluster.call, host.actor
        ended = call(actor.run, number, pickle.dumps(job), watch is not None)
        value = call(actor.next_report, number, None) if watch is not None else None
        deadline, told = float("inf"), False
        while (packed := self._cluster.answer(ended) if value is None else None) is None:
            if value is not None and watch is not None and (ready := self._cluster.wait([ended, value])):
                report = self._cluster.get(value) if ended not in ready else None
                told = told or (report is not None and watch(*report))
                value = None if report is None else call(actor.next_report, number, told)
            if self._stops and deadline == float("inf"):
                call(actor.stop)
                deadline = time.monotonic() + STOP_S
            if self._stops > 1 or time.monotonic() > deadline:
                raise HostLostError("it doesn't stop")
        reply: ray_host.Reply = pickle.loads(packed)
        if self._stops and not told and reply.result is not None and reply.result.ending == "pruned":
            reply = replace(reply, result=replace(reply.result, ending="interrupted"))
        return reply

    def _bring_back(self, host: _Host, folder: str, reply: ray_host.Reply) -> None:
        def pieces() -> Iterator[bytes]:
            yield reply.files
            while reply.more and (piece := self._cluster.get(self._cluster.call(host.actor.piece))):
                yield piece

        if reply.small is not None:
            put_small(reply.small, folder)
        elif reply.files:
            unpack(pieces(), folder)
        elif reply.result is not None and reply.result.ending != "interrupted":
            remove(folder)

    # hosts --------------------------------------------------------------------------------------------

    def _take(self) -> _Host | None:
        """An idle host, or a new one; waits until there is one. None if the run stops."""
        with self._lock:
            if self._idle and not self._stops:
                self._busy += 1
                return self._idle.pop()
            self._waiting += 1
        try:
            self._cluster.connect()
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
                self._complain_of_misfit()
            return None
        finally:
            with self._lock:
                self._waiting -= 1

    def _create(self) -> None:
        if self._shipped is None:
            shipment, content = pack_scenario(self._scenario_dir)
            self._shipped = shipment, [self._cluster.put(content)]
        actor = self._cluster.create(self._config, self._token, *self._shipped)
        self._pending[self._cluster.call(actor.describe)] = actor

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
            if self._creations_lost > MOST_LOST or CREATION in str(error):
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

    def _give_back(self, host: _Host) -> None:
        with self._lock:
            self._busy -= 1
            self._idle.append(host)

    def _drop(self, host: _Host) -> None:
        """Forget a host that failed, and idle ones on the same node, which is probably gone."""
        with self._lock:
            self._busy -= 1
            doubtful = [one for one in self._idle if one.node == host.node]
            self._idle = [one for one in self._idle if one not in doubtful]
        for one in (host, *doubtful):
            self._cluster.kill(one.actor)

    def _misfit(self) -> str:
        """Why no node can hold a trial, however long it waits; empty if one can."""
        wanted, nodes = self._config.wanted, self._cluster.resources()
        if any(all(has.get(name, 0) >= amount for name, amount in wanted.items()) for has in nodes.values()):
            return ""
        shown = [f"{node} has {_amounts({name: has.get(name, 0) for name in wanted})}" for node, has in nodes.items()]
        more = f" and {len(shown) - 8} nodes more" if len(shown) > 8 else ""
        return f"a trial takes {_amounts(wanted)}, and no node has that: {'; '.join(shown[:8]) or 'no node'}{more}"

    def _complain_of_misfit(self) -> None:
        """At once if it never fitted; after a while if the nodes that were large enough are gone."""
        now = time.monotonic()
        with self._lock:
            if now < self._misfit_looked + 1.0 or self._cluster.away:
                return
            self._misfit_looked = now
        misfit = self._misfit()
        if not misfit:
            self._misfit_after = now + MISFIT_S
        elif self._misfit_after is None or now > self._misfit_after:
            raise RunnerError(misfit, hint=_MISFIT_HINT)


_MISFIT_HINT = "ask for less in [system] (num_cpus, num_gpus, resources), or add a node that is large enough"


class _ValuesOnce:
    """A watch over several attempts: what a lost attempt has told already is not told again."""

    def __init__(self, watch: ReportCallback) -> None:
        self._watch = watch
        self._told = 0
        self.seen = 0  # in this attempt

    def __call__(self, step: int, value: float) -> bool:
        self.seen += 1
        if self.seen <= self._told:
            return False
        self._told = self.seen
        return self._watch(step, value)


def _most_nodes(experiment: Experiment) -> int:
    space, drawn = experiment.space, experiment.env_params.params
    domain = space.knobs.get("num_nodes") or ("num_nodes" in drawn and drawn["num_nodes"].domain)
    if not domain:
        return int(space.fixed.get("num_nodes", 1))
    return int(max(domain.values) if isinstance(domain, Choice) else domain.high)


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())


# the cluster ------------------------------------------------------------------------------------------


def import_ray() -> ModuleType:
    """The package. Raises ``RunnerError`` if it isn't installed."""
    if importlib.util.find_spec("ray") is None:
        raise RunnerError('runner = "ray" needs the package ray', hint="pip install 'tunegym[ray]'")
    import ray

    return ray


class Cluster:
    """This process's connection to one Ray cluster: the one at ``address``, or one that is started for us alone.

    Calls of ``wait`` and ``get`` raise ``HostLostError`` for an actor that is gone.
    """

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._ray: Any = None
        self._owns = False
        # A thread for the life of the connection: the processes of a cluster of our own end with the thread that
        # started them.
        self._keeper = ThreadPoolExecutor(1, "tunegym-ray")
        self._scratch: Scratch | None = None
        self._head: tuple[str, int] | None = None
        self._looked = self._answered = 0.0
        self.away = ""
        """That the cluster doesn't answer; empty while it does."""

    def connect(self) -> None:
        """Connect, if that wasn't done. Raises ``RunnerError``: the cluster can't be reached."""
        if self._ray is not None:
            return
        with self._lock:
            if self._ray is not None:
                return
            ray = import_ray()
            if ray.is_initialized():
                self._check_present(ray)
            else:
                self._keeper.submit(self._begin, ray).result()
                self._owns = True
            host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
            self._head = (host.strip("[]"), int(port)) if port.isdigit() else None
            self._looked = self._answered = time.monotonic()
            self._ray = ray

    def _check_present(self, ray: Any) -> None:
        """This program may have connected to Ray before; it can't be connected twice."""
        present = ray.get_runtime_context().gcs_address
        if self._address not in (None, "auto", present):
            raise RunnerError(
                f"this process is connected to the Ray cluster at {present}, and the scenario names {self._address}",
                hint="call ray.shutdown() before, or name the same cluster",
            )

    def _begin(self, ray: Any) -> None:
        logging.getLogger("ray").setLevel(logging.ERROR)  # it would complain that this isn't the main thread
        with _own_sigterm():
            self._join(ray) if self._address is not None else self._start(ray)

    @staticmethod
    def _end(ray: Any) -> None:
        with _own_sigterm():
            ray.shutdown()

    def _join(self, ray: Any) -> None:
        assert self._address is not None
        hint = "is the cluster up? `ray status --address ADDRESS` must answer on this machine, a node of the cluster"
        try:
            if found := re.fullmatch(r"\[?([^/]+?)\]?:(\d+)", self._address):
                # Ray itself would try for a minute.
                socket.create_connection((found[1], int(found[2])), CONNECT_S).close()
            ray.init(address=self._address, namespace="tunegym", **_QUIET)
        except (OSError, RuntimeError, ValueError) as error:
            raise RunnerError(f"the Ray cluster at {self._address} can't be reached: {error}", hint=hint) from error

    def _start(self, ray: Any) -> None:
        self._scratch = Scratch()
        self._scratch.sweep()
        folder = self._scratch.use(f"ray-{uuid.uuid4().hex[:8]}")
        loopback = {"_node_ip_address": "127.0.0.2"} if sys.platform == "linux" else {}
        usage = os.environ.get(_USAGE)
        os.environ.setdefault(_USAGE, "0")  # it is no business of anyone's
        try:
            # "local" whatever RAY_ADDRESS and running clusters say
            ray.init(address="local", include_dashboard=False, _temp_dir=str(folder), **loopback, **_QUIET)
        except (OSError, RuntimeError, ValueError) as error:
            hint = f"is there room in {folder.parent}? its path must be short, too"
            raise RunnerError(f"no Ray cluster can be started on this machine: {error}", hint=hint) from error
        finally:
            if usage is None:
                del os.environ[_USAGE]

    def close(self) -> None:
        """Disconnect, and end the cluster if it was started for us. Twice is fine."""
        with self._lock:
            ray, self._ray = self._ray, None
            if ray is not None and self._owns:
                self._keeper.submit(self._end, ray).result()
            self._keeper.shutdown()
            if self._scratch is not None:
                self._scratch.close()

    def resources(self) -> dict[str, dict[str, float]]:
        """What each living node has in all, by its address and id."""
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        return {f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})": node["Resources"] for node in nodes}

    def create(self, config: RayConfig, *arguments: Any) -> Any:
        """A new host, which may have to wait for resources."""
        made = self._ray.remote(ray_host.TrialHost).options(
            num_cpus=config.num_cpus,
            num_gpus=config.num_gpus,
            resources=config.resources or None,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=4,
            scheduling_strategy="SPREAD",
        )
        return made.remote(*arguments)

    def put(self, value: Any) -> Any:
        """A reference to the value, for any node to fetch."""
        return self._ray.put(value)

    def call(self, method: Any, *arguments: Any) -> Any:
        """Call a method of an actor; a reference to its answer."""
        with _losses(self._ray):
            return method.remote(*arguments)

    def wait(self, references: list[Any]) -> list[Any]:
        """Those of which the answer is there; waits a moment for the first.

        Raises ``RunnerError``: the cluster has not answered for long. Before that, jobs go on without its head.
        """
        ready: list[Any] = []
        if references:
            with _losses(self._ray):
                ready = self._ray.wait(references, num_returns=1, timeout=LOOK_S)[0]
        else:
            time.sleep(LOOK_S)
        if not ready:
            self._ask_head()
        return ready

    def answer(self, reference: Any) -> Any:
        """As ``get``, but None if the answer doesn't come within a moment; cheaper than ``wait``."""
        with _losses(self._ray):
            try:
                return self._ray.get(reference, timeout=LOOK_S)
            except self._ray.exceptions.GetTimeoutError:
                pass
        self._ask_head()
        return None

    def _ask_head(self) -> None:
        """Take note of whether the cluster's head answers, every two seconds."""
        now = time.monotonic()
        if self._head is None or now < self._looked + 2.0:
            return
        self._looked = now
        try:
            socket.create_connection(self._head, 2.0).close()
        except OSError as error:
            missing = now - self._answered
            self.away = f"the Ray cluster at {self._head[0]}:{self._head[1]} doesn't answer, for {missing:.0f} s now"
            if missing > GONE_S:
                hint = "start the cluster, then resume the run"
                raise RunnerError(f"{self.away}: {error}", hint=hint) from error
        else:
            self._answered, self.away = now, ""

    def get(self, reference: Any) -> Any:
        """An answer."""
        with _losses(self._ray):
            return self._ray.get(reference)

    def kill(self, actor: Any) -> None:
        """End an actor now."""
        if self._ray is not None:
            with contextlib.suppress(Exception):
                self._ray.kill(actor)

    def dismiss(self, actors: list[Any]) -> None:
        """Let idle actors clean up, and end them."""
        if self._ray is None or not actors:
            return
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.wait([actor.close.remote() for actor in actors], num_returns=len(actors), timeout=10.0)
        for actor in actors:
            self.kill(actor)

    def end_leftovers(self, token: str, handles: list[dict[str, Any]]) -> int:
        """End what an earlier driver left on other machines that are still in the cluster."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes = {node["NodeManagerAddress"]: node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        calls = []
        for address in {handle["address"] for handle in handles} & nodes.keys():
            there = [handle for handle in handles if handle["address"] == address]
            strategy = NodeAffinitySchedulingStrategy(nodes[address], soft=False)
            task = self._ray.remote(ray_host.end_leftovers).options(num_cpus=0, scheduling_strategy=strategy)
            calls.append(task.remote(token, there))
        ended = 0
        for one in calls:
            with contextlib.suppress(HostLostError):  # the node went away meanwhile, and all on it
                ended += self.get(one)
        return ended


_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
_USAGE = "RAY_USAGE_STATS_ENABLED"


@contextlib.contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep our handler of SIGTERM: Ray puts in its own, and at its end takes out any.

    In C, since ``signal.signal`` works in the main thread only.
    """
    get, put = ctypes.pythonapi.PyOS_getsig, ctypes.pythonapi.PyOS_setsig
    get.restype = put.restype = ctypes.c_void_p
    put.argtypes = [ctypes.c_int, ctypes.c_void_p]
    handler = get(signal.SIGTERM)
    try:
        yield
    finally:
        put(signal.SIGTERM, handler)


@contextlib.contextmanager
def _losses(ray: Any) -> Iterator[None]:
    """Turn Ray's errors into ours."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if error.cause is not None else error
        raise RunnerError(f"a Ray worker failed: {type(cause).__name__}: {cause}", hint="resume the run") from error
    except ray.exceptions.RayError as error:
        raise HostLostError(_reason(str(error))) from error


def _reason(text: str) -> str:
    """The telling part of an error of Ray, in one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.search("because|died|dead|killed|lost", line)]
    shown = telling[-1] if telling else lines[-1] if lines else "no reason is known"
    if "creation task" in text:
        shown = f"{CREATION}: {lines[-1]}"
    return shown if len(shown) <= 300 else f"{shown[:297]}..."
