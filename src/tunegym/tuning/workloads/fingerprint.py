"""The fingerprint of a workload, in digests: if none of them changed, an earlier measurement still counts.

A fingerprint covers the template or the callable's source, fixed parameters, environment variables, metric
definitions and the files that are named. Knobs, budgets, timeouts and the agent are not part of it.
"""

from __future__ import annotations

import ast
import itertools
import os
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from tunegym.core.references import locate
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.workloads.template import ENV_PREFIX, candidates

FILE_PART = "file "
"""How the names of parts that are files begin."""

LARGE = 64 * 2**20
"""Files above this many bytes are known by size and time of change instead of by content."""

_PUNCTUATION = frozenset("();<>|&")
_CHANGING = ("/proc/", "/sys/", "/dev/")  # not content: reading them twice gives two answers


def digest(value: Any) -> str:
    """A digest of plain data, the same in every process; the order of keys doesn't matter."""
    text = msgspec.json.encode(value, enc_hook=repr, order="deterministic")
    return blake2b(text, digest_size=16).hexdigest()


class Fingerprinted:
    """A workload that is known by the parts that decide its measurements."""

    def __init__(self, experiment: Experiment, scenario_dir: Path) -> None:
        self._experiment = experiment
        self._scenario_dir = Path(os.path.abspath(scenario_dir))  # noqa: PTH100 (links stay as they are)

    def fingerprint(self) -> str:
        """The digest of all ``fingerprint_parts``, as the files are now."""
        return digest(self.fingerprint_parts())

    def fingerprint_parts(self) -> dict[str, str]:
        """A digest per thing that decides a measurement, such as ``command`` or ``file run.sh``."""
        raise NotImplementedError


def settings_parts(experiment: Experiment) -> dict[str, str]:
    """The parts of every workload that runs jobs: its arguments, fixed parameters, variables, metrics."""
    fixed = experiment.space.fixed
    # Whether a metric is also looked at while the job runs doesn't decide its value.
    metrics = [{key: value for key, value in asdict(spec).items() if key != "stream"} for spec in experiment.metrics]
    return {
        **{key: digest(value) for key, value in sorted(experiment.workload_args.items())},
        "fixed parameters": digest({k: v for k, v in fixed.items() if not k.startswith(ENV_PREFIX)}),
        "environment variables": digest({k: v for k, v in fixed.items() if k.startswith(ENV_PREFIX)}),
        "metrics": digest(sorted(metrics, key=lambda spec: spec["name"])),
    }


def file_parts(
    experiment: Experiment,
    scenario_dir: Path,
    commands: Iterable[str] = (),
    reference: str = "",
    source: str | None = None,
) -> dict[str, str]:
    """A part ``file NAME`` per file that matters; those of the scenario are named relative to it, so it can move.

    Files may be named by parameters and by the words of ``commands``; ``source`` is the module of ``reference``.
    """
    files = set(_named_files(experiment, commands, scenario_dir))
    if source is not None:
        files.update(_module_files(reference.partition(":")[0], source, scenario_dir))
    return {f"{FILE_PART}{_shown(file, scenario_dir)}": file_digest(file) for file in sorted(files)}


def file_digest(file: Path) -> str:
    """A digest of a file's content, or of its size and time of change when it is large."""
    try:
        stat = file.stat()
        if stat.st_size > LARGE:
            return digest([stat.st_size, stat.st_mtime_ns])
        return blake2b(file.read_bytes(), digest_size=16).hexdigest()
    except OSError as error:
        return f"unreadable: {error.strerror}"


def _shown(file: Path, scenario_dir: Path) -> str:
    return str(file.relative_to(scenario_dir) if file.is_relative_to(scenario_dir) else file)


def _named_files(experiment: Experiment, commands: Iterable[str], scenario_dir: Path) -> Iterator[Path]:
    """The existing regular files that commands' words and parameters' values name."""
    lines = [words_of(command.replace("{scenario_dir}", str(scenario_dir))) for command in commands]
    written = {file for line in lines for word in outputs(line) for file in files_of(word, scenario_dir)}
    for word in itertools.chain(*lines):
        for name in (word, word.partition("=")[2]):  # also --config=tuned.ini
            # A file that a command itself writes is no part of the command.
            yield from (file for file in files_of(name, scenario_dir) if file not in written)
    for _, value in candidates(experiment):
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, str):
                yield from files_of(item.replace("{scenario_dir}", str(scenario_dir)), scenario_dir)


def words_of(command: str) -> list[str]:
    """The words of a shell command; quotes are removed."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError:  # quotes that only a real shell understands
        return command.split()


def outputs(words: list[str]) -> Iterator[str]:
    """The words that a command writes to: after ``>`` and its kin, and all that follow ``tee``."""
    teeing = False
    for before, word in itertools.pairwise(["", *words]):
        teeing = (teeing or before == "tee") and not _PUNCTUATION.issuperset(word)
        if before.endswith(">") or teeing:
            yield word


def files_of(word: str, scenario_dir: Path) -> Iterator[Path]:
    """The existing regular file that a word names, if any."""
    if not word or "\0" in word or len(word) > 4096:
        return
    file = Path(os.path.normpath(scenario_dir / word))
    try:
        if file.is_file() and not str(file).startswith(_CHANGING):
            yield file
    except OSError:  # a name too long for the file system names no file
        return


def _module_files(module: str, file: str, scenario_dir: Path) -> Iterator[Path]:
    """The source of a module, and of every module beside the scenario that it imports, directly or not."""
    waiting, seen = [(module, file)], {file}
    while waiting:
        name, source = waiting.pop()
        yield Path(source)
        for imported in _imports(name, source):
            found = locate(imported, [str(scenario_dir)])
            if found is not None and found not in seen:
                seen.add(found)
                waiting.append((imported, found))


def _imports(module: str, file: str) -> Iterator[str]:
    """Dotted names that a module may import, parents included: importing ``a.b`` runs ``a`` as well."""
    try:
        source = Path(file).read_bytes()
        try:
            tree = ast.parse(source)
        except SystemError:  # of CPython 3.11, if another thread prints a traceback meanwhile
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    package = module.split(".") if Path(file).name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(tree):
        names: list[list[str]] = []
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = [*above, *(node.module.split(".") if node.module else [])]
            names = [base, *([*base, alias.name] for alias in node.names)]  # the name may be a module
        for parts in names:
            yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))
