"""Messages are read while the one before is worked on, none too many, and an end is an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from openclaw_rl.rpc.read_ahead import ReadAhead


class Source:
    """Gives numbers; raises behind the last one."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.given, self.closed = 0, False
        self._count, self._error = count, error

    async def __aiter__(self) -> AsyncIterator[int]:
        try:
            while self.given < self._count:
                self.given += 1
                yield self.given
            if self._error:
                raise self._error
        finally:
            self.closed = True


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_few_are_ReadAhead() -> None:
    source = Source(10)
    stream = ReadAhead(source, 2)
    assert await anext(stream) == 1
    await settle()
    assert source.given == 4, "two in the queue and one that waits for room"
    assert [stream.take(), stream.take(), stream.take()] == [2, 3, None], "what has arrived, without waiting"
    assert [number async for number in stream] == list(range(4, 11)) and source.closed
    assert stream.take() is None and [number async for number in stream] == []


async def test_an_error_comes_behind_what_came_before_it() -> None:
    got = []
    with pytest.raises(OSError, match="broken"):
        async for number in ReadAhead(Source(3, OSError("broken"))):
            got.append(number)
    assert got == [1, 2, 3]


async def test_whoever_leaves_ends_the_reading() -> None:
    source = Source(10)
    stream = ReadAhead(source)
    assert await anext(stream) == 1
    await stream.aclose()
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    await settle()
    assert source.given < 10
