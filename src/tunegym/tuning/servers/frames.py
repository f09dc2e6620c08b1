"""A message from outside: a header (magic, length of the JSON, length of the rest), the JSON, and the rest."""

from __future__ import annotations

import struct

MESSAGE_LIMIT = 64 << 20
"""Bytes of a frame, its header included."""
HELLO_LIMIT = 64 << 10
"""As much is read of somebody who has not proved anything yet."""
HEADER = struct.Struct("!4sIQ")
MAGIC = b"TGS\x01"


class WireError(Exception):
    """A value that can't be sent, or bytes that are no message; says why."""


def size_of(header: bytes | bytearray | memoryview, limit: int = MESSAGE_LIMIT) -> int:
    """How many bytes the frame has that begins with this header.

    Raises:
        WireError: it is no header, or the frame is larger than ``limit``.
    """
    magic, text, rest = HEADER.unpack(header)
    if magic != MAGIC:
        raise WireError(f"this is no message of tunegym's: it begins with {bytes(magic)!r}")
    size = HEADER.size + text + rest
    if size > limit:
        raise WireError(f"a message of {size:,} bytes is more than the {limit:,} that are allowed")
    return size
