"""What a plane says of itself."""

from __future__ import annotations

from typing import Any

import pytest

from tunegym.dataplane import DataPlaneClient, attach
from tunegym.dataplane.errors import ClaimTimeoutError
from tunegym.testing.planes.fixtures import PATIENCE_S, Begin, Join, P, PlaneFixtures, named, tokens


def count_of(histogram: dict[str, Any]) -> int:
    """How many values are in a histogram."""
    assert len(histogram["counts"]) == len(histogram["bounds"]) + 1
    return sum(histogram["counts"])


class ObservingSuite(PlaneFixtures):
    """``stats()``, from any client."""

    def test_how_long_puts_and_claims_take(self, plane: DataPlaneClient, join: Join, begin: Begin) -> None:
        """Each that got what it wanted counts once, in what every client sees; waiting is counted apart, too."""
        other = join(attach)
        for first in range(3):
            plane.put_samples(P, [f"s-{first}"], {"tokens": tokens([f"s-{first}"])})
        plane.ack(plane.claim_meta(P, "train", ["tokens"], 2))
        for timeout_s in (0, 0.001):
            with pytest.raises(ClaimTimeoutError):
                plane.claim_meta(P, "train", ["tokens"], 9, timeout_s=timeout_s)
        waiting = begin(plane.claim_meta, P, "judge", ["tokens"], 4, timeout_s=None)
        plane.put_samples(P, named(1, 3), {"tokens": tokens(named(1, 3))})
        waiting.result(PATIENCE_S)
        found = other.stats()[P]
        assert [count_of(found[name]) for name in ("put_latency", "put_wait")] == [4, 4]
        assert found["put_wait"]["sum"] == 0.0
        assert found["put_latency"]["sum"] > 0.0
        train, judge = found["tasks"]["train"], found["tasks"]["judge"]
        for task in (train, judge):
            assert [count_of(task[name]) for name in ("claim_latency", "claim_wait")] == [1, 1]
            assert task["claim_wait"]["sum"] <= task["claim_latency"]["sum"]
        assert train["claim_wait"]["sum"] == 0.0
        assert judge["claim_wait"]["sum"] > 0.0

    def test_a_partition_that_is_made_anew_begins_anew(self, plane: DataPlaneClient) -> None:
        """A partition that is made anew begins anew."""
        plane.put_samples(P, named(1), {"tokens": tokens(named(1))})
        plane.delete_partition(P)
        plane.register_partition(P, ["tokens"], ["train"])
        found = plane.stats()[P]
        assert (found["produced"], count_of(found["put_latency"])) == (0, 0)
