"""An incoming ring stream of the server under test, with the kit as its sender."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import grpc

from openclaw_rl.conformance.context import Context, listed
from openclaw_rl.conformance.frame import Failed
from openclaw_rl.conformance.material import Material
from openclaw_rl.conformance.refusal import refusal
from openclaw_rl.delivery.ids import message_id
from openclaw_rl.v1 import common_pb2

ACCEPTED, DUPLICATE = common_pb2.ACK_STATUS_ACCEPTED, common_pb2.ACK_STATUS_DUPLICATE
REJECTED = common_pb2.ACK_STATUS_REJECTED
#: Seconds for the acknowledgements of a check's messages. A commit takes milliseconds, on a loaded machine a second.
ACK_SECONDS = 10.0


class RingStream:
    """One stream: sends messages, collects what is acknowledged.

    Attributes:
        acks: all that came, in their order.
        ended: how the stream ended; None while it runs, "" when it ended well.

    Args:
        read: collect the acknowledgements; False leaves them unread.
    """

    def __init__(self, kit: Context, channel: grpc.aio.Channel | None = None, *, read: bool = True) -> None:
        self._kit, self._material = kit, Material(kit)
        self.call: Any = kit.stream(kit.service.ring, channel=channel)
        self.acks: list[common_pb2.Ack] = []
        self.ended: str | None = None
        self._news = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        if read:
            self.read()

    def read(self) -> None:
        """Begin to collect."""
        self._reader = asyncio.create_task(self._read())

    async def send(self, messages: list[Any], size: int = 1) -> list[str]:
        """Send messages, so many to a request; gives their ids.

        Raises:
            Failed: the server has ended the stream.
        """
        for begin in range(0, len(messages), size):
            try:
                await self.call.write(self._material.request(messages[begin:begin + size]))
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                raise Failed(f"the server ended the stream behind {begin} of {len(messages)} messages: "
                             f"{await self._how()}") from None
        return [message_id(message) for message in messages]

    async def acked(self, ids: list[str], seconds: float = ACK_SECONDS) -> dict[str, common_pb2.Ack]:
        """Wait until each id is acknowledged; the last acknowledgement of each.

        Raises:
            Failed: some are not, or the stream ended before.
        """
        end = time.monotonic() + seconds
        while missing := set(ids) - {ack.id for ack in self.acks}:
            self._news.clear()
            left = end - time.monotonic()
            if self.ended is not None or left <= 0:
                why = (f"the stream ended {self.ended or 'without an error'}" if self.ended is not None
                       else f"within {seconds:g} s")
                raise Failed(f"{len(missing)} of {len(set(ids))} messages were not acknowledged ({why}): "
                             f"{listed(sorted(missing), 3)}")
            try:
                async with asyncio.timeout(left):
                    await self._news.wait()
            except TimeoutError:
                pass
        return {ack.id: ack for ack in self.acks}

    async def some(self, count: int, seconds: float = ACK_SECONDS) -> list[common_pb2.Ack]:
        """Wait for so many acknowledgements, whatever their ids."""
        await self._kit.until(lambda: len(self.acks) >= count or self.ended is not None, seconds,
                              lambda: f"{len(self.acks)} of {count} acknowledgements within {seconds:g} s")
        return list(self.acks[:count])

    async def finish(self, seconds: float = ACK_SECONDS) -> str:
        """Send no more, and read to the end; how the stream ended, "" when well.

        Raises:
            Failed: the server does not end it.
        """
        await self.call.done_writing()
        await self._kit.until(lambda: self.ended is not None, seconds,
                              f"the server did not end a stream within {seconds:g} s of its sender's end")
        return self.ended or ""

    def cut(self) -> None:
        """Break the stream."""
        self.call.cancel()

    def count(self) -> Counter[str]:
        """How often each id was acknowledged."""
        return Counter(ack.id for ack in self.acks)

    async def _read(self) -> None:
        try:
            while (response := await self.call.read()) is not grpc.aio.EOF:
                self.acks += response.acks
                self._news.set()
            self.ended = ""
        except grpc.aio.AioRpcError as error:
            self.ended = f"with {refusal(error)}"
        except asyncio.CancelledError:
            self.ended = "by the kit"
        self._news.set()

    async def _how(self) -> str:
        """How the server ended it."""
        if self._reader is None:
            self.read()
        try:
            async with asyncio.timeout(2):
                while self.ended is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        except TimeoutError:
            return "it is half open"
        return self.ended or "without an error"


def named(status: int) -> str:
    """ACCEPTED, DUPLICATE, REJECTED, or the number."""
    return (common_pb2.AckStatus.Name(status)[11:]  # type: ignore[arg-type]
            if status in common_pb2.AckStatus.values() else str(status))


async def accepted(kit: Context, messages: list[Any], *, size: int = 16, seconds: float = ACK_SECONDS) -> list[str]:
    """Send new messages on a stream of their own and have them accepted; gives their ids.

    Raises:
        Failed: one is not.
    """
    stream = RingStream(kit)
    ids = await stream.send(messages, size)
    acks = await stream.acked(ids, seconds)
    wrong = [f"{id}: {named(acks[id].status)} {acks[id].reason}".rstrip() for id in ids if acks[id].status != ACCEPTED]
    kit.expect(not wrong, f"new messages were not accepted: {listed(wrong, 3)}")
    stream.cut()
    return ids


async def statuses(kit: Context, messages: list[Any], *, size: int = 16,
                   channel: grpc.aio.Channel | None = None) -> dict[str, int]:
    """Send messages on a stream of their own; what each was answered."""
    stream = RingStream(kit, channel)
    ids = await stream.send(messages, size)
    acks = await stream.acked(ids)
    stream.cut()
    return {id: acks[id].status for id in ids}
