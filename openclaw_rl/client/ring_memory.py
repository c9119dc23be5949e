"""The messages of a delivery that are not acknowledged, in memory."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable

import grpc

from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.storage.outbox import Row
from openclaw_rl.v1 import common_pb2

#: Settled ids that are remembered: a second ack of one is no foreign one.
_REMEMBERED = 10_000


class Memory:
    """What `delivery.Outbox` is on disk, as far as a Sender needs it. For one event loop.

    Args:
        changed: called when something was settled.
    """

    def __init__(self, name: str, changed: Callable[[], None]) -> None:
        self.name = name
        self.connected = False
        self.last_error = ""
        self.waiting: dict[str, Row] = {}  # oldest first
        self.delivered = self.duplicates = 0
        self.rejected: dict[str, str] = {}
        self._known: OrderedDict[str, None] = OrderedDict()
        self._numbers = itertools.count(1)
        self._changed, self._wake = changed, lambda: None

    @property
    def pending(self) -> int:
        """Number of messages that wait."""
        return len(self.waiting)

    def listen(self, listener: Callable[[], None] | None) -> None:
        self._wake = listener or (lambda: None)

    def put(self, id: str, payload: bytes) -> None:
        self.waiting.setdefault(id, Row(next(self._numbers), id, payload))
        self._wake()

    async def fetch(self, after: int, limit: int, max_bytes: int) -> list[Row]:
        rows: list[Row] = []
        size = 0
        for row in itertools.islice((row for row in self.waiting.values() if row.seq > after), limit):
            size += len(row.payload)
            if rows and size > max_bytes:
                break
            rows.append(row)
        return rows

    async def acknowledge(self, acks: Iterable[common_pb2.Ack]) -> list[str]:
        """Take acks in.

        Raises:
            MeshError: FOREIGN_ACK, for an id that was never sent. What else was acknowledged is settled all the same.
        """
        settled, foreign = [], ""
        for ack in acks:
            if ack.id not in self.waiting:
                foreign = foreign or ("" if ack.id in self._known else f"{ack.id[:80]!r}")
                continue
            if ack.status == common_pb2.ACK_STATUS_REJECTED:
                self.rejected[ack.id] = ack.reason or "no reason given"
            elif ack.status in (common_pb2.ACK_STATUS_ACCEPTED, common_pb2.ACK_STATUS_DUPLICATE):
                self.delivered += 1
                self.duplicates += ack.status == common_pb2.ACK_STATUS_DUPLICATE
            else:
                continue  # no answer; it stays until there is one
            settled.append(ack.id)
        self._done(settled)
        if foreign:
            raise MeshError(grpc.StatusCode.INTERNAL, "FOREIGN_ACK", f"it acknowledged {foreign}, which was never "
                            "sent: what answers there does not keep to the protocol")
        return settled

    async def refuse(self, ids: Iterable[str], reason: str) -> None:
        ids = list(ids)
        self.rejected.update(dict.fromkeys(ids, reason))
        self._done(ids)

    def _done(self, ids: list[str]) -> None:
        for id in ids:
            del self.waiting[id]
            self._known[id] = None
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        if ids:
            self._changed()
