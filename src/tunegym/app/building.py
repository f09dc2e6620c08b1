"""From a checked scenario to the objects that run it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tunegym.app.catalog import Catalog
from tunegym.app.parts import build_constraints, build_pruner, build_reward, build_workload, head_of, session_of
from tunegym.core.stopping import Stop
from tunegym.tuning.envs.engine import Parts, TrialEngine
from tunegym.tuning.model.scenario import Experiment, Scenario
from tunegym.tuning.ports import Listener, Runner
from tunegym.tuning.stores.journal import JournalStore


@dataclass(frozen=True)
class Bench:
    """One experiment, set up and ready to be driven."""

    store: JournalStore
    runner: Runner
    engine: TrialEngine
    stop: Stop

    def close(self) -> None:
        """Let go of processes and of the journal, in this order."""
        self.stop.unsubscribe(self.runner.stop, self.runner.kill)
        try:
            self.runner.close()
        finally:
            self.store.close()


def build_bench(
    scenario: Scenario,
    experiment: Experiment,
    folder: Path,
    *,
    listeners: Sequence[Listener] = (),
    stop: Stop | None = None,
) -> Bench:
    """Open the journal in ``folder`` and put everything that measures around it."""
    stop = stop or Stop()
    workload = build_workload(scenario, experiment)
    reward = build_reward(scenario, experiment)
    constraints = build_constraints(scenario, experiment)
    store = JournalStore(folder, head_of(scenario, experiment), session_of(scenario, experiment, workload))
    with contextlib.ExitStack() as undo:
        undo.callback(store.close)
        catalog = Catalog().at(scenario.scenario_dir)
        factory = catalog.get("runners", scenario.runner)
        runner: Runner = factory(token=store.head.run, slots=scenario.slots)
        undo.callback(runner.close)
        engine = TrialEngine(
            Parts(
                experiment,
                workload,
                runner,
                store,
                reward,
                constraints,
                folder,
                build_pruner(scenario, experiment),
                partial(catalog.get, "encodings"),
            ),
            slots=scenario.slots,
            listeners=listeners,
            stopping=lambda: stop.requested,
            spent_s=store.past.elapsed_s,
        )
        undo.pop_all()
    stop.subscribe(runner.stop, runner.kill)
    return Bench(store, runner, engine, stop)
