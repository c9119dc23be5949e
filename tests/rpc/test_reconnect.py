"""Streams that are opened again when they break."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import pairwise

import grpc
import pytest

from openclaw_rl.rpc.errors import unavailable
from openclaw_rl.rpc.reconnect import ReconnectingStream, TryAgain, together


def rpc_error(code: grpc.StatusCode, trailing: tuple[tuple[str, bytes], ...] = ()) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), "no")


async def run(stream: ReconnectingStream, until: Callable[[], bool]) -> None:
    task = asyncio.create_task(stream.run())
    deadline = time.monotonic() + 10
    while not until():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
    stream.stopping.set()
    await task


async def test_pauses_grow_until_something_comes_of_it() -> None:
    began: list[float] = []

    async def converse() -> None:
        began.append(time.monotonic())
        stream.progressed(0.3 if len(began) < 3 else 0.6)
        raise TryAgain("not yet")

    stream = ReconnectingStream("talk", converse)
    await run(stream, lambda: len(began) == 4)
    gaps = [b - a for a, b in pairwise(began)]
    assert gaps[0] > 0.09 and gaps[1] > 0.19 and gaps[2] < gaps[1] and stream.error == "not yet"


async def test_pauses_grow_while_it_is_stuck_whatever_came_of_it() -> None:
    began: list[float] = []

    async def converse() -> None:
        began.append(time.monotonic())
        await asyncio.sleep(0)
        stream.progressed()
        raise TryAgain("the disk is full", stuck=True)

    stream = ReconnectingStream("talk", converse)
    await run(stream, lambda: len(began) == 3)
    gaps = [b - a for a, b in pairwise(began)]
    assert gaps[0] > 0.09 and gaps[1] > 0.19


async def test_one_that_is_getting_ready_is_not_down() -> None:
    errors = [rpc_error(grpc.StatusCode.UNAVAILABLE), rpc_error(grpc.StatusCode.UNAVAILABLE),
              rpc_error(grpc.StatusCode.UNAVAILABLE, unavailable("loading").trailing_metadata())]
    downs: list[float] = []
    began: list[float] = []

    async def converse() -> None:
        began.append(time.monotonic())
        downs.append(stream.down())
        raise errors[min(len(downs), 3) - 1]

    stream = ReconnectingStream("talk", converse)
    await run(stream, lambda: len(downs) == 4)
    assert downs[2] >= began[2] - began[0] > 0.25
    assert downs[3] < began[3] - began[2] + 0.05, "counted from the third on, in which it answered"
    assert stream.error == "no" and stream.reason == "UNAVAILABLE"


async def test_a_fault_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def converse() -> None:
        raise ZeroDivisionError

    stream = ReconnectingStream("talk", converse)
    await run(stream, lambda: "Traceback" in caplog.text)
    assert "talk failed" in caplog.text


async def test_the_parts_of_a_conversation_end_together() -> None:
    ended = asyncio.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def fails() -> None:
        raise OSError("gone")

    async def cancels() -> None:
        raise asyncio.CancelledError

    with pytest.raises(OSError, match="gone"):
        await together([waits(), fails()], "cancelled")
    assert ended.is_set()
    with pytest.raises(TryAgain, match="cancelled there"):
        await together([cancels()], "cancelled there")
