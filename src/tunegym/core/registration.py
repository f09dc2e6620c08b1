"""The environment's name in Gymnasium: known as soon as both packages are loaded, whichever comes first."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

ENV_ID = "tunegym/Tune-v0"
"""Non-deterministic: the next trial has the next context, so two equal steps don't give equal observations."""


def name_environments() -> None:
    """Let ``gymnasium.make`` find ours. Loading Gymnasium takes long, so that is left to whoever wants it."""
    gymnasium = sys.modules.get("gymnasium")
    if gymnasium is not None and hasattr(gymnasium, "register"):
        _register(gymnasium)
    else:
        sys.meta_path.insert(0, _Waiting())


def _register(gymnasium: ModuleType) -> None:
    if ENV_ID not in gymnasium.registry:
        gymnasium.register(
            id=ENV_ID, entry_point="tunegym:make", vector_entry_point="tunegym:make_vec", nondeterministic=True
        )


class _Waiting(MetaPathFinder):
    """Finds Gymnasium as Python would, and is told when it has been loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Only of Gymnasium. Asking whether it is there is not loading it, so this may be called again."""
        if fullname != "gymnasium":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Telling(spec.loader, self)
        return spec


class _Telling(Loader):
    def __init__(self, loader: Loader, finder: _Waiting) -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As ever."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As ever, and then ours are named."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        _register(module)
