"""Text: foreign text made safe to print and to write, and the closest spelling of an unknown word.

An escape sequence in text that others wrote must not reach a terminal as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


def escaped(text: str, keep: str = "") -> str:
    r"""``text`` with every character that is not printable as its escape: ``\x1b``, ``\u202e``, ``\n``.

    Args:
        text: any, also with half a surrogate pair in it.
        keep: characters that stay as they are, such as the newlines of a text that has lines.
    """
    return _replaced(text, lambda char: char.encode("unicode_escape").decode(), keep)


def escaped_lines(text: str) -> str:
    """As ``escaped``, for a text of several lines: newlines and tabs stay."""
    return escaped(text, keep="\n\t")


def escaped_toml(text: str) -> str:
    """A string in TOML's double quotes, with escapes that TOML reads as the same."""
    return _replaced(text, lambda char: f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}")


def escaped_json(text: str) -> str:
    """A JSON document, with escapes that JSON reads as the same; its lines stay."""
    import json

    return _replaced(text, lambda char: json.dumps(char)[1:-1], keep="\n")


def _replaced(text: str, escape: Callable[[str], str], keep: str = "") -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else escape(char) for char in text)


def printable(text: str) -> str:
    """Text that any file or message can hold: half a surrogate pair (from a file's name) is spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()


def error_text(error: BaseException) -> str:
    """An exception in one line that any file can hold: its type, and at most 500 characters of its text."""
    try:
        text = printable(" ".join(str(error).split()))
    except Exception:  # __str__ is a user's code, too
        text = "(its text can't be read)"
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__


def closest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that ``word`` was probably meant to be, or None if none is near."""
    import difflib

    by_lower = {candidate.lower(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(word.lower(), by_lower, n=1)
    if not matches and len(word) > 2:  # an abbreviation of just one of them, or a longer form
        both = [(candidate, word.lower()) for candidate in by_lower if len(candidate) > 2]
        matches = [candidate for candidate, given in both if candidate.startswith(given) or given.startswith(candidate)]
    return by_lower[matches[0]] if len(matches) == 1 else None


def did_you_mean(word: str, names: Iterable[str], otherwise: str) -> str:
    """A hint with the name that ``word`` was probably meant to be, or ``otherwise``."""
    near = closest(word, names)
    return f'did you mean "{near}"?' if near else otherwise
