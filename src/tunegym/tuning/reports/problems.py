"""What keeps an experiment that is over from being a success."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NO_TRIAL = "it made no trial"
NOT_MEASURED = "none of its trials was measured"


def problem_of(state: str, statuses: Mapping[str, int], ended: Mapping[str, Any] | None) -> str | None:
    """What went wrong; None if nothing did, and while it may still turn out well.

    Args:
        state: as ``state_of`` gives it.
        statuses: how many trials there are of each status.
        ended: the journal's last record, if that is its end.
    """
    if state not in ("finished", "interrupted"):
        return None
    if any(statuses.values()) and not statuses.get("measured", 0):
        return NOT_MEASURED
    if ended is not None and not any(statuses.values()):
        return NO_TRIAL
    if ended is not None and ended["code"]:
        return f"it ended with code {ended['code']} ({ended['reason']})"
    return None
