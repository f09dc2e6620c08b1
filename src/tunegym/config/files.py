"""What a scenario file holds, or what is wrong with the file itself."""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tunegym.config.spelling import listed
from tunegym.core.errors import ConfigError, Problem


def content(path: Path) -> dict[str, Any]:
    """The file's content; whatever is wrong with the file is a ``ConfigError``."""
    problem: Problem
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ConfigError(str(path), [Problem("", "this is not a regular file", hint="name a .toml file")])
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        problem = Problem("", "there is no such file", hint=_closest_file(path))
    except IsADirectoryError:
        files = listed(sorted(file.name for file in path.glob("*.toml"))[:5])
        problem = Problem("", "this is a folder, not a file", hint=f"name a file in it: {files}")
    except UnicodeDecodeError as error:
        what = f"the file is not UTF-8 (byte {error.start})"
        problem = Problem("", what, hint="save it as UTF-8")
    except tomllib.TOMLDecodeError as error:
        problem = Problem("", f"this is not TOML: {error}", hint=_syntax_hint(str(error)))
    except (ValueError, RecursionError):
        what = "this is not TOML that we can read: a number too long, a path too odd, or nesting too deep"
        problem = Problem("", what, hint="simplify the file")
    except OSError as error:
        what = f"the file can't be read: {error.strerror or error}"
        problem = Problem("", what, hint="check its permissions")
    raise ConfigError(str(path), [problem])


def _closest_file(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix == ".toml" or entry.is_dir()]
    except OSError:
        return f"there is no folder {path.parent} either"
    matches = get_close_matches(path.name, names, n=3, cutoff=0.5)
    if matches:
        return f"did you mean {' or '.join(str(path.parent / name) for name in matches)}?"
    return f"in its folder: {listed(sorted(names)[:5])}" if names else "start one with: tunegym init"


def _syntax_hint(message: str) -> str:
    if "overwrite" in message or "twice" in message or "mutate" in message:
        return "a key or a [table] stands there twice: remove one"
    if "Invalid value" in message:
        return "put strings in quotes; write true and false in small letters"
    return "see https://toml.io for the syntax; strings stand in quotes, tables in [brackets]"
