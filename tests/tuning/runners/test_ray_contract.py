"""The contract of runners, on a real Ray cluster of three simulated nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunegym.testing.runners import RunnerSuite
from tunegym.tuning.model.trial import CommandJob, JobHandle
from tunegym.tuning.runners.ray import RayConfig, RayRunner


class TestRayRunner(RunnerSuite):
    @pytest.fixture(autouse=True)
    def _on_the_cluster(self, token: str, ray_connected: str) -> None:
        self._token, self._address = token, ray_connected

    def make_runner(self, tmp_path: Path) -> RayRunner:
        # The suite's jobs talk to each other in tmp_path; in a scenario's folder, each slot has its own copy.
        return RayRunner(self._token, 2, RayConfig(address=self._address), tmp_path / "scenario")

    def test_command_runs_in_its_folder_with_its_environment(self, runner: RayRunner, tmp_path: Path) -> None:
        """The folder is one of the node's; all that is in it comes back."""
        text = 'pwd; echo "$KNOB" >&2; echo x > made; [ "$PWD" = "$HERE" ]'
        folder = str(tmp_path / "trials" / "1")
        job = CommandJob("1", folder, text, env={"KNOB": "seven", "HERE": folder})
        seen: list[JobHandle] = []
        result = runner.run(job, seen.append)
        assert (result.ending, result.exit_code, result.error) == ("exited", 0, None)
        assert {path.name for path in Path(folder).iterdir()} == {"made", "stdout.txt", "stderr.txt"}
        assert not any(Path(Path(folder, "stdout.txt").read_text().strip()).iterdir()), "the node keeps nothing"
        assert Path(folder, "stderr.txt").read_text() == "seven\n"
        assert len(seen) == 1
        assert seen[0]["node"][:8] in result.nodes[0]
