"""What ComponentService.ListSpans answers, from the component's own file of spans."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import orjson

from openclaw_rl.observability.span_reader import SpanReader
from openclaw_rl.rpc.errors import invalid
from openclaw_rl.rpc.messages import in_messages
from openclaw_rl.runtime.home import Home
from openclaw_rl.v1 import component_pb2 as pb

#: Column of the file of spans -> field of the request.
FIELDS = {"trace_id": "trace_ids", "turn_id": "turn_ids", "session_id": "session_ids", "trained": "trained_versions",
          "version": "versions"}
#: Most values of one request.
MAX_VALUES = 10_000


async def list_spans(home: Home, component: str, request: pb.ListSpansRequest) -> AsyncIterator[pb.ListSpansResponse]:
    """Spans that the component keeps, in the order in which they began.

    Raises:
        MeshError: INVALID_ARGUMENT, too many values; INTERNAL, the file can't be read.
    """
    values = {column: list(getattr(request, field)) for column, field in FIELDS.items()}
    count = sum(map(len, values.values()))
    if not 0 < count <= MAX_VALUES:
        raise invalid("trace_ids", f"{count} values in all", f"from 1 to {MAX_VALUES} values with those of the other "
                                                             "fields")
    reader = SpanReader(home, [component])
    spans = {(span["trace"], span["span"]): span for column, wanted in values.items() if wanted
             for span in await asyncio.to_thread(reader.find, column, wanted)}
    if reader.problems:
        raise RuntimeError("; ".join(reader.problems))
    ordered = sorted(spans.values(), key=lambda span: (span["start"], -span["end"]))
    for batch in in_messages(orjson.dumps(span).decode() for span in ordered):
        yield pb.ListSpansResponse(spans=batch)
