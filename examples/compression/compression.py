"""Compress generated data with the standard library and say how well and how fast it went."""

from __future__ import annotations

import bz2
import functools
import lzma
import math
import random
import time
import zlib
from collections.abc import Callable

WORDS = [
    "the",
    "journal",
    "is",
    "truth",
    "and",
    "every",
    "trial",
    "counts",
    "once",
    "whatever",
    "breaks",
    "in",
    "between",
]


@functools.cache
def generated(data: str, size: int) -> bytes:
    """The same bytes for the same arguments: words, a column of numbers, or noise."""
    rng = random.Random(f"{data}/{size}")
    if data == "text":
        text = " ".join(rng.choice(WORDS) for _ in range(size // 4))
        return text.encode()[:size]
    if data == "numbers":
        value, rows = 1000.0, []
        for row in range(size // 8):
            value += rng.gauss(0.0, 1.0)
            rows.append(f"{row},{value:.2f}\n")
        return "".join(rows).encode()[:size]
    return rng.randbytes(size)


def compressor(codec: str, level: int) -> Callable[[bytes], bytes]:
    """The standard library's function for a codec."""
    if codec == "zlib":
        return lambda block: zlib.compress(block, level)
    if codec == "bz2":
        return lambda block: bz2.compress(block, level)
    return lambda block: lzma.compress(block, preset=level)


def measure(codec: str, level: int, block_kb: int, data: str, size_kb: int) -> dict[str, float]:
    """Ratio, speed by CPU time, and one score for both: a doubling of either is worth the same."""
    raw = generated(data, size_kb * 1024)
    step = block_kb * 1024
    compress = compressor(codec, level)
    started = time.process_time()
    packed = sum(len(compress(raw[at : at + step])) for at in range(0, len(raw), step))
    seconds = max(time.process_time() - started, 1e-6)
    ratio = len(raw) / packed
    speed = len(raw) / 1e6 / seconds
    return {"score": math.log2(ratio) + 0.5 * math.log2(speed), "ratio": ratio, "mb_per_s": speed}
