"""What the Slurm runner submits, and how it reads Slurm's answers. Nothing here needs a cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tunegym.tuning.model.trial import CallJob, CommandJob, JobResult, Stream
from tunegym.tuning.runners import node
from tunegym.tuning.runners.slurm import SlurmConfig, SlurmRunner, judged
from tunegym.tuning.runners.slurm_queue import QueueEntry

GOLDEN = Path(__file__).with_name("golden")
TRAIN = CommandJob("17", "trials/000017", "python train.py --lr 0.1 | tee 'my log'", num_nodes=1)
ALL_KEYS = {
    "partition": "gpu",
    "account": "lab",
    "qos": "high",
    "time_limit": "90m",
    "gpus_per_node": 4,
    "exclude_nodes": ("n7", "n8"),
    "extra_sbatch_args": ("--mem=16G", "--constraint=a100&nvlink", "--comment=it's a test"),
    "env": {"OMP_NUM_THREADS": "4", "NOTE": "it's $HOME"},
}
SCRIPTS: dict[str, tuple[dict[str, Any], CommandJob | CallJob]] = {
    "plain": ({}, TRAIN),
    "all_keys": (ALL_KEYS, CommandJob("17.2", "trials/000017/repeat-2", "srun ./solve", num_nodes=4)),
    "gpu_type": ({"gpus_per_node": "a100:2", "time_limit": "1-12"}, TRAIN),
    "parts": ({}, CommandJob("3", "trials/3", "a\n\tb\r\n#SBATCH --x\n" + "c\n" * 30, setup="s" * 300, teardown="t")),
    "container": (
        {"command_prefix": "apptainer exec --nv image.sif"},
        CommandJob("3", "trials/000003", "echo 'it''s' $X", setup="make", teardown="rm -r x", shell="/bin/sh"),
    ),
    "container_by_srun": ({"command_prefix": "srun --container-image=nvcr.io/pytorch --container-mounts=$PWD"}, TRAIN),
    "call": ({}, CallJob("5", "trials/000005", "model:train", {"lr": 0.1, "name": "it's"}, paths=("/home/me",))),
    "single_sbatch": ({"single_sbatch": True, "env": {"A": "1"}, "time_limit": "2h"}, TRAIN),
    "single_sbatch_shared": (
        {"single_sbatch": True, "allocation_nodes": 2, "gpus_per_node": "a100:4", "partition": "gpu"},
        CommandJob("3", "trials/000003", "srun ./solve", num_nodes=2),
    ),
    "odd_folder": ({}, CommandJob("1", "a b/it's $X\n\\%j", "true")),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name: str) -> None:
    """Every generated script is one that bash can read, and looks as its golden file."""
    settings, job = SCRIPTS[name]
    text = SlurmRunner("0123456789abcdef" * 2, 3, SlurmConfig(**settings)).script(job)
    assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).stderr == ""
    assert text.replace(sys.executable, "PYTHON") == (GOLDEN / f"{name}.sh").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"time_limit": "30"}, "time_limit must be a length of time"),
        ({"time_limit": "ten minutes"}, "time_limit must be a length of time"),
        ({"poll_interval_s": 0.0}, "poll_interval_s must be above 0"),
        ({"retries": -1}, "retries must be at least 0"),
        ({"gpus_per_node": 0}, "gpus_per_node must be at least 1"),
        ({"gpus_per_node": "a100"}, "gpus_per_node must be at least 1"),
        ({"allocation_nodes": 2}, "needs single_sbatch"),
        ({"extra_sbatch_args": ("--mem 4G",)}, "is not one option"),
        ({"extra_sbatch_args": ("mem=4G",)}, "is not one option"),
        ({"extra_sbatch_args": ("--output=x",)}, "one that tunegym sets itself"),
        ({"extra_sbatch_args": ("-N2",)}, "one that tunegym sets itself"),
        ({"extra_sbatch_args": ("-Jname",)}, "one that tunegym sets itself"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SlurmConfig(**settings)
    SlurmConfig(extra_sbatch_args=("--mem=4G", "-c8", "--nodelist=n1", "--exclusive"))


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("FAILED", "NonZeroExitCode", ("exited", 7, "the job exited with 7 on n2 without a result: said")),
        ("CANCELLED", "None", ("exited", None, "the job was cancelled by someone else on n2")),
        ("TIMEOUT", "TimeLimit", ("timed_out", None, "ended by Slurm after time_limit = 1h")),
        ("OUT_OF_MEMORY", "OutOfMemory", ("exited", -9, "out of memory on n2")),
        ("FAILED", "BadConstraints", ("exited", None, "Slurm can never run this job: BadConstraints")),
        ("NODE_FAIL", "None", "the job ended with NODE_FAIL on n2"),
        ("BOOT_FAIL", "None", "the job ended with BOOT_FAIL on n2"),
        ("PREEMPTED", "None", "the job ended with PREEMPTED on n2"),
        ("LOST", "gone", "the job ended with LOST on n2 (gone)"),
        ("FAILED", "JobLaunchFailure", "the job ended with FAILED on n2 (JobLaunchFailure)"),
    ],
)
def test_states(state: str, reason: str, expected: tuple[str, int | None, str] | str) -> None:
    """A job that left no result is judged by its state; a fault of the cluster is no result."""
    found = judged(QueueEntry("9", state, 7 << 8, nodes="n2", reason=reason), "1h", ": said")
    if isinstance(expected, str):
        assert not isinstance(found, JobResult)
        assert found.reason == expected
        assert found.nodes == ("n2",)
    else:
        assert isinstance(found, JobResult)
        assert (found.ending, found.exit_code, found.error) == expected


@pytest.mark.parametrize(
    "job",
    [
        CommandJob(
            "1", "/x", "a\udc80\n", env={"A": "ü"}, timeout_s=1.5, stream=Stream("a", "b"), shell="sh", num_nodes=2
        ),
        CallJob("1", "/x", "m:f", {"a": [1, 2.5, None, True], "b": "\udcff"}, paths=("/p",), reports=True),
    ],
)
def test_a_job_survives_its_document(job: CommandJob | CallJob) -> None:
    document = node.job_document(job)
    assert node.job_of(document) == job
    assert node.job_document(node.job_of(document)) == document
