"""``tunegym init``: a commented starter scenario that runs as it is."""

from __future__ import annotations

import shlex
from importlib import resources
from pathlib import Path

import typer

from tunegym.cli.terminal import guarded
from tunegym.core.errors import ConfigError, Problem, TunegymError
from tunegym.core.text import escaped, escaped_lines

STARTERS: dict[str, tuple[str, ...]] = {"command": (), "python": ("workload.py",), "live": ()}
"""The files that each starter needs beside its scenario."""


def main(path: Path, kind: str, *, force: bool) -> int:
    """Write the starter."""
    return guarded(lambda: _init(path, kind, force=force))


def _init(path: Path, kind: str, *, force: bool) -> int:
    if kind not in STARTERS:
        raise ConfigError(
            "--workload",
            [
                Problem(
                    "",
                    "there is no starter for this workload",
                    kind,
                    ", ".join(STARTERS),
                    hint="command, python or live",
                )
            ],
        )
    if path.is_dir() or path.suffix != ".toml":
        path = path / "scenario.toml"
    targets = {path: f"{kind}.toml"} | {path.parent / name: name for name in STARTERS[kind]}
    taken = [str(target) for target in targets if target.exists()]
    if taken and not force:
        raise TunegymError(f"{', '.join(taken)} exists already", hint="choose another path, or use --force")
    starters = resources.files("tunegym.cli") / "starters"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for target, source in targets.items():
            target.write_text((starters / source).read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as error:
        raise TunegymError(f"{path} can't be written: {error.strerror}", hint="choose another path") from error
    typer.echo(escaped("wrote " + ", ".join(str(target) for target in targets)))
    quoted = shlex.quote(str(path))
    typer.echo(escaped_lines(f"next: tunegym dry-run {quoted}   (what would run)\n      tunegym run {quoted}"))
    return 0
