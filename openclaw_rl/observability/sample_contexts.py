"""Trace contexts of the trainer's samples, in memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping

from opentelemetry.util.types import AttributeValue

from openclaw_rl.observability import names
from openclaw_rl.v1.common_pb2 import TraceContext

#: Samples whose context is kept; that of others is looked up in the spans on disk.
_REMEMBERED = 20_000

Attributes = Mapping[str, AttributeValue | None]


class SampleContexts:
    """Context and attributes by turn id; of the latest samples only. Safe to use from several threads."""

    def __init__(self, limit: int = _REMEMBERED) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, tuple[TraceContext, Attributes]] = OrderedDict()

    def add(self, turn_id: str, context: TraceContext, attributes: Attributes) -> None:
        """Remember a sample."""
        with self._lock:
            self._entries[turn_id] = context, attributes
            self._entries.move_to_end(turn_id)
            while len(self._entries) > self._limit:
                self._entries.popitem(last=False)

    def get(self, turn_id: str) -> tuple[TraceContext, Attributes] | None:
        """A sample's context and attributes, if they are still known."""
        with self._lock:
            return self._entries.get(turn_id)

    def remove(self, turn_id: str) -> None:
        """Drop a sample whose fate is settled."""
        with self._lock:
            self._entries.pop(turn_id, None)

    def forget(self, session_id: str, turn_ids: Collection[str]) -> None:
        """Drop all samples of a session, and these."""
        with self._lock:
            for turn_id, (_, attributes) in list(self._entries.items()):
                if turn_id in turn_ids or attributes.get(names.SESSION) == session_id:
                    del self._entries[turn_id]
