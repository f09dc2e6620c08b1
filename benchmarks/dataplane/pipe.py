"""Processes that are measured: each answers what it is asked, a line of JSON for a line of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import Any

from benchmarks.trial_overhead.measure import ROOT

END_S = 60.0


class Child:
    """A process that runs ``serve`` in a module of its own."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.name = module

    def ask(self, method: str, /, **arguments: Any) -> None:
        """Let it do something, and go on meanwhile."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([method, arguments]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """What came of it."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with {self._process.wait()}")
        return json.loads(line)

    def call(self, method: str, /, **arguments: Any) -> Any:
        """Let it do something, and wait for what comes of it."""
        self.ask(method, **arguments)
        return self.answer()

    def close(self) -> None:
        """It cleans up, and ends."""
        try:
            with contextlib.suppress(BrokenPipeError):
                self._process.communicate(timeout=END_S)
        finally:
            self._process.kill()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def serve(target: Any) -> None:
    """Answer by methods of ``target`` until nobody asks any more. What libraries print goes to stderr."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as replies:
        os.dup2(2, 1)
        for line in sys.stdin:
            method, arguments = json.loads(line)
            replies.write(json.dumps(getattr(target, method)(**arguments)) + "\n")
            replies.flush()
