"""Interrupts and cancelled tasks: a call has taken effect or not, and nobody keeps what nobody knows of."""

from __future__ import annotations

import asyncio
import contextlib
import linecache
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from tunegym.dataplane import BatchMeta, DataPlaneClient, attach
from tunegym.dataplane.errors import ClaimTimeoutError, LeaseLostError
from tunegym.testing.planes.fixtures import PATIENCE_S, Begin, Join, P, PlaneFixtures, named, tokens, until

TRACED = ("tunegym/dataplane", "tunegym/core", "contextlib.py")


def interrupted(call: Callable[[], Any], at: int) -> bool:
    """Call with Ctrl-C at the so manieth line that runs; whether it had so many."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        del argument
        if not any(one in frame.f_code.co_filename for one in TRACED):
            return None
        if event == "line" and not uninterrupted(frame):
            lines += 1
            if lines == at:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return trace

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    before = sys.gettrace()
    try:
        next(_alone(lambda: (sys.settrace(trace), call())))
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
        signal.signal(signal.SIGINT, handler)
    return lines >= at


def _alone(call: Callable[[], Any]) -> Iterator[Any]:
    """Call in a generator, which has a state of its own for exceptions that are being handled.

    What a tracer raises within ``except`` leaves the exception that was handled there behind, for all that runs later.
    """
    yield call()


def uninterrupted(frame: FrameType) -> bool:
    """Whether it is at the beginning of a ``try``, or perhaps at the end of a ``with``.

    Python looks for no signal there, and what a tracer raises there is not even seen by the ``with`` around it.
    """
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith(("with ", "try:"))


def everywhere(call: Callable[[], Any], after: Callable[[], None]) -> None:
    """Interrupt a call wherever it can be, and look each time what became of it."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("only the main thread is interrupted")
    at = 1
    while interrupted(call, at):
        after()
        at += 1
    assert at > 1
    assert sys.exc_info() == (None, None, None)


class InterruptsSuite(PlaneFixtures):
    """Ctrl-C at any moment, and tasks that are cancelled."""

    @pytest.mark.slow
    def test_an_interrupted_put_is_there_or_not(self, plane: DataPlaneClient) -> None:
        """An interrupted put is there wholly or not at all, and the client goes on."""
        tried = 0

        def put() -> None:
            nonlocal tried
            tried += 1
            ids = named(2, 2 * tried)
            plane.put_samples(P, ids, {"tokens": tokens(ids)})

        def after() -> None:
            ids = named(2, 2 * tried)
            found = plane.stats()[P]
            if found["produced"] % 2 or found["blocks"] * 2 != found["produced"]:
                pytest.fail(f"by half: {found}")
            if found["produced"]:
                claimed = plane.claim_meta(P, "train", ["tokens"], 2, timeout_s=0)
                rows = plane.get_data(claimed)["tokens"].to_list()
                assert [row.tolist() for row in rows] == [row.tolist() for row in tokens(ids)]
                plane.delete_partition(P)
                plane.register_partition(P, ["tokens", "reward"], ["train", "judge"])
            assert plane.stats()[P]["bytes"] == 0

        everywhere(put, after)

    @pytest.mark.slow
    def test_an_interrupted_claim_keeps_nothing(self, plane: DataPlaneClient) -> None:
        """What an interrupted claim got is given back at once."""
        plane.put_samples(P, named(4), {"tokens": tokens(named(4))})
        got: list[BatchMeta] = []

        def claim() -> None:
            got.append(plane.claim_meta(P, "train", ["tokens"], 2))

        def wait() -> None:
            with contextlib.suppress(ClaimTimeoutError):
                plane.claim_meta(P, "judge", ["reward"], 2, timeout_s=0.001)

        def after() -> None:
            while got:
                plane.release(got.pop())
            found = plane.stats()[P]
            assert found["waiting"] == {"puts": 0, "claims": 0}
            assert [one["leased"] for one in found["tasks"].values()] == [0, 0]

        everywhere(claim, after)
        everywhere(wait, after)

    @pytest.mark.slow
    def test_an_interrupted_ack_took_effect_or_not(self, plane: DataPlaneClient) -> None:
        """An interrupted ack or read leaves the client as it was; acking again tells."""
        plane.put_samples(P, named(2000), {"tokens": tokens(named(2000))})
        claimed: BatchMeta = plane.claim_meta(P, "train", ["tokens"], 2)

        def after() -> None:
            nonlocal claimed
            found = plane.stats()[P]["tasks"]["train"]
            if found["leased"] == 2:
                plane.ack(claimed)
            else:
                assert found["leased"] == 0
                with pytest.raises(LeaseLostError):
                    plane.ack(claimed)
            claimed = plane.claim_meta(P, "train", ["tokens"], 2)

        everywhere(lambda: plane.ack(claimed), after)

        def read() -> None:
            rows = plane.get_samples(claimed, ["tokens"])["tokens"].to_list()
            assert [row.tolist() for row in rows] == [row.tolist() for row in tokens(claimed.sample_ids)]

        everywhere(read, read)

    def test_ctrl_c_ends_a_wait(self, plane: DataPlaneClient) -> None:
        """Whoever is interrupted waits no more, and gets nothing later."""
        if threading.current_thread() is not threading.main_thread():
            pytest.skip("only the main thread is interrupted")
        main = threading.get_ident()

        def interrupt() -> None:
            until(lambda: plane.stats()[P]["waiting"]["claims"] == 1, "the claim waits")
            signal.pthread_kill(main, signal.SIGINT)

        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        other = threading.Thread(target=interrupt)
        try:
            other.start()
            with pytest.raises(KeyboardInterrupt):
                plane.claim_meta(P, "train", ["tokens"], 2, timeout_s=None)
        finally:
            signal.signal(signal.SIGINT, handler)
            other.join()
        assert plane.stats()[P]["waiting"]["claims"] == 0
        plane.put_samples(P, named(2), {"tokens": tokens(named(2))})
        assert plane.claim_meta(P, "train", ["tokens"], 2, timeout_s=0).size == 2

    def test_async_twins(self, plane: DataPlaneClient) -> None:
        """Many wait in one event loop, and none of them is in the way of the put that they wait for."""

        async def both() -> list[BatchMeta]:
            claims = [asyncio.create_task(plane.claim_meta_async(P, "train", ["tokens"], 2)) for _ in range(40)]
            while plane.stats()[P]["waiting"]["claims"] < 40:
                await asyncio.sleep(0.005)
            await plane.put_samples_async(P, named(80), {"tokens": tokens(named(80))})
            return await asyncio.gather(*claims)

        claimed = asyncio.run(both())
        assert sorted(one for part in claimed for one in part.sample_ids) == sorted(named(80))

    def test_a_cancelled_claim_keeps_nothing(self, plane: DataPlaneClient, begin: Begin, join: Join) -> None:
        """Cancelled while it waits, or at any moment around the put that completes it: nothing stays leased."""
        other = join(attach)

        async def cancelled_while_it_waits() -> None:
            claim = asyncio.create_task(plane.claim_meta_async(P, "train", ["tokens"], 2, timeout_s=None))
            while not plane.stats()[P]["waiting"]["claims"]:
                await asyncio.sleep(0.005)
            claim.cancel()
            with pytest.raises(asyncio.CancelledError):
                await claim
            assert plane.stats()[P]["waiting"]["claims"] == 0

        async def cancelled_at_any_moment(turns: int) -> None:
            claim = asyncio.create_task(plane.claim_meta_async(P, "train", ["tokens"], 2, timeout_s=None))
            for _ in range(turns):
                await asyncio.sleep(0.0003)
            claim.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                plane.release(await claim)
            found = plane.stats()[P]
            assert (found["tasks"]["train"]["leased"], found["waiting"]["claims"]) == (0, 0)

        asyncio.run(cancelled_while_it_waits())
        other.put_samples(P, named(2), {"tokens": tokens(named(2))})
        for turns in range(20):
            asyncio.run(cancelled_at_any_moment(turns))
        waiting = begin(other.claim_meta, P, "train", ["tokens"], 2, timeout_s=None)
        assert waiting.result(PATIENCE_S).size == 2

    def test_a_cancelled_put_is_there_or_not(self, plane: DataPlaneClient) -> None:
        """A put that is cancelled while it waits for room is never there; room goes to the next."""
        plane.register_partition("full", ["tokens"], ["train"], capacity=2)
        plane.put_samples("full", named(2), {"tokens": tokens(named(2))})

        async def cancelled() -> None:
            put = asyncio.create_task(plane.put_samples_async("full", named(2, 2), {"tokens": tokens(named(2, 2))}))
            while not plane.stats()["full"]["waiting"]["puts"]:
                await asyncio.sleep(0.005)
            put.cancel()
            with pytest.raises(asyncio.CancelledError):
                await put

        asyncio.run(cancelled())
        assert plane.stats()["full"]["waiting"]["puts"] == 0
        plane.clear_samples("full", named(2))
        assert plane.stats()["full"]["alive"] == 0
        plane.put_samples("full", named(2, 2), {"tokens": tokens(named(2, 2))}, timeout_s=0)
