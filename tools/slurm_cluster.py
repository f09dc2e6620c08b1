"""A real Slurm of several nodes on this machine's loopback, for tests and benchmarks.

Everything it needs (ports, munge's key and socket, state, logs) is in one folder of its own, so that nothing of the
machine's Slurm is used or changed. Its daemons end with ``stop``, by pid; needs root and Debian's packages
(``make slurm``).
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "squeue", "scontrol")
PATIENCE_S = 120.0

# With an epilog, the end of a job starts pending batch jobs at once. Without one they wait
# for a tick of one second, whatever SchedulerParameters says.
_CONF = """
ClusterName=t
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1,batch_sched_delay=0
Epilog=/bin/true
SlurmdParameters=config_overrides
ReturnToService=2
EnforcePartLimits=NO
MailProg=/bin/true
MinJobAge=3600
KillWait=5
SlurmdTimeout=30
TCPTimeout=2
MessageTimeout=10
PropagateResourceLimits=NONE
{nodes}
PartitionName=debug Nodes=n[1-{count}] Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
PartitionName=small Nodes=n[1-{count}] MaxNodes=1 MaxTime=10 State=UP OverSubscribe=NO
"""
_NODE = (
    "NodeName=n{n} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} Sockets=1 CoresPerSocket={cpus} "
    "ThreadsPerCore=1 RealMemory=4000 State=UNKNOWN"
)
_CGROUP = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainCores=no\nConstrainRAMSpace=no\n"


def missing() -> str | None:
    """What keeps a cluster from being started here, or None."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"Slurm ({', '.join(absent)}; run `make slurm` as root)"
    return None if os.geteuid() == 0 else "root, for Slurm's daemons"


class SlurmCluster:
    """Nodes ``n1``, ``n2``, ... of ``cpus`` each, in the partitions ``debug`` and ``small`` (one node, ten minutes).

    ``folder`` needs a short path: it holds a socket. Set ``environment`` for Slurm's commands.
    """

    def __init__(self, folder: Path, nodes: int = 3, cpus: int = 1) -> None:
        self.folder = folder
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self.conf = folder / "slurm.conf"
        self.environment = {"SLURM_CONF": str(self.conf)}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        host = socket.gethostname().partition(".")[0]
        for name in ("munge", "state", "spool"):
            (folder / name).mkdir(parents=True)
        (folder / "munge").chmod(0o755)
        key = folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        ports = _free_ports(nodes + 1)
        lines = [_NODE.format(n=n, host=host, port=port, cpus=cpus) for n, port in enumerate(ports[1:], 1)]
        self.conf.write_text(_CONF.format(host=host, port=ports[0], folder=folder, nodes="\n".join(lines), count=nodes))
        (folder / "cgroup.conf").write_text(_CGROUP)

    def start(self) -> None:
        """Start all daemons, and wait until every node is idle."""
        munge = self.folder / "munge"
        options = [f"--{name}={munge / name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
        self._start("munged", ["munged", "--foreground", "--force", f"--key-file={munge / 'key'}", *options])
        wait_for((munge / "socket").exists, "munge's socket")
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        wait_for(
            lambda: self.run("sinfo", "-h", "-t", "idle", "-p", "debug", "-o", "%D") == str(len(self.nodes)), "nodes"
        )

    def start_controller(self) -> None:
        """Start ``slurmctld``, and wait until it answers."""
        self._start("slurmctld", ["slurmctld", "-D", "-f", str(self.conf)])
        wait_for(lambda: "UP" in self.run("scontrol", "ping"), "slurmctld")

    def stop_controller(self) -> None:
        """End ``slurmctld``. It saves its state first: after a crash it might remember jobs that have ended since."""
        self._end("slurmctld", signal.SIGTERM)

    def start_node(self, node: str) -> None:
        """Start a node's ``slurmd``."""
        self._start(node, ["slurmd", "-D", "-N", node, "-f", str(self.conf)])

    def fail_node(self, node: str) -> None:
        """Take a node down, with its job: NODE_FAIL."""
        self._end(node, signal.SIGKILL)
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        self._kill_jobs(SLURMD_NODENAME=node)

    def restore_node(self, node: str) -> None:
        """Bring a failed node back."""
        self.start_node(node)
        self.run("scontrol", "update", f"nodename={node}", "state=resume")
        wait_for(lambda: self.run("sinfo", "-h", "-n", node, "-p", "debug", "-o", "%t") in ("idle", "alloc"), node)

    def run(self, *command: str) -> str:
        """What a Slurm command prints, without spaces around it; also what it complains of."""
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, check=False, timeout=60
        )
        return (done.stdout + done.stderr).strip()

    def queue(self) -> list[str]:
        """The names of the jobs that are pending or running."""
        return self.run("squeue", "-h", "-o", "%j").split()

    def stop(self) -> None:
        """Cancel all jobs, and end all daemons."""
        if self._daemons:
            with contextlib.suppress(subprocess.TimeoutExpired, AssertionError):
                self.run("scancel", "--user=root", "--signal=KILL", "--full")
                self.run("scancel", "--user=root")
                wait_for(lambda: not self.queue(), "the end of all jobs", 20)
        for name in list(self._daemons):
            self._end(name, signal.SIGTERM)
        self._kill_jobs()

    def _kill_jobs(self, **variables: str) -> None:
        """Kill what jobs have started, on nodes where these variables are set."""
        wanted = {**self.environment, **variables}.items()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                environ = process.environ()
                if wanted <= environ.items() and "SLURM_JOB_ID" in environ:
                    process.kill()

    def _start(self, name: str, command: list[str]) -> None:
        log = (self.folder / f"{name}.out").open("ab")
        with log:
            self._daemons[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **self.environment}
            )

    def _end(self, name: str, by: signal.Signals) -> None:
        process = self._daemons.pop(name)
        process.send_signal(by)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def running(cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """The cluster, started and at the end stopped."""
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def wait_for(condition: Callable[[], object], what: str, deadline_s: float = PATIENCE_S) -> None:
    """Wait until something is true."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"waited in vain for: {what}"
        time.sleep(0.05)


def _free_ports(count: int) -> list[int]:
    """Below the ports that outgoing connections get, and drawn, as several clusters may start at once."""
    found: list[int] = []
    for port in random.SystemRandom().sample(range(12000, 32000), 1000):
        with contextlib.closing(socket.socket()) as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            break
    return found
