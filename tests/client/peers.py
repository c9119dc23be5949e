"""gRPC servers for the clients' tests, on an event loop of their own so that blocking clients can call them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc

from openclaw_rl.rpc.interceptor import ErrorInterceptor
from openclaw_rl.v1 import (
    component_pb2_grpc,
    environment_pb2_grpc,
    judge_pb2_grpc,
    policy_pb2_grpc,
    trainer_pb2_grpc,
)

_ADD = [(getattr(module, f"{name}Servicer"), getattr(module, f"add_{name}Servicer_to_server")) for module, name in (
    (component_pb2_grpc, "ComponentService"), (environment_pb2_grpc, "EnvironmentService"),
    (judge_pb2_grpc, "JudgeService"), (policy_pb2_grpc, "PolicyService"), (trainer_pb2_grpc, "TrainerService"))]


class Loop:
    """An event loop on a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


class Peer:
    """A server with these servicers. `stop` and `start` again keep the port."""

    def __init__(self, *servicers: Any) -> None:
        self._servicers = servicers
        self._loop = Loop()
        self._port = 0
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        self._loop.run(self._start())

    async def _start(self) -> None:
        self._server = grpc.aio.server(interceptors=[ErrorInterceptor()], options=[("grpc.so_reuseport", 0)])
        for servicer in self._servicers:
            for kind, add in _ADD:
                if isinstance(servicer, kind):
                    add(servicer, self._server)
        self._port = self._server.add_insecure_port(f"127.0.0.1:{self._port}")
        await self._server.start()

    def stop(self) -> None:
        self._loop.run(self._server.stop(0))

    def close(self) -> None:
        self.stop()
        self._loop.close()


@contextlib.contextmanager
def serving(*servicers: Any) -> Iterator[Peer]:
    peer = Peer(*servicers)
    try:
        yield peer
    finally:
        peer.close()


async def collect(pieces: AsyncIterator[Any]) -> list[Any]:
    return [piece async for piece in pieces]
