"""ComponentService: status, logs, spans, drain and forget, the same for all components."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import grpc
import orjson

from openclaw_rl.observability.log_reader import Tail
from openclaw_rl.observability.span_reader import SpanReader
from openclaw_rl.rpc.errors import invalid, not_found, unimplemented
from openclaw_rl.rpc.messages import in_messages, now
from openclaw_rl.runtime import redact
from openclaw_rl.runtime.home import Home
from openclaw_rl.v1 import component_pb2 as pb
from openclaw_rl.v1 import component_pb2_grpc

#: The last second of a google.protobuf.Timestamp.
_LATEST = 253_402_300_799

if TYPE_CHECKING:
    from openclaw_rl.rpc.server import ComponentServer

#: Most lines from the end of a log, and how many when the caller doesn't say.
MAX_LINES, LINES = 10_000, 100
#: Seconds between two looks for new lines.
_LOOK_EVERY = 0.25
#: Column of the file of spans -> field of the request.
FIELDS = {"trace_id": "trace_ids", "turn_id": "turn_ids", "session_id": "session_ids", "trained": "trained_versions",
          "version": "versions"}
#: Most values of one request for spans.
MAX_VALUES = 10_000


class ComponentServicer(component_pb2_grpc.ComponentServiceServicer):
    """ComponentService, the same for all components."""

    def __init__(self, server: ComponentServer) -> None:
        self._server = server

    async def GetStatus(self, request: pb.GetStatusRequest,
                        context: grpc.aio.ServicerContext) -> pb.GetStatusResponse:
        return pb.GetStatusResponse(status=await self._server.current_status())

    async def WatchStats(self, request: pb.WatchStatsRequest, context: grpc.aio.ServicerContext
                         ) -> AsyncIterator[pb.WatchStatsResponse]:
        interval = request.interval.ToNanoseconds() / 1e9 if request.HasField("interval") else 1.0
        if not 0.1 <= interval <= 3600:
            raise invalid("interval", f"{interval:g}s", "from 0.1 s to 1 h")
        while True:
            yield pb.WatchStatsResponse(status=await self._server.current_status(), at=now())
            try:
                await asyncio.wait_for(self._server.stop_requested.wait(), interval)
                return
            except TimeoutError:
                pass

    async def Drain(self, request: pb.DrainRequest,
                    context: grpc.aio.ServicerContext) -> pb.DrainResponse:
        grace = request.grace.ToNanoseconds() / 1e9 if request.HasField("grace") else 30.0
        if not 0 <= grace <= 3600:
            raise invalid("grace", f"{grace:g}s", "from 0 s to 1 h")
        self._server.request_stop(grace)
        await self._server.set_serving(False)  # the component may be busy starting, and look up only later
        return pb.DrainResponse()

    async def Forget(self, request: pb.ForgetRequest,
                     context: grpc.aio.ServicerContext) -> pb.ForgetResponse:
        if self._server.on_forget is None:
            raise unimplemented(f"Forget of {self._server.name}")
        if not request.session_id:
            raise invalid("session_id", "", "the id of a session")
        if not 0 <= request.before.seconds <= _LATEST:
            raise invalid("before", request.before.seconds, "a time from 1970 to 9999")
        return await self._server.on_forget(request)

    async def ReadLogs(self, request: pb.ReadLogsRequest, context: grpc.aio.ServicerContext
                       ) -> AsyncIterator[pb.ReadLogsResponse]:
        async for part in read_logs(self._server.home, self._server.name, request, redact.text,
                                    self._server.stop_requested):
            yield part

    async def ListSpans(self, request: pb.ListSpansRequest, context: grpc.aio.ServicerContext
                        ) -> AsyncIterator[pb.ListSpansResponse]:
        async for part in list_spans(self._server.home, self._server.name, request):
            yield part


async def read_logs(home: Home, component: str, request: pb.ReadLogsRequest, redact: Callable[[str], str],
                    stopping: asyncio.Event) -> AsyncIterator[pb.ReadLogsResponse]:
    """Answer ComponentService.ReadLogs.

    Args:
        component: whose log, unless the journal is asked for.
        redact: blots secrets out of a line.
        stopping: ends the following.

    Raises:
        MeshError: INVALID_ARGUMENT; NOT_FOUND, there is no such log, and it is not to be followed.
    """
    lines = request.lines if request.HasField("lines") else LINES
    if not 0 <= lines <= MAX_LINES:
        raise invalid("lines", lines, f"from 0 to {MAX_LINES}")
    if request.source not in pb.LogSource.values():
        raise invalid("source", request.source, "a LogSource")
    journal = request.source == pb.LOG_SOURCE_JOURNAL
    tail = Tail(home.logs, "" if journal else component)
    if not request.follow and not tail.files():
        raise not_found("log", "rl_trace" if journal else component, "nothing is written to the home's logs folder" + (
            "" if journal else "; one that was started by hand logs to its terminal"))
    try:
        for batch in in_messages(map(redact, await asyncio.to_thread(tail.last, lines))):
            yield pb.ReadLogsResponse(lines=batch)
        while request.follow and not stopping.is_set():
            fresh = await asyncio.to_thread(lambda: list(tail.new()))
            for batch in in_messages(map(redact, fresh)):
                yield pb.ReadLogsResponse(lines=batch)
            if not fresh:
                try:
                    await asyncio.wait_for(stopping.wait(), _LOOK_EVERY)
                except TimeoutError:
                    pass
    finally:
        tail.close()


async def list_spans(home: Home, component: str, request: pb.ListSpansRequest) -> AsyncIterator[pb.ListSpansResponse]:
    """Answer ComponentService.ListSpans: spans that the component keeps, in the order in which they began.

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
