"""The closest spelling of a word that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable


def closest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that ``word`` was probably meant to be, or None if none is near."""
    import difflib

    by_lower = {candidate.lower(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(word.lower(), by_lower, n=1)
    if not matches and len(word) > 2:  # an abbreviation of just one of them
        matches = [candidate for candidate in by_lower if candidate.startswith(word.lower())]
    return by_lower[matches[0]] if len(matches) == 1 else None
