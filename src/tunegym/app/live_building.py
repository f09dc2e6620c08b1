"""From a checked scenario to the objects that run a live experiment."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tunegym.app.catalog import Catalog
from tunegym.app.injecting import maker_of
from tunegym.app.parts import build_reward, build_workload, head_of, session_of
from tunegym.core.errors import TunegymError
from tunegym.core.processes import living_processes
from tunegym.core.stopping import Stop
from tunegym.tuning.envs.live.engine import LiveEngine
from tunegym.tuning.envs.live.parts import LiveParts
from tunegym.tuning.model.job import JobHandle
from tunegym.tuning.model.scenario import INJECTED, Experiment, Scenario
from tunegym.tuning.runners.trees import Tree, end_tree
from tunegym.tuning.servers.hosting import Host
from tunegym.tuning.servers.hosts import build_host, known_token
from tunegym.tuning.stores.live import LiveStore


@dataclass(frozen=True)
class LiveBench:
    """One live experiment, set up and ready to be driven."""

    store: LiveStore
    hosts: Sequence[Host]
    engine: LiveEngine
    stop: Stop
    kill: Callable[[], None]

    def close(self) -> None:
        """Let go of servers and of the journal, in this order."""
        self.stop.unsubscribe(_nothing, self.kill)
        try:
            for host in self.hosts:
                host.close()
        finally:
            self.store.close()


def build_live_bench(
    scenario: Scenario, experiment: Experiment, folder: Path, *, stop: Stop, server: Any = None
) -> LiveBench:
    """Open the journal in ``folder`` and put servers around it, which are not started yet."""
    spec = experiment.live
    assert spec is not None
    check_injected(scenario, experiment, server)
    workload = build_workload(scenario, experiment)
    reward = build_reward(scenario, experiment) if experiment.reward is not None else None
    store = LiveStore(folder, head_of(scenario, experiment), session_of(scenario, experiment, workload), spec.recording)
    with contextlib.ExitStack() as undo:
        undo.callback(store.close)
        build = partial(
            build_host, spec, scenario.scenario_dir, folder, token=store.head.run, started=store.job_started
        )
        injected = maker_of(server, spec)
        hosts = [build(lane=lane, injected=injected) for lane in range(scenario.slots)]
        catalog = Catalog().at(scenario.scenario_dir)
        parts = LiveParts(
            experiment,
            hosts,
            store,
            folder,
            scenario.seed,
            reward,
            partial(catalog.get, "encodings"),
            partial(_end_leftovers, store.head.run),
        )
        engine = LiveEngine(parts, stopping=lambda: stop.requested, spent_s=store.past.elapsed_s)
        undo.pop_all()
    kill = partial(_kill, hosts)
    stop.subscribe(_nothing, kill)  # a step that has begun is finished, unless that takes too long
    return LiveBench(store, hosts, engine, stop, kill)


def check_tokens(scenario: Scenario, only: Experiment | None = None) -> None:
    """Refuse servers elsewhere whose token nobody has said. Raises ``TunegymError``."""
    for experiment in scenario.experiments if only is None else (only,):
        if experiment.live is not None and experiment.live.address is not None:
            known_token(experiment.live, scenario.scenario_dir)


def check_injected(scenario: Scenario, experiment: Experiment, server: Any) -> None:
    """Refuse a server of Python's that isn't there, or can't be in all slots. Raises ``TunegymError``."""
    spec = experiment.live
    if spec is None or spec.env_class != INJECTED:
        return
    if server is None:
        raise TunegymError(
            f"the server of {experiment.name} was given as an object in Python, and there is none now",
            hint="call tunegym.run, resume or make with server=...",
        )
    if scenario.slots > 1 and not isinstance(server, type) and hasattr(server, "step"):
        raise TunegymError(
            f"one server object can't be in {scenario.slots} slots at once",
            hint="give a class or a function that makes servers, or slots = 1",
        )


def _end_leftovers(token: str, handles: Sequence[JobHandle]) -> int:
    """End what servers of a killed driver left running."""
    return end_tree(Tree(token, living_processes(handles), spares_kin=True)) if handles else 0


def _kill(hosts: Sequence[Host]) -> None:
    for host in hosts:
        host.kill()


def _nothing() -> None:
    pass
