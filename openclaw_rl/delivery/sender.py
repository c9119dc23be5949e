"""The sending end of a ring stream: from an outbox to the next component, for as long as both live."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import grpc

from openclaw_rl.rpc import membership
from openclaw_rl.rpc.channel import MAX_MESSAGE, Credentials, connect
from openclaw_rl.rpc.errors import MeshError, from_rpc_error, unavailable
from openclaw_rl.rpc.field_count import MOST_STREAMED_FIELDS
from openclaw_rl.rpc.membership import Membership, confirm
from openclaw_rl.rpc.reconnect import ReconnectingStream
from openclaw_rl.storage.database import StorageError
from openclaw_rl.storage.outbox import Row
from openclaw_rl.v1 import common_pb2

logger = logging.getLogger(__name__)

#: Payload bytes of one request, unless a single message has more. A field has two bytes at least, so that messages
#: which a receiver takes one by one don't have too many fields together.
_REQUEST_BYTES = 2 * MOST_STREAMED_FIELDS - 2**10
#: A message that does not fit into a request at all.
_TOO_LARGE = MAX_MESSAGE - 1024
#: Seconds between two requests while no backlog fills them: messages that come faster share a request, and with it
#: the transactions at both ends, which are most of a message's cost. One that comes alone does not wait.
_GATHER = 0.005
#: Seconds for the connection to come up.
_CONNECT_SECONDS = 10.0
#: Most messages in flight at first after a broken stream; each settled message allows one more, up to the window. What
#: a peer that breaks each stream is sent once more is bounded by it.
_SLOW_START = 8


class Waiting(Protocol):
    """Messages that wait for the next component: an `Outbox`, or what stands for one without a disk."""

    name: str
    connected: bool
    last_error: str

    @property
    def pending(self) -> int:
        """Number of messages that wait."""

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Call `listener` after each message that is put; None ends it."""

    async def fetch(self, after: int, limit: int, max_bytes: int) -> list[Row]:
        """Return the oldest messages behind `after`."""

    async def acknowledge(self, acks: Iterable[common_pb2.Ack]) -> list[str]:
        """Settle messages; return their ids."""

    async def refuse(self, ids: Iterable[str], reason: str) -> None:
        """Set messages aside that can't be sent."""


class Sender:
    """Sends what is in an outbox and settles it as acks arrive; whatever happens to the neighbour, nothing is lost.

    A put wakes it. At most `window` messages are in flight. After a broken stream it connects again, after a pause that
    grows until a window of messages, or as many as wait, has been settled or a stream has lasted, and sends everything
    that is not acknowledged once more, a few messages at first. Use it from one event loop.

    Args:
        outbox: the messages.
        resolve: the neighbour's address, asked anew for every attempt; None when it isn't known yet.
        open_stream: the stub method of a channel, such as `lambda c: JudgeServiceStub(c).JudgeTransitions`.
        make_request: a request that holds these payloads. A payload on which it raises is set aside.
        window: most messages in flight.
        batch: most messages of one request.
        on_acked: called with the ids of each settled batch.
        ack_timeout: seconds after which a stream whose oldest message is not answered is given up.
        role: the component that the neighbour must be, by its certificate; "" takes any.
        credentials, ours: to use in place of the current component's.
        on_failure: called with what ended a stream, each time.
    """

    def __init__(self, outbox: Waiting, resolve: Callable[[], str | None],
                 open_stream: Callable[[grpc.aio.Channel], Callable[[], Any]],
                 make_request: Callable[[list[bytes]], Any], window: int = 256, batch: int = 64,
                 on_acked: Callable[[list[str]], None] | None = None, *, ack_timeout: float = 60.0,
                 role: str = "", credentials: Credentials | None = None, ours: Membership | None = None,
                 on_failure: Callable[[MeshError], None] | None = None) -> None:
        self._outbox, self._resolve, self._open_stream, self._make_request = outbox, resolve, open_stream, make_request
        self._window, self._batch, self._on_acked, self._ack_timeout = window, batch, on_acked, ack_timeout
        self._role, self._credentials, self._on_failure = role, credentials, on_failure
        self._ours = ours or membership.current()
        self._wake = asyncio.Event()
        self._in_flight: dict[str, None] = {}  # ids in the order in which they were sent
        self._head_since = 0.0  # when the oldest of them became the oldest
        self._allowed = window  # most messages in flight now
        self._stream = ReconnectingStream(f"outbox {outbox.name}", self._one_stream, level=logging.WARNING)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, on the running event loop."""
        loop = asyncio.get_running_loop()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(self._wake.set)
            except RuntimeError:  # the loop has ended; the message waits on disk for the next start
                pass

        self._outbox.listen(wake)
        self._task = loop.create_task(self._stream.run(), name=f"sender {self._outbox.name}")

    async def stop(self) -> None:
        """End. What is not acknowledged stays on disk."""
        self._outbox.listen(None)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _one_stream(self) -> None:
        """Connect and send until the stream breaks.

        Raises:
            MeshError: what ended it.
        """
        try:
            address = self._resolve()
            if address is None:
                raise unavailable("the next component has not started yet")
            try:
                async with connect(address, self._role, self._credentials, self._ours) as channel:
                    await self._converse(self._open_stream(channel)(), address)
            except StorageError:  # ours, not the neighbour's
                raise
            except (grpc.RpcError, MeshError) as error:
                failure = error if isinstance(error, MeshError) else from_rpc_error(error)
                if self._ours is not None:
                    self._ours.note(failure, self._role)
                if self._on_failure is not None:
                    self._on_failure(failure)
                raise MeshError(failure.code, failure.reason, f"{address}: {failure.message}") from error
        except Exception as error:
            self._outbox.last_error = error.message if isinstance(error, MeshError) else repr(error)
            raise
        finally:
            self._outbox.connected = False
            self._allowed = min(self._window, _SLOW_START)

    async def _converse(self, call: Any, address: str) -> None:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await call.wait_for_connection()
                await confirm(call, self._role, address, self._ours)
        except TimeoutError:
            raise unavailable("it does not answer") from None
        self._outbox.connected = True
        self._outbox.last_error = ""
        self._stream.answered()
        logger.info("outbox %s: connected to %s", self._outbox.name, address)
        self._in_flight.clear()
        writer = asyncio.create_task(self._write(call))
        reader = asyncio.create_task(self._read(call))
        try:
            await asyncio.wait((writer, reader), return_when=asyncio.FIRST_COMPLETED)
            if not reader.done() and isinstance(writer.exception(), asyncio.InvalidStateError):
                await asyncio.wait((reader,))  # the call has ended; the reader knows why
            await (reader if reader.done() else writer)
        finally:
            writer.cancel()
            reader.cancel()
            await asyncio.gather(writer, reader, return_exceptions=True)
            call.cancel()

    async def _write(self, call: Any) -> None:
        cursor, sent_at = 0, 0.0
        while True:
            self._wake.clear()
            limit = min(self._allowed - len(self._in_flight), self._batch)
            rows = await self._outbox.fetch(cursor, limit, _REQUEST_BYTES) if limit > 0 else []
            if not rows:
                await self._wait()
                await asyncio.sleep(max(0, sent_at + _GATHER - time.monotonic()))
                continue
            cursor, sent_at = rows[-1].seq, time.monotonic()
            request, rows = await self._request(rows)
            if not rows:
                continue
            if not self._in_flight:
                self._head_since = time.monotonic()
            self._in_flight.update(dict.fromkeys(row.id for row in rows))
            try:
                async with asyncio.timeout(self._ack_timeout):
                    await call.write(request)
            except TimeoutError:
                raise self._silent() from None

    async def _wait(self) -> None:
        """Wait for a put or an ack, but not longer than the oldest message in flight may take."""
        if not self._in_flight:
            await self._wake.wait()
            return
        try:
            async with asyncio.timeout(self._head_since + self._ack_timeout - time.monotonic()):
                await self._wake.wait()
        except TimeoutError:
            raise self._silent() from None

    def _silent(self) -> MeshError:
        return MeshError(grpc.StatusCode.UNAVAILABLE, "NO_ACK", "no answer to "
                         f"{next(iter(self._in_flight), 'a message')} for {self._ack_timeout:g} s", retry_after=1.0)

    async def _request(self, rows: list[Row]) -> tuple[Any, list[Row]]:
        """A request of the rows that can be sent; the others are set aside."""
        try:
            if all(len(row.payload) <= _TOO_LARGE for row in rows):
                return self._make_request([row.payload for row in rows]), rows
        except Exception:
            logger.debug("outbox %s: looking for the message that can't be sent", self._outbox.name, exc_info=True)
        good = []
        for row in rows:
            if len(row.payload) > _TOO_LARGE:
                await self._outbox.refuse([row.id], f"it has {len(row.payload)} bytes, more than {_TOO_LARGE}")
                continue
            try:
                self._make_request([row.payload])
                good.append(row)
            except Exception as error:
                await self._outbox.refuse([row.id], f"it can't be read: {error!r}")
        return self._make_request([row.payload for row in good]), good

    async def _read(self, call: Any) -> None:
        while (response := await call.read()) is not grpc.aio.EOF:
            settled = await self._outbox.acknowledge(response.acks)
            head = next(iter(self._in_flight), None)
            for id in (*settled, *(ack.id for ack in response.acks if ack.status)):  # some were forgotten meanwhile
                self._in_flight.pop(id, None)
            if head not in self._in_flight:
                self._head_since = time.monotonic()
            self._allowed = min(self._window, self._allowed + len(settled))
            waited = len(settled) + self._outbox.pending
            self._stream.progressed(len(settled) / min(self._window, max(waited, _SLOW_START)))
            self._wake.set()
            if settled and self._on_acked is not None:
                self._on_acked(settled)
        raise unavailable("it has ended the stream")
