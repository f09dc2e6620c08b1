"""The ``tunegym`` command. What a subcommand does is imported when it is called."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

P = ParamSpec("P")

app = typer.Typer(
    name="tunegym",
    help="Tune real systems with learning agents, and never lie about what was measured.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    # Rich's help costs several times the rest of the start-up; plain help is instant.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

ScenarioArgument = Annotated[Path, typer.Argument(metavar="SCENARIO", help="A scenario's TOML file.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a key, such as experiments.NAME.agent_steps=50. Repeatable.",
    ),
]
SlotsOption = Annotated[int | None, typer.Option("--slots", min=1, help="Trials in parallel.")]
SystemOption = Annotated[
    Path | None, typer.Option("--system", metavar="FILE", help="A file whose [system] replaces the scenario's.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
ResultsArgument = Annotated[Path, typer.Argument(metavar="DIR", help="A run, or a folder of runs: the newest.")]
RESULTS = Path("results")


@app.command()
def init(
    path: Annotated[list[str] | None, typer.Argument(metavar="PATH", help="The file, or its folder.")] = None,
    kind: Annotated[str, typer.Option("--workload", help="command, python or live.")] = "command",
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write a commented starter scenario that runs as it is."""
    from tunegym.cli.scenarios import init as command

    _end(command, path or ["scenario.toml"], kind, force=force)


@app.command()
def verify(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Scenario files, or folders of them.")],
) -> None:
    """Check scenario files; exit 2 if any is bad."""
    from tunegym.cli.scenarios import verify as command

    _end(command, paths)


@app.command("dry-run")
def dry_run(
    scenario: ScenarioArgument,
    overrides: SetOption = None,
    slots: SlotsOption = None,
    system: SystemOption = None,
    count: Annotated[int, typer.Option("--count", min=1, help="How many first trials to show.")] = 3,
    as_json: JsonOption = False,
) -> None:
    """Show what would run: how many trials, and the first of them."""
    from tunegym.cli.scenarios import dry_run as command

    _end(command, scenario, overrides or [], slots, system, count, as_json=as_json)


@app.command()
def run(
    scenario: ScenarioArgument,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="Where results go instead of results/.")
    ] = None,
    overrides: SetOption = None,
    slots: SlotsOption = None,
    system: SystemOption = None,
) -> None:
    """Run every experiment of a scenario."""
    from tunegym.cli.run import run as command

    _end(command, scenario, output, overrides or [], slots, system)


@app.command()
def resume(
    folder: ResultsArgument = RESULTS,
    agent_steps: Annotated[
        int | None, typer.Option("--agent-steps", min=1, help="Extend the run to this many trials.")
    ] = None,
    slots: SlotsOption = None,
    force: Annotated[bool, typer.Option("--force", help="Continue although what is measured has changed.")] = False,
) -> None:
    """Continue an interrupted run, or extend a finished one."""
    from tunegym.cli.run import resume as command

    _end(command, folder, agent_steps, slots, force=force)


@app.command()
def status(folder: ResultsArgument = RESULTS, as_json: JsonOption = False) -> None:
    """Show how far a run is."""
    from tunegym.cli.results import status as command

    _end(command, folder, as_json=as_json)


@app.command()
def recommend(
    folder: ResultsArgument = RESULTS,
    context: Annotated[
        list[str] | None,
        typer.Option("--context", metavar="KEY=VALUE", help="The value of an env_param, such as load=0.5. Repeatable."),
    ] = None,
    experiment: Annotated[
        str | None, typer.Option("--experiment", metavar="NAME", help="Which one, if the run has several.")
    ] = None,
    as_toml: Annotated[bool, typer.Option("--toml", help="Print TOML on stdout, as in best.toml.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the settings to use, over all or in a context."""
    from tunegym.cli.results import recommend as command

    _end(command, folder, context or [], experiment, as_toml=as_toml, as_json=as_json)


@app.command()
def report(
    folder: ResultsArgument = RESULTS,
    show: Annotated[bool, typer.Option("--open", help="Open it in the default browser.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a run's report.html again, also while it runs."""
    from tunegym.cli.results import report as command

    _end(command, folder, show=show, as_json=as_json)


@app.command()
def compare(
    folders: Annotated[list[Path] | None, typer.Argument(metavar="DIR...", help="Runs, or a folder of them.")] = None,
    output: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="Where the page with the curves goes.")
    ] = Path("compare.html"),
    as_json: JsonOption = False,
) -> None:
    """Show several runs in one table and one page."""
    from tunegym.cli.results import compare as command

    _end(command, folders or [RESULTS], output, as_json=as_json)


@app.command()
def serve(
    reference: Annotated[str, typer.Argument(metavar="MODULE:CLASS", help="A GymServer class; modules here first.")],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Where to listen; 0: any free port.")] = 0,
    host: Annotated[str, typer.Option("--host", help="On which address.")] = "127.0.0.1",
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="Holds the token that clients must know.")
    ] = None,
    max_connections: Annotated[int, typer.Option("--max-connections", min=1, help="Servers at a time.")] = 8,
) -> None:
    """Serve a live system to experiments on other machines."""
    from tunegym.cli.serve import serve as command

    _end(command, reference, host, port, token_file, max_connections)


@app.command("list")
def list_(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="runs, agents, workloads, runners, rewards, encodings or pruners.")
    ],
    folder: Annotated[Path | None, typer.Argument(metavar="FOLDER", help="Of runs: where they are.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List runs, or what a scenario can choose from."""
    from tunegym.cli.scenarios import list_names as command

    _end(command, kind, folder, as_json=as_json)


plane = typer.Typer(help="Look at a data plane.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(plane, name="plane")


@plane.command("top")
def plane_top(
    url: Annotated[str, typer.Argument(metavar="URL", help="A plane that exists: mmap:///folder.")],
    once: Annotated[bool, typer.Option("--once", help="Print once and end.")] = False,
    interval: Annotated[float, typer.Option("--interval", metavar="S", min=0.01, help="Seconds between looks.")] = 1.0,
    as_json: JsonOption = False,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Print Prometheus' text format once (extra metrics).")
    ] = False,
) -> None:
    """Show the state of a data plane, live."""
    from tunegym.cli.plane import top as command

    if as_json and prometheus:
        raise typer.BadParameter("--json and --prometheus exclude each other")
    form = "prometheus" if prometheus else "json" if as_json else "table"
    _end(command, url, form, once=once or prometheus, interval_s=interval)


def _version(value: bool) -> None:
    if value:
        from tunegym import __version__

        typer.echo(f"tunegym {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Tune real systems with learning agents, and never lie about what was measured."""
    del version


def _end(command: Callable[P, int], *arguments: P.args, **options: P.kwargs) -> None:
    """Run a command; an error becomes a message and an exit code."""
    from tunegym.cli.terminal import guarded

    raise typer.Exit(guarded(lambda: command(*arguments, **options)))


def main() -> None:
    """The entry point of the ``tunegym`` script."""
    try:
        app()
    except OSError as error:  # commands handle theirs: this is --help or --version on a full disk
        if error.errno != errno.ENOSPC:
            raise
        sys.exit(f"error: stdout can't be written: {error.strerror}")
