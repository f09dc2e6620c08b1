"""What the Slurm runner submits: its settings, and the scripts that follow from them and a job."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tunegym.core.text import escaped
from tunegym.tuning.model.trial import SHELLS, CommandJob, Job, what_runs
from tunegym.tuning.runners import node

_TIME = re.compile(r"(\d+)([smh])\Z|\d+-\d+(:\d+){0,2}\Z|\d+(:\d+){1,2}\Z")
_FREE_OPTION = re.compile(r"(?!--(job-name|output|nodes|array|wait|requeue)\b|-[JoNaW])--?[A-Za-z][\w-]*(=.*)?\Z")
"""One option of ``sbatch`` that tunegym doesn't set itself."""


@dataclass(frozen=True, kw_only=True)
class SlurmConfig:
    """The settings of ``slurm`` in ``[system]``. Unset ones are left to Slurm."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time_limit: str | None = None  # of each job: ``90s``, ``10m``, ``2h``, or Slurm's ``HH:MM:SS`` and ``D-HH``
    gpus_per_node: int | str | None = None  # a number, or Slurm's ``type:number``
    nodes: tuple[str, ...] = ()  # use these only; names, or Slurm's ``n[1-8]``
    exclude_nodes: tuple[str, ...] = ()
    extra_sbatch_args: tuple[str, ...] = ()
    command_prefix: str | None = None  # before the shell of each part of a command, such as ``apptainer exec i.sif``
    env: Mapping[str, str] = field(default_factory=dict)
    poll_interval_s: float = 5.0
    retries: int = 2  # how often a job is run again after a fault of the cluster
    single_sbatch: bool = False  # one allocation for all trials, each a step of it
    allocation_nodes: int | None = None  # nodes of that allocation; enough for all slots unless set

    def __post_init__(self) -> None:
        """Refuse impossible settings."""
        if self.time_limit is not None and not _TIME.match(self.time_limit):
            raise ValueError('time_limit must be a length of time, such as "90s", "10m", "2h", "1:30:00" or "2-00"')
        if self.poll_interval_s <= 0:
            raise ValueError("poll_interval_s must be above 0")
        if self.retries < 0:
            raise ValueError("retries must be at least 0")
        if self.gpus_per_node is not None and not re.fullmatch(r"([\w.-]+:)?[1-9]\d*", str(self.gpus_per_node)):
            raise ValueError('gpus_per_node must be at least 1, or a type and a number such as "a100:4"')
        if self.allocation_nodes is not None and not (self.single_sbatch and self.allocation_nodes >= 1):
            raise ValueError("allocation_nodes must be at least 1, and needs single_sbatch = true")
        for option in self.extra_sbatch_args:
            if not _FREE_OPTION.match(option):
                what = "is not one option, or one that tunegym sets itself (nodes: an experiment's num_nodes)"
                raise ValueError(f'extra_sbatch_args: {option!r} {what}: write for example "--mem=4G"')


def job_script(config: SlurmConfig, name: str, job: Job, control: str, exclude: Sequence[str]) -> str:
    """The script that runs a job: what ``sbatch`` is given, or in an allocation what each of its steps runs."""
    lines = [] if config.single_sbatch else _options(config, name, job.num_nodes, exclude)
    lines += ["", *(f"# {escaped(line)}".rstrip() for line in what_runs(job).splitlines())]
    lines += [f"export {key}={shlex.quote(value)}" for key, value in config.env.items()]
    if config.single_sbatch and job.num_nodes > 1:  # the first node runs the job, and has the others
        lines.append('[ "$SLURM_PROCID" = 0 ] || exec sleep infinity')
    program = [sys.executable, "-P", "-m", node.__name__, control]
    return "\n".join(["#!/bin/bash", *lines, f"exec {shlex.join(program)}", ""])


def holder_script(config: SlurmConfig, name: str, nodes: int, shares: int, exclude: Sequence[str]) -> str:
    """The script of an allocation whose steps are trials, ``shares`` on each node: it holds the nodes."""
    lines = [*_options(config, name, nodes, exclude), f"#SBATCH --ntasks-per-node={shares}"]
    return "\n".join(["#!/bin/bash", *lines, "", "exec sleep infinity", ""])


def step_command(
    config: SlurmConfig, allocation: str, job: Job, cpus: int | str, shares: int, output: str
) -> list[str]:
    """The ``srun`` that runs a job in an allocation, with ``cpus`` of each of its nodes."""
    options = [f"--jobid={allocation}", f"--nodes={job.num_nodes}", f"--ntasks={job.num_nodes}", "--ntasks-per-node=1"]
    options += ["--exact", f"--cpus-per-task={cpus}", *(["--mem=0"] if shares > 1 else [])]  # memory is shared
    if config.gpus_per_node is not None:
        kind, colon, count = str(config.gpus_per_node).rpartition(":")
        options.append(f"--gpus-per-node={kind}{colon}{max(int(count) // shares, 1)}")
    return ["srun", *options, "--wait=1", "--input=none", f"--output={output}", "bash", node.SCRIPT]


def _options(config: SlurmConfig, name: str, nodes: int, exclude: Sequence[str]) -> list[str]:
    given = {
        "job-name": name,
        "nodes": nodes,
        "partition": config.partition,
        "account": config.account,
        "qos": config.qos,
        "time": config.time_limit and _slurm_time(config.time_limit),
        "gpus-per-node": config.gpus_per_node,
        "exclude": ",".join(exclude) or None,
    }
    options = [f"--{key}={value}" for key, value in given.items() if value is not None]
    # Slurm would run a job again in the same folder, without our knowing.
    return [f"#SBATCH {shlex.quote(one)}" for one in [*options, "--no-requeue", *config.extra_sbatch_args]]


def _slurm_time(text: str) -> str:
    match = _TIME.match(text)
    if match is None or match[1] is None:
        return text
    seconds = int(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def with_prefix(job: Job, prefix: str | None) -> Job:
    """The job whose parts are run by ``prefix shell -c text``."""
    if prefix is None or not isinstance(job, CommandJob):
        return job
    shell = job.shell or "bash"
    words = shlex.join([shell, *SHELLS[Path(shell).name], "-c"])
    given = {"setup": job.setup, "command": job.command, "teardown": job.teardown}
    parts = {part: f"{prefix} {words} {shlex.quote(text)}" for part, text in given.items() if text is not None}
    return replace(job, **parts, shell=None)
