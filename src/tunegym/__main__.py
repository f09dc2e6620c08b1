"""``python -m tunegym``: the command line."""

from __future__ import annotations

from tunegym.cli.main import main

if __name__ == "__main__":
    main()
