"""An algorithm that fails: what was measured is safe, and the run ends with the reason."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

logger = logging.getLogger(__name__)

DIVERGED = "the network is no longer of finite numbers; a smaller learning_rate, ent_coef or vf_coef keeps it from that"


class TrainingError(Exception):
    """The algorithm itself failed. What was measured is safe."""


@contextlib.contextmanager
def training() -> Iterator[None]:
    """What the algorithm raises is a ``TrainingError``. Only its own calls belong in here: a bug of ours is none."""
    try:
        yield
    except TrainingError:  # it says already what it has to
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        if isinstance(error, ValueError) and "nan" in text:  # how torch says it, with all the numbers
            raise TrainingError(DIVERGED) from error
        logger.warning("what the algorithm raised:", exc_info=True)
        raise TrainingError(f"{type(error).__name__}: {text[:300]}") from error
