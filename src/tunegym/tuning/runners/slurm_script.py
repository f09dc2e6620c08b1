"""What the Slurm runner submits: its settings, and the scripts that follow from them and a job."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tunegym.core.text import escaped
from tunegym.tuning.model.trial import SHELLS, CommandJob, Job
from tunegym.tuning.model.values import counted
from tunegym.tuning.runners import node

SCRIPT = "job.sh"
_TIME = re.compile(r"(\d+)([smh])\Z|\d+-\d+(:\d+){0,2}\Z|\d+(:\d+){1,2}\Z")
_OPTION = re.compile(r"--?[A-Za-z][\w-]*(=.*)?\Z", re.DOTALL)
_OWN_OPTIONS = re.compile(
    r"(--(job-name|output|error|chdir|array|wrap|wait|parsable|requeue|no-requeue|nodes|hold|test-only|dependency)\b|"
    r"-[JoeDaWNHd])"
)
_MOST_LINES, _LONGEST_LINE = 20, 200


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
        if not 0 < self.poll_interval_s < float("inf"):
            raise ValueError("poll_interval_s must be above 0")
        if self.retries < 0:
            raise ValueError("retries must be at least 0")
        if self.gpus_per_node is not None and not re.fullmatch(r"([\w.-]+:)?[1-9]\d*", str(self.gpus_per_node)):
            raise ValueError('gpus_per_node must be at least 1, or a type and a number such as "a100:4"')
        if self.allocation_nodes is not None and not (self.single_sbatch and self.allocation_nodes >= 1):
            raise ValueError("allocation_nodes must be at least 1, and needs single_sbatch = true")
        for name in self.env:
            if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
                raise ValueError(f"env: {name!r} can't be the name of an environment variable")
        for option in self.extra_sbatch_args:
            if not _OPTION.match(option) or "\n" in option:
                raise ValueError(f'extra_sbatch_args: {option!r} is not one option: write for example "--mem=4G"')
            if own := _OWN_OPTIONS.match(option):
                raise ValueError(
                    f"extra_sbatch_args: tunegym sets {own[0]} itself (nodes are an experiment's num_nodes)"
                )


# scripts ------------------------------------------------------------------------------------------------


def job_script(config: SlurmConfig, name: str, job: Job, control: str, exclude: Sequence[str], step: bool) -> str:
    """The script that runs a job: what ``sbatch`` is given, or in an allocation what each of its steps runs."""
    lines = [] if step else _options(config, name, job.num_nodes, exclude)
    lines += ["", *_described(job)]
    lines += [f"export {key}={shlex.quote(value)}" for key, value in config.env.items()]
    if step and job.num_nodes > 1:
        lines.append(
            '[ "$SLURM_PROCID" = 0 ] || exec sleep infinity  # the first node runs the job, and has the others'
        )
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
    return ["srun", *options, "--wait=1", "--input=none", f"--output={output}", "bash", SCRIPT]


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


def _described(job: Job) -> Iterator[str]:
    """What the node will run, as comments."""
    if not isinstance(job, CommandJob):
        arguments = ", ".join(f"{key}={value!r}" for key, value in job.arguments.items())
        yield _comment(f"call: {job.target}({arguments})")
        return
    for part in ("setup", "command", "teardown"):
        first, *lines = (getattr(job, part) or "").splitlines() or [""]
        if first or lines:
            yield _comment(f"{part}: {first}")
            yield from (_comment(f"  {line}") for line in lines[:_MOST_LINES])
        if len(lines) > _MOST_LINES:
            yield _comment(f"  ... ({counted(len(lines) - _MOST_LINES, 'more line')})")


def _comment(text: str) -> str:
    text = escaped(text)
    return f"# {text if len(text) <= _LONGEST_LINE else text[: _LONGEST_LINE - 3] + '...'}".rstrip()


def with_prefix(job: Job, prefix: str | None) -> Job:
    """The job whose parts are run by ``prefix shell -c text``."""
    if prefix is None or not isinstance(job, CommandJob):
        return job
    shell = job.shell or "bash"
    words = [shell, *SHELLS[Path(shell).name], "-c"]

    def wrapped(text: str | None) -> str | None:
        return None if text is None else f"{prefix} {shlex.join([*words, text])}"

    command = wrapped(job.command) or ""
    return replace(job, command=command, setup=wrapped(job.setup), teardown=wrapped(job.teardown), shell=None)
