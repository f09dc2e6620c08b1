"""Messages on a local socket: the length, then JSON. Nothing in them can be run."""

from __future__ import annotations

import struct
from typing import Any

import orjson

from tunegym.dataplane.errors import DataPlaneError

LENGTH = struct.Struct("!I")
LIMIT = 256 << 20
"""Bytes of a message: the metadata of some million samples."""


def pack(message: Any) -> bytes:
    """A message as bytes. Raises ``DataPlaneError`` for one that is too large, or isn't plain data."""
    try:
        content = orjson.dumps(message, option=orjson.OPT_NON_STR_KEYS)
    except (TypeError, ValueError) as error:
        raise DataPlaneError(f"this can't be sent: {error}", hint="ids and tags are texts and numbers") from error
    if len(content) > LIMIT:
        raise DataPlaneError(
            f"a call of {len(content):,} bytes is more than the {LIMIT:,} that are allowed", hint="use smaller batches"
        )
    return LENGTH.pack(len(content)) + content


class Inbox:
    """Bytes as they arrive, and the messages in them."""

    def __init__(self) -> None:
        self._received = bytearray()

    def add(self, content: bytes | memoryview) -> list[Any]:
        """More bytes: the messages that are whole now. Raises ``ValueError`` for what is none."""
        if not self._received and len(content) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(content)
            if length <= LIMIT and len(content) == LENGTH.size + length:  # most arrive so, and need not be copied
                return [orjson.loads(memoryview(content)[LENGTH.size :])]
        self._received += content
        messages: list[Any] = []
        at = 0
        while len(self._received) - at >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._received, at)
            if length > LIMIT:
                raise ValueError(f"a message of {length:,} bytes")
            end = at + LENGTH.size + length
            if len(self._received) < end:
                break
            messages.append(orjson.loads(memoryview(self._received)[at + LENGTH.size : end]))
            at = end
        if at:
            del self._received[:at]
        return messages
