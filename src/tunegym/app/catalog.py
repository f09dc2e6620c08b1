"""What there is to choose from: built in, or added by others."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from tunegym.core.references import is_reference, resolve

BUILT_IN: dict[str, dict[str, str]] = {
    "agents": {
        "grid_search": "tunegym.tuning.agents.grid:GridSearch",
        "random_search": "tunegym.tuning.agents.random:RandomSearch",
        "optuna": "tunegym.tuning.agents.optuna:OptunaAgent",
        "contextual_bandit": "tunegym.tuning.agents.bandit.agent:ContextualBandit",
        "ppo": "tunegym.tuning.agents.sb3.agents:Ppo",
        "a2c": "tunegym.tuning.agents.sb3.agents:A2c",
        "dqn": "tunegym.tuning.agents.sb3.agents:Dqn",
        "sac": "tunegym.tuning.agents.sb3.agents:Sac",
    },
    "workloads": {
        "command": "tunegym.tuning.workloads.command:CommandWorkload",
        "python": "tunegym.tuning.workloads.python:PythonWorkload",
        "live": "tunegym.tuning.workloads.live:LiveWorkload",
    },
    "runners": {
        "local": "tunegym.tuning.runners.local:LocalRunner",
    },
    "rewards": {
        "identity": "tunegym.tuning.rewards:identity",
        "negative": "tunegym.tuning.rewards:negative",
        "inverse": "tunegym.tuning.rewards:inverse",
    },
    "encodings": {
        "categorical": "tunegym.tuning.encodings:Categorical",
        "onehot": "tunegym.tuning.encodings:OneHot",
        "ordinal": "tunegym.tuning.encodings:Ordinal",
        "minmax": "tunegym.tuning.encodings:MinMax",
        "log": "tunegym.tuning.encodings:Log",
    },
    "pruners": {
        "median": "tunegym.tuning.pruners.median:MedianPruner",
        "hyperband": "tunegym.tuning.pruners.hyperband:HyperbandPruner",
    },
}
"""Names of this package's own; classes are imported only when they are asked for."""


class Catalog:
    """Finds concrete classes by kind and name.

    A name is one of this package's, one that an installed package offers under the entry point group
    ``tunegym.<kind>``, or a reference ``package.module:Name``. Ours win over an entry point of the same name.

    Args:
        paths: where references are looked for first: the scenario's folder.
    """

    def __init__(self, paths: tuple[str, ...] = ()) -> None:
        self._paths = paths

    def at(self, folder: Path) -> Catalog:
        """The same, with references looked for in ``folder`` first."""
        return Catalog((str(folder),))

    def kinds(self) -> list[str]:
        """The kinds of things that can be chosen."""
        return list(BUILT_IN)

    def names(self, kind: str) -> list[str]:
        """Every name of a kind, ours first."""
        ours = BUILT_IN[kind]
        return [*ours, *sorted(name for name in self._plugins(kind) if name not in ours)]

    def get(self, kind: str, name: str) -> Any:
        """The class (or factory) behind a name or reference.

        Raises:
            KeyError: no such name.
            UnresolvedReferenceError: it can't be imported.
        """
        if name in BUILT_IN[kind]:
            return resolve(BUILT_IN[kind][name])
        if is_reference(name):
            return resolve(name, self._paths)
        return self._plugins(kind)[name].load()

    def where(self, kind: str, name: str) -> str:
        """The reference behind a name, without importing it."""
        return BUILT_IN[kind].get(name) or self._plugins(kind)[name].value

    @staticmethod
    def _plugins(kind: str) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=f"tunegym.{kind}")}
