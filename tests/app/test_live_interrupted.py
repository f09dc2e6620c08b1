"""An interrupt wherever Python may raise one, in a program that goes on: what is on record is what was told.

``tunegym run`` asks a run to stop instead. A program that steps an environment by itself has none but this way out.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.soundness import assert_sound

import tunegym
from tunegym.core.errors import TunegymError
from tunegym.tuning.reports.results import find_run
from tunegym.tuning.stores.reader import Steps, steps

pytestmark = pytest.mark.slow  # some hundred experiments

_WATCHED = ("tunegym/tuning/envs/live/", "tunegym/tuning/stores/steps", "tunegym/tuning/stores/journal")
_FEWEST = 150
"""At so many places at least a program may be interrupted; else the watch looks at other files than it should."""


class Counts:
    """Fails with action 1; an episode has three steps."""

    def __init__(self) -> None:
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.at = 0

    def apply_env_params(self, params: Any) -> None:
        self.load = params["load"]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.at = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == 1:
            raise ValueError("asked for")
        self.at += 1
        return np.full(1, self.at, np.float32), float(self.load), self.at == 3, False, {}

    def close(self) -> None:
        pass


class Interrupt:
    """Raises ``KeyboardInterrupt`` at the n-th place where Python looks for one: a call's begin or end."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.where = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "c_call" or not any(part in frame.f_code.co_filename for part in _WATCHED):
            return
        self.left -= 1
        if self.left == 0:
            self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} ({event})"
            raise KeyboardInterrupt


def drive(envs: Any, lanes: int, interrupt: Interrupt) -> dict[int, str]:
    """Seven steps in every lane, going on after an interrupt; what was told of them."""
    told: dict[int, str] = {}
    resets, taken = True, 0
    sys.setprofile(interrupt)
    try:
        while taken < 7:
            try:
                if resets:
                    envs.reset()
                    resets = False
                infos = envs.step([int(taken == 4 and lane == lanes - 1) for lane in range(lanes)])[4]
                taken += 1
                told |= dict(zip(infos["step"].tolist(), infos["status"].tolist(), strict=True))
            except KeyboardInterrupt:
                taken += 1
            except TunegymError:  # it was interrupted between an episode's end and the next one's begin
                resets = True
    finally:
        sys.setprofile(None)
    return told


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.chaos)])
@pytest.mark.parametrize(("record", "draw"), [("all", "step"), ("every:2", "episode")])
@pytest.mark.parametrize("lanes", [1, 2])
def test_an_interrupt_anywhere_leaves_what_was_told(lanes: int, record: str, draw: str, stride: int) -> None:
    document = scenario(200 * lanes, record, draw)
    place = 1 - stride
    while True:
        place += stride
        output = f"at-{place}"
        interrupt = Interrupt(place)
        envs = tunegym.make_vec(document, lanes, output=output, server=Counts)
        told = drive(envs, lanes, interrupt)
        envs.close()
        if interrupt.left > 0:
            break
        run = find_run(Path(output))
        try:
            assert_sound(run)
        except AssertionError as error:
            raise AssertionError(f"interrupted at {interrupt.where}: {error}") from error
        recorded = _recorded(run / "e" / "journal.jsonl")
        differ = {number: (status, recorded[number]) for number, status in told.items() if number in recorded}
        differ = {number: pair for number, pair in differ.items() if pair[0] != pair[1]}
        assert not differ, f"interrupted at {interrupt.where}: told and recorded: {differ}"
    assert place > _FEWEST


def scenario(steps: int, record: str, draw: str) -> dict[str, Any]:
    experiment = {
        "name": "e",
        "workload": "live",
        "agent": "random_search",
        "agent_steps": steps,
        "record": record,
        "cmd_args": {"env_class": "given:Here", "load": [1, 2, 5]},
        "env_params": {"load": {"draw": draw}},
    }
    return {"name": "n", "experiments": [experiment]}


def _recorded(journal: Path) -> dict[int, str]:
    found: dict[int, str] = {}
    for group in steps(journal):
        if isinstance(group, Steps):
            for at, number in enumerate(group.numbers):
                found[number] = group.unmeasured[at][0] if at in group.unmeasured else "measured"
    return found
