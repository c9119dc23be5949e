"""Clients of ComponentService: state and figures of any of the four."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from openclaw_rl.client.base import AsyncClient, Client
from openclaw_rl.client.calls import ServerStream, Unary
from openclaw_rl.client.watches import OnBreak, follow, follow_async
from openclaw_rl.rpc.messages import to_duration
from openclaw_rl.v1 import component_pb2 as pb
from openclaw_rl.v1 import component_pb2_grpc


class _ComponentRpcs:
    stub = component_pb2_grpc.ComponentServiceStub
    component = ""

    get_status = Unary(pb.GetStatusRequest, pb.GetStatusResponse)
    """Tells the component's state and figures."""
    watch_stats = ServerStream(pb.WatchStatsRequest, pb.WatchStatsResponse)
    """Tells the same again and again."""
    drain = Unary(pb.DrainRequest, pb.DrainResponse)
    """Takes no new work, ends the running one, and stops."""
    forget = Unary(pb.ForgetRequest, pb.ForgetResponse)
    """Removes a session's turns from everything that the component keeps, for good."""
    read_logs = ServerStream(pb.ReadLogsRequest, pb.ReadLogsResponse)
    """Tells the last lines of a log, then those that come."""
    list_spans = ServerStream(pb.ListSpansRequest, pb.ListSpansResponse)
    """Tells the spans that the component keeps of traces, turns, sessions or versions."""


class ComponentServiceClient(_ComponentRpcs, Client):
    """Blocking client of ComponentService."""

    def follow_stats(self, interval: float = 1.0, on_break: OnBreak | None = None) -> Iterator[pb.ComponentStatus]:
        """WatchStats, every `interval` seconds (0.1 to 3600), and again when that breaks; see `follow.follow`."""
        return follow(lambda: self.watch_stats(interval=to_duration(interval)), lambda told: told.status, on_break)


class AsyncComponentServiceClient(_ComponentRpcs, AsyncClient):
    """Asynchronous client of ComponentService."""

    def follow_stats(self, interval: float = 1.0, on_break: OnBreak | None = None
                     ) -> AsyncIterator[pb.ComponentStatus]:
        """As `ComponentServiceClient.follow_stats`."""
        return follow_async(lambda: self.watch_stats(interval=to_duration(interval)), lambda told: told.status,
                            on_break)
