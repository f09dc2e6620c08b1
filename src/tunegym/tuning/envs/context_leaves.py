"""A context as leaves of an observation, each by the encoding of its env_param."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from tunegym.tuning.model.context import EnvParams, ObsLeafDescriptor
from tunegym.tuning.model.space import Choice, Knob
from tunegym.tuning.model.values import Context, Scalar

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
        """A value for each leaf. That of a candidate can't be written to, as it is given out again."""
        return {name: encode(context[name]) for name, encode in self._encoders.items()}

    @cached_property
    def _encoders(self) -> dict[str, Callable[[Scalar], Any]]:
        encodings = self._encodings
        return {
            name: _Remembered(encodings[name].encode) if isinstance(param.domain, Choice) else encodings[name].encode
            for name, param in self._params.params.items()
        }


class _Remembered:
    """The leaves of candidates, each encoded once. Equal-looking ones (1, 1.0, True) stay apart."""

    def __init__(self, encode: Callable[[Scalar], Any]) -> None:
        self._encode = encode
        self._leaves: dict[tuple[type, Scalar], Any] = {}

    def __call__(self, value: Scalar) -> Any:
        key = (type(value), value)
        leaf = self._leaves.get(key)
        if leaf is None:
            leaf = self._encode(value)
            if getattr(leaf, "shape", ()):
                leaf = leaf.copy()
                leaf.setflags(write=False)
            self._leaves[key] = leaf
        return leaf
