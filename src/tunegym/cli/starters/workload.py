"""What the starter scenario's trials run: replace it with what you want to tune."""

import time


def measure(method: str, chunk: int, size: int) -> dict[str, float]:
    """Sum 0..size-1 in chunks; returns the metrics by name."""
    started = time.perf_counter()
    total = 0
    for low in range(0, size, chunk):
        high = min(low + chunk, size)
        if method == "loop":
            for number in range(low, high):
                total += number
        elif method == "builtin":
            total += sum(range(low, high))
        else:
            total += (low + high - 1) * (high - low) // 2
    assert total == size * (size - 1) // 2
    return {"seconds": time.perf_counter() - started}
