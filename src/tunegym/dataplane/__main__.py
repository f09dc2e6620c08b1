"""``python -m tunegym.dataplane``: looking at a plane from a shell."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence

from tunegym.core.errors import TunegymError
from tunegym.core.escaping import escaped_lines


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 with a message on stderr if there is no plane to look at; 2 for arguments that make no sense."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.prometheus and not given.once:
        parser.error("--prometheus prints one page: add --once")
    from tunegym.dataplane.top import top

    form = "prometheus" if given.prometheus else "json" if given.json else "table"
    try:
        top(given.url, form=form, once=given.once, interval_s=given.interval)
    except TunegymError as error:
        sys.stderr.write(escaped_lines(f"error: {error}\n"))
        return 1
    except KeyboardInterrupt:  # before there was anything to look at
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tunegym.dataplane", description="Look at a data plane.")
    commands = parser.add_subparsers(dest="command", required=True)
    top = commands.add_parser("top", help="how a plane stands, live", description="Show how a plane stands, live.")
    top.add_argument("url", metavar="URL", help="mmap:///folder of a plane that is there")
    top.add_argument("--once", action="store_true", help="look once, and end")
    top.add_argument("--interval", type=_seconds, default=1.0, metavar="S", help="seconds between looks (default: 1)")
    form = top.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON: with --once indented, else a line for each look")
    form.add_argument("--prometheus", action="store_true", help="print Prometheus' text format; needs --once")
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
