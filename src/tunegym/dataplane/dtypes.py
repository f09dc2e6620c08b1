"""Names of dtypes, and the plain numpy dtype that their values are stored as."""

from __future__ import annotations

import functools
import importlib
import math
import sys
from typing import Any, Literal, TypeAlias

import numpy as np

from tunegym.dataplane.errors import FieldError

As: TypeAlias = Literal["numpy", "torch"]
"""The package of the returned arrays."""

_RAW = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
"""Dtypes that numpy lacks, and the integers that store their bits."""
_NUMBERS = "biufc"
_TIMES = "mM"
_TEXTS = "SU"


def name_of(dtype: np.dtype, *, texts: bool = False) -> str:
    """The name of a dtype, such as ``int64``. Raises ``FieldError`` if it can't be stored."""
    if dtype.kind in _NUMBERS + _TIMES and (dtype.isnative or dtype.itemsize <= 8):
        return dtype.name if dtype.isnative else dtype.str
    if dtype.name in _RAW:
        return dtype.name
    if texts and dtype.kind in _TEXTS:
        return dtype.str
    if dtype.kind in _TEXTS:
        raise FieldError("an array of texts can't be a column", hint="give a list of texts: values.tolist()")
    raise FieldError(
        f"values of dtype {dtype} can't be a column", hint="give numbers, or a list of dicts, lists and texts"
    )


@functools.cache
def raw_dtype(name: str) -> np.dtype:
    """The dtype that values are stored as: the dtype itself wherever a file can hold it."""
    if name in _RAW:
        return np.dtype(_RAW[name])
    dtype = np.dtype(name)
    if dtype.kind in _TEXTS or (dtype.isnative and dtype.kind not in _TIMES):
        return dtype
    # Times have no buffers, and concatenate swaps the bytes of a foreign byte order.
    return np.dtype(f"u{dtype.itemsize}")


def to_raw(array: np.ndarray, name: str) -> np.ndarray:
    """An array as it is stored, contiguous; without a copy where possible."""
    if not array.flags.c_contiguous:
        array = array.copy(order="C")
    dtype = raw_dtype(name)
    return array if array.dtype == dtype else array.view(dtype)


def to_numpy(raw: np.ndarray, name: str) -> np.ndarray:
    """Stored values as an array of their dtype, without a copy.

    Raises:
        FieldError: numpy has no such dtype, and ml_dtypes is not installed.
    """
    if name not in _RAW:
        dtype = np.dtype(name)
        return raw if raw.dtype == dtype else raw.view(dtype)
    try:
        more = importlib.import_module("ml_dtypes")
    except ImportError:
        raise FieldError(
            f"numpy has no {name}", hint='read it with as_="torch", or install the package ml_dtypes'
        ) from None
    return raw.view(getattr(more, name))


def to_torch(raw: np.ndarray, name: str) -> Any:
    """Stored values as a writable tensor: read-only memory is copied, other memory is shared."""
    torch = import_torch()
    dtype = getattr(torch, "bool" if name == "bool" else name, None)
    if not isinstance(dtype, torch.dtype):
        raise FieldError(f"torch has no dtype {name}", hint='read it with as_="numpy"')
    if not raw.flags.writeable or not raw.flags.c_contiguous:
        raw = raw.copy(order="C")
    if name not in _RAW:
        return torch.from_numpy(raw)
    # Not every torch knows uint16.
    return torch.from_numpy(raw.view(raw.dtype.str.replace("u", "i"))).view(dtype)


def convert(raw: np.ndarray, name: str, as_: As) -> Any:
    """Stored values as a numpy array or a torch tensor."""
    if as_ == "numpy":
        return to_numpy(raw, name)
    if as_ == "torch":
        return to_torch(raw, name)
    raise FieldError(f"as_ is {as_!r}", hint='give "numpy" or "torch"')


def raw_number(value: float, name: str) -> Any:
    """A number as the dtype stores it. Raises ``FieldError`` if the dtype can't hold it."""
    if name == "bfloat16":
        return _bfloat16(float(value))
    if name in _RAW:
        torch = import_torch()
        return torch.tensor(value, dtype=getattr(torch, name)).view(torch.uint8).item()
    try:
        with np.errstate(all="ignore"):
            found = np.asarray(value).astype(name, casting="unsafe")
    except (TypeError, ValueError, OverflowError) as error:
        raise FieldError(f"{value!r} is not a {name}", hint="give a number") from error
    exact = found.dtype.kind not in "biu" or found == value
    if not exact or (found.dtype.kind == "f" and np.isinf(found) and not np.isinf(value)):
        raise FieldError(f"{value!r} does not fit into {name}", hint="give a value that the dtype can hold")
    return to_raw(found, name)[()]


def _bfloat16(value: float) -> int:
    bits = int(np.float32(value).view(np.uint32))
    if math.isnan(value):
        return bits >> 16 | 0x40
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


# torch ------------------------------------------------------------------------------------------------


def is_tensor(value: Any) -> bool:
    """Whether it is a torch tensor. Never imports torch."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(value, tensor)


def import_torch() -> Any:
    """The torch package. Raises ``FieldError`` if it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise FieldError("torch is not installed", hint='install it, or read with as_="numpy"') from None


def tensor_array(tensor: Any) -> tuple[np.ndarray, str]:
    """A dense tensor as it is stored, and the name of its dtype. Device and gradients are not kept."""
    torch = import_torch()
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise FieldError("a sparse or quantized tensor can't be a column", hint="give tensor.to_dense()")
    name = str(tensor.dtype).removeprefix("torch.")
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if name in _RAW:
        signed = torch.int16 if raw_dtype(name).itemsize == 2 else torch.int8
        return plain.view(signed).numpy().view(_RAW[name]), name
    try:
        array = plain.numpy()
    except TypeError as error:
        raise FieldError(f"a tensor of dtype {name} can't be a column", hint="convert it to another dtype") from error
    return array, name_of(array.dtype)
