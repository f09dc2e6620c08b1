"""What tests of whole runs share."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import SECRET, Serve

from tunegym.app.run import Watch, run
from tunegym.core.files import dump_toml
from tunegym.core.processes import marked
from tunegym.core.stop import Stop
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.reports.results import find_run
from tunegym.tuning.servers.protocol import TOKEN_VARIABLE
from tunegym.tuning.stores import reader

Start = Callable[..., subprocess.Popen[str]]
Write = Callable[..., Path]
REAPED_S = 20.0


def experiment(name: str = "e", **keys: Any) -> dict[str, Any]:
    """A grid search that measures ``value``; ``args`` are the ``cmd_args``, and ``None`` removes a key.

    A function runs in the driver's process. A command prints ``value=``. Nothing is confirmed.
    """
    args = keys.pop("args")
    kind: dict[str, Any] = {"workload": "python", "isolate": False}
    if "command" in args:
        kind = {"workload": "command", "metrics": {"value": {"regex": r"value=(\S+)"}}}
    defaults = {"agent": "grid_search", "agent_metrics": ["value"], "cmd_args": args, "confirm": "off", **kind}
    if "objectives" not in keys:
        defaults["agent_reward_function"] = "identity"
    return {"name": name, **{key: value for key, value in (defaults | keys).items() if value is not None}}


def document(
    *experiments: dict[str, Any], name: str = "s", seed: int = 0, slots: int = 1, **keys: Any
) -> dict[str, Any]:
    """A scenario of experiments; without any, of ``experiment(**keys)``."""
    system = {"slots": slots}
    return {"name": name, "seed": seed, "system": system, "experiments": list(experiments) or [experiment(**keys)]}


@pytest.fixture
def write_scenario(write: Write) -> Write:
    """Write ``document(...)`` into a file."""
    return lambda *experiments, file="scenario.toml", **keys: write(file, dump_toml(document(*experiments, **keys)))


def embedded(run: Path) -> dict[str, Any]:
    """The data in a run's ``report.html``."""
    found = re.search(r'id="data">(.*?)</script>', (run / "report.html").read_text(encoding="utf-8"), re.DOTALL)
    assert found
    return json.loads(found[1])


class StopAfter(Watch):
    """Stops a run once it has closed so many trials."""

    def __init__(self, trials: int) -> None:
        self.stop, self._left = Stop(), trials

    def trial_closed(self, trial: Trial) -> None:
        self._left -= 1
        if not self._left:
            self.stop.request()


def run_until(trials: int, source: Any, output: str = "results") -> Path:
    """Run a scenario, interrupted once it has closed so many trials; returns the run's folder."""
    watch = StopAfter(trials)
    assert run(source, output=output, watch=watch, stop=watch.stop) == 130
    return find_run(Path(output))


def closed(output: Path) -> int:
    """How many trials a run has closed so far."""
    return sum(reader.scan(journal).closed for journal in output.glob(f"*/*/*/{reader.JOURNAL}"))


def left_of(folder: Path) -> list[int]:
    """The living processes of the experiment in a folder."""
    head = reader.head_of(folder / reader.JOURNAL)
    assert head is not None
    return marked(head.run)


SYSTEMS = '''
"""A live system that notes its calls in files, and fails when it is told to."""

import os, signal, subprocess, time
from pathlib import Path

import numpy as np
from gymnasium import spaces


class System:
    """Episodes of ``length`` steps. It observes (steps in the episode, load, level), or a square image of ``size``.

    ``faults`` such as "step@5=die,reset@2+=raise,step@9*=raise" are what it does at its n-th call (and all later ones;
    or each n-th one) in ``folder``. One that ``forks`` has a child that leaves its process group.
    """

    def __init__(self, folder=".", length=7, sleep_s=0.0, size=0, faults="", forks=False):
        self.folder, self.length, self.sleep_s, self.size = Path(folder), length, sleep_s, size
        self.faults = [one.replace("=", "@").split("@") for one in faults.split(",") if one]
        self.action_space = spaces.Discrete(3)
        self.at, self.load, self.level = 0, 0, 0
        wide = 1 if self._call("build") == "other" else 0
        if size:
            self.observation_space = spaces.Box(0, 255, (size + wide, size), np.uint8)
        else:
            self.observation_space = spaces.Box(-np.inf, np.inf, (3 + wide,), np.float64)
        self._note(f"built {os.getpid()}")
        if forks:
            self._note(f"built {subprocess.Popen(['setsid', 'sleep', '1000']).pid}")

    def _note(self, line):
        with (self.folder / "notes.txt").open("a") as file:
            file.write(line + "\\n")

    def _call(self, name):
        if not self.faults or (self.folder / "mended").exists():
            return None
        with (self.folder / f"{name}.count").open("ab", buffering=0) as file:  # others count, too, at the same time
            file.write(b"x")
            number = file.tell()
        for where, when, deed in self.faults:
            first = int(when.rstrip("+*"))
            later = when.endswith("+") and number > first or when.endswith("*") and number % first == 0
            if where == name and (number == first or later):
                if deed == "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                if deed == "hang":
                    time.sleep(600)
                if deed == "interrupt":
                    raise KeyboardInterrupt
                if deed == "raise":
                    raise RuntimeError(f"{name} {number} was to fail")
                return deed
        return None

    def _seen(self):
        if self.size:
            return np.full(self.observation_space.shape, self.at % 256, np.uint8)
        return np.array([self.at, self.load, self.level], np.float64)

    def apply_env_params(self, params):
        self._call("apply")
        self.load, self.level = params["load"], params.get("level", 0)

    def reset(self, *, seed=None, options=None):
        self._call("reset")
        self.at = 0
        return self._seen(), {}

    def step(self, action):
        self._call("step")
        if self.sleep_s:
            time.sleep(self.sleep_s)
        self.at += 1
        info = {"load": self.load, "level": self.level, "pid": os.getpid()}
        return self._seen(), float(action), self.at >= self.length, False, info

    def close(self):
        self._call("close")
        self._note(f"closed {os.getpid()}")
'''


class LiveScenario:
    """A scenario of live experiments on ``System``, and what can be seen of it afterwards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "results"

    def document(self, *experiments: dict[str, Any], slots: int = 1, **keys: Any) -> dict[str, Any]:
        """Plain data; ``keys`` are those of the experiment, ``args`` its ``cmd_args``."""
        return document(*(experiments or [self.experiment(**keys)]), name="live", seed=5, slots=slots)

    def experiment(self, name: str = "e", args: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
        given = {"env_class": "systems:System", "folder": str(self.folder), **(args or {})}
        defaults = {"workload": "live", "agent": "random_search", "agent_steps": 40}
        return {"name": name, **defaults, **keys, "cmd_args": given}

    def write(self, *experiments: dict[str, Any], slots: int = 1, **keys: Any) -> Path:
        """The same as a file."""
        path = self.folder / "scenario.toml"
        path.write_text(dump_toml(self.document(*experiments, slots=slots, **keys)))
        return path

    @property
    def run(self) -> Path:
        return find_run(self.output)

    def notes(self, kind: str) -> list[int]:
        """Pids of the servers that were ``built`` or ``closed``, in order."""
        path = self.folder / "notes.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        return [int(line.split()[1]) for line in lines if line.startswith(kind)]

    def reasons(self, name: str = "e") -> dict[int, str]:
        """Why steps have no measurement, by number; without those that a killed driver lost."""
        found: dict[int, str] = {}
        for group in reader.steps(self.run / name / reader.JOURNAL):
            if isinstance(group, reader.Steps):
                found |= {group.numbers[at]: reason for at, (_, reason) in group.unmeasured.items()}
        return found

    def assert_nothing_left(self) -> None:
        """No process of a server, and none that was not reaped.

        Those of a killed driver are the system's to reap, which takes a moment on a busy machine.
        """
        left, until = self.notes("built"), time.monotonic() + REAPED_S
        while left := [pid for pid in left if pid != os.getpid() and Path(f"/proc/{pid}").exists()]:
            assert time.monotonic() < until, f"processes {left} are left"
            time.sleep(0.05)


@pytest.fixture
def live(tmp_path: Path) -> LiveScenario:
    (tmp_path / "systems.py").write_text(SYSTEMS)
    return LiveScenario(tmp_path)


@pytest.fixture
def serve(live: LiveScenario, serve: Callable[..., Serve], monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Start a ``tunegym serve`` of ``System``; gives its URL."""
    monkeypatch.setenv(TOKEN_VARIABLE, SECRET)
    return lambda: f"tcp://127.0.0.1:{serve(reference='systems:System', cwd=live.folder).port}"
