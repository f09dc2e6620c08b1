"""What every data plane must do. Subclass ``DataPlaneSuite``, say where yours is, and let pytest collect it.

A plane that outlives its processes subclasses ``DurablePlaneSuite`` of ``tunegym.testing.durable_planes``.
"""

from __future__ import annotations

from tunegym.testing.planes.batches import BatchesSuite
from tunegym.testing.planes.claims import ClaimsSuite
from tunegym.testing.planes.fixtures import PATIENCE_S, Begin, Join, P, named, tokens, until
from tunegym.testing.planes.interrupts import InterruptsSuite
from tunegym.testing.planes.life import LifeSuite
from tunegym.testing.planes.observing import ObservingSuite
from tunegym.testing.planes.refusals import RefusalsSuite

__all__ = ["PATIENCE_S", "Begin", "DataPlaneSuite", "Join", "P", "named", "tokens", "until"]


class DataPlaneSuite(ClaimsSuite, BatchesSuite, LifeSuite, RefusalsSuite, InterruptsSuite, ObservingSuite):
    """P1 to P15, through the client only. ``url`` says where the plane is.

    Attributes:
        durable: whether the plane says that it outlives its processes.
    """
