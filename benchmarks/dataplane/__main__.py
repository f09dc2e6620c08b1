"""``python -m benchmarks.dataplane``: the data plane beside its peers; exit 1 if a bound is missed.

The ledger alone; the bytes alone; put, claim and get beside TransferQueue and Ray's object store (extra ``peers``);
those who wait; and recovery from the folder.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

from benchmarks.dataplane import columns, ledger, peers, recovery, wake_up
from benchmarks.output import row, write
from benchmarks.trial_overhead.measure import Line, crowded_s

PARTS: dict[str, Callable[[bool], Iterator[Line]]] = {
    "ledger": ledger.measured,
    "columns": columns.measured,
    "peers": peers.measured,
    "wake-up": wake_up.measured,
    "recovery": recovery.measured,
}
WIDTHS = (52, 11, 25, 7, 15, 8)
PACKAGES = ("tunegym", "numpy", "orjson")
PEERS = ("TransferQueue", "ray", "tensordict", "torch")


def main() -> int:
    """0, or 1 if a bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dataplane", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and samples: two minutes, rough numbers")
    parser.add_argument("--only", action="append", choices=list(PARTS), help="measure just this; repeatable")
    options = parser.parse_args()
    print(row(WIDTHS, "measurement", "ours", "beside", "ratio", "least to most", "bound", ""))
    lines: list[Line] = []
    begun, before = time.monotonic(), crowded_s()
    for name in options.only or PARTS:
        for line in PARTS[name](options.quick):
            lines.append(line)
            print(_shown(line), flush=True)
    after = crowded_s()
    crowded = None if before is None or after is None else (after - before) / (time.monotonic() - begun)
    print("" if crowded is None else f"\nsome process waited for a core {crowded:.0%} of the time")
    written = [{**asdict(line), "ratio": line.ratio, "ok": line.ok} for line in lines]
    path = write("dataplane", written, (*PACKAGES, *filter(_installed, PEERS)), quick=options.quick, crowded=crowded)
    print(f"written to {path}")
    missed = [f"{line.name} ({line.peer_name})" if line.peer_name else line.name for line in lines if line.ok is False]
    if missed:
        print(f"MISSED: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def _installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def _shown(line: Line) -> str:
    beside = "" if line.peer is None else f"{line.peer_name} {_number(line.peer)} {line.unit}"
    ratio = "" if line.ratio is None else _number(line.ratio)
    rounds = f"{_number(min(line.ratios))} to {_number(max(line.ratios))}" if len(line.ratios) > 1 else ""
    bound = "" if line.bound is None else f"{'>=' if line.at_least else '<='} {line.bound:g}"
    verdict = {None: "", True: "OK", False: "MISSED"}[line.ok]
    return row(WIDTHS, line.name, f"{_number(line.ours)} {line.unit}", beside, ratio, rounds, bound, verdict)


def _number(value: float) -> str:
    """Three digits are more than a shared machine can promise."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
