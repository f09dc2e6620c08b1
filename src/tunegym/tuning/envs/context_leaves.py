"""A context as leaves of an observation, each by the encoding of its env_param."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from tunegym.tuning.model.context import EnvParams
from tunegym.tuning.model.leaf import ObsLeafDescriptor
from tunegym.tuning.model.space import Knob
from tunegym.tuning.model.values import Context

if TYPE_CHECKING:
    from tunegym.tuning.encodings import Encoding

FindEncoding: TypeAlias = "Callable[[str], Callable[[Knob], Encoding]]"


class ContextLeaves:
    """The encodings of an experiment's env_params; built when they are first asked for."""

    def __init__(self, params: EnvParams, find: FindEncoding | None = None) -> None:
        self._params = params
        self._find = find

    @cached_property
    def _encodings(self) -> dict[str, Encoding]:
        # Most agents act on native values: they need neither numpy nor anybody's encoding.
        from tunegym.tuning.encodings import ENCODINGS, encoding_of

        find = self._find or ENCODINGS.__getitem__
        return {name: encoding_of(param, find) for name, param in self._params.params.items()}

    def descriptors(self) -> dict[str, ObsLeafDescriptor]:
        """The leaves by the address of their env_param."""
        return {name: encoding.descriptor() for name, encoding in self._encodings.items()}

    def encode(self, context: Context) -> dict[str, Any]:
        """A value for each leaf."""
        return {name: encoding.encode(context[name]) for name, encoding in self._encodings.items()}
