"""The contract of runners, on a real Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tuning.runners.conftest import runner_on
from tools.slurm_cluster import SlurmCluster

from tunegym.testing.runners import RunnerSuite
from tunegym.tuning.runners.slurm import SlurmRunner


class TestSlurmRunner(RunnerSuite):
    @pytest.fixture(autouse=True)
    def _cluster(self, slurm: SlurmCluster) -> None:
        """A cluster whose nodes see the test's folder."""

    def make_runner(self, tmp_path: Path) -> SlurmRunner:
        return runner_on(slots=2)


@pytest.mark.slow
class TestStepsOfOneAllocation(TestSlurmRunner):
    def make_runner(self, tmp_path: Path) -> SlurmRunner:
        return runner_on(slots=2, single_sbatch=True)
