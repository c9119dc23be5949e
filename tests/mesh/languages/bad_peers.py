"""Servers that a client has to report clearly: of another contract, that never acknowledge, that acknowledge what
nobody sent, that break off, and one that speaks HTTP/1."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

import grpc

from openclaw_rl.v1 import (
    common_pb2,
    component_pb2,
    component_pb2_grpc,
    environment_pb2,
    environment_pb2_grpc,
)

Requests = AsyncIterator[environment_pb2.RecordTurnsRequest]
Context: TypeAlias = grpc.aio.ServicerContext


def _ids(request: environment_pb2.RecordTurnsRequest) -> list[str]:
    ids = {"turn": "turn_id", "feedback": "feedback_id", "session_end": "event_id", "session_active": "event_id"}
    kinds = [(event, event.WhichOneof("event")) for event in request.events]
    return [getattr(getattr(event, kind), ids[kind]) for event, kind in kinds if kind]


def _acks(ids: list[str], status: common_pb2.AckStatus.ValueType) -> environment_pb2.RecordTurnsResponse:
    return environment_pb2.RecordTurnsResponse(acks=[common_pb2.Ack(id=id, status=status) for id in ids])


class NeverAcks(environment_pb2_grpc.EnvironmentServiceServicer):
    """Takes turns and says nothing."""

    async def RecordTurns(self, requests: Requests, context: Context
                          ) -> AsyncIterator[environment_pb2.RecordTurnsResponse]:
        await context.send_initial_metadata(())
        async for _ in requests:
            pass
        return
        yield


class AcksOthers(environment_pb2_grpc.EnvironmentServiceServicer):
    """Acknowledges ids that nobody sent."""

    async def RecordTurns(self, requests: Requests, context: Context
                          ) -> AsyncIterator[environment_pb2.RecordTurnsResponse]:
        await context.send_initial_metadata(())
        async for request in requests:
            yield _acks([f"foreign-{id}" for id in _ids(request)], common_pb2.ACK_STATUS_ACCEPTED)


class Cuts(environment_pb2_grpc.EnvironmentServiceServicer):
    """Breaks the stream after each second ack; what it has it knows again."""

    def __init__(self) -> None:
        self.known: set[str] = set()

    async def RecordTurns(self, requests: Requests, context: Context
                          ) -> AsyncIterator[environment_pb2.RecordTurnsResponse]:
        await context.send_initial_metadata(())
        acked = 0
        async for request in requests:
            for id in _ids(request):
                status = common_pb2.ACK_STATUS_DUPLICATE if id in self.known else common_pb2.ACK_STATUS_ACCEPTED
                self.known.add(id)
                yield _acks([id], status)
                acked += 1
                if acked == 2:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "the line broke")


class NextMajor(component_pb2_grpc.ComponentServiceServicer):
    """A policy server of a contract that doesn't exist yet."""

    async def GetStatus(self, request: component_pb2.GetStatusRequest, context: Context
                        ) -> component_pb2.GetStatusResponse:
        return component_pb2.GetStatusResponse(status=component_pb2.ComponentStatus(
            name="policy_server", state=component_pb2.COMPONENT_STATE_RUNNING, package_version="9.0.0",
            contract_version="2.0"))


class _Http1(BaseHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")


class BadPeers:
    """All of them, on ports of the system's choice; `addresses` by name."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Http1)
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        self.addresses["HTTP1"] = f"127.0.0.1:{self._http.server_address[1]}"
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._servers: list[grpc.aio.Server] = []
        self._run(self._start()).result(30)

    async def _start(self) -> None:
        record = environment_pb2_grpc.add_EnvironmentServiceServicer_to_server
        component = component_pb2_grpc.add_ComponentServiceServicer_to_server
        peers: list[tuple[str, Any, Any]] = [
            ("NEVER_ACKS", record, NeverAcks()), ("ACKS_OTHERS", record, AcksOthers()), ("CUTS", record, Cuts()),
            ("NEXT_MAJOR", component, NextMajor())]
        for name, add, servicer in peers:
            server = grpc.aio.server()
            add(servicer, server)
            self.addresses[name] = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            await server.start()
            self._servers.append(server)

    def _run(self, coroutine: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def _stop(self) -> None:
        for server in self._servers:
            await server.stop(0)

    def close(self) -> None:
        self._run(self._stop()).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._http.shutdown()
        self._http.server_close()
