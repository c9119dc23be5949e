"""A mesh of stand-ins: real gRPC servers on loopback that say what a test tells them to."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc

from openclaw_rl.runtime.home import COMPONENTS, Home, RunRecord, remove_record, write_record
from openclaw_rl.v1 import (
    component_pb2,
    component_pb2_grpc,
    environment_pb2,
    environment_pb2_grpc,
    judge_pb2_grpc,
    trainer_pb2,
    trainer_pb2_grpc,
)

T = TypeVar("T")


class _Component(component_pb2_grpc.ComponentServiceServicer):
    def __init__(self, mesh: FakeMesh, name: str) -> None:
        self._mesh, self._name = mesh, name

    async def WatchStats(self, request: component_pb2.WatchStatsRequest, context: Any) -> AsyncIterator[Any]:
        while True:
            status = self._mesh.status[self._name]
            if self._name == "env_server":
                for one in self._mesh.environments:
                    status.gauges.update({f"env_{one.type}_{figure}": getattr(one, figure)
                                          for figure in ("capacity", "leased", "warm", "waiting")})
            yield component_pb2.WatchStatsResponse(status=status)
            await asyncio.sleep(request.interval.ToMilliseconds() / 1000 or 1.0)


class _Environment(environment_pb2_grpc.EnvironmentServiceServicer):
    def __init__(self, mesh: FakeMesh) -> None:
        self._mesh = mesh

    async def ListEnvironments(self, request: Any, context: Any) -> environment_pb2.ListEnvironmentsResponse:
        return environment_pb2.ListEnvironmentsResponse(environments=self._mesh.environments)


class _Judge(judge_pb2_grpc.JudgeServiceServicer):
    pass


class _Trainer(trainer_pb2_grpc.TrainerServiceServicer):
    def __init__(self, mesh: FakeMesh) -> None:
        self._mesh = mesh

    async def WatchTraining(self, request: Any, context: Any) -> AsyncIterator[trainer_pb2.WatchTrainingResponse]:
        queue: asyncio.Queue[trainer_pb2.WatchTrainingResponse] = asyncio.Queue()
        self._mesh.watchers.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._mesh.watchers.discard(queue)


class FakeMesh:
    """Four components in a home, on a thread of their own. A context manager.

    `status[name]` is what a component tells from now on; `environments` the environment server's.

    Args:
        more: adds further servicers to a component's server: called with its name and the server.
    """

    def __init__(self, home: Home, more: Callable[[str, grpc.aio.Server], None] = lambda name, server: None) -> None:
        self.home = home.create()
        self.status = {name: component_pb2.ComponentStatus(
            name=name, state=component_pb2.COMPONENT_STATE_RUNNING, host="here", pid=os.getpid())
            for name in COMPONENTS}
        self.status["policy_server"].policy_version = 7
        self.environments: list[environment_pb2.EnvironmentInfo] = []
        self.watchers: set[asyncio.Queue[trainer_pb2.WatchTrainingResponse]] = set()
        self._more = more
        self._servers: dict[str, grpc.aio.Server] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def start(self, *names: str) -> None:
        """Let components run, at ports of their own."""
        for name in names or COMPONENTS:
            self._do(self._start(name))

    def stop(self, *names: str) -> None:
        """End components as a kill does: the record stays, nobody answers."""
        for name in names or tuple(self._servers):
            self._do(self._servers.pop(name).stop(None))

    def forget(self, *names: str) -> None:
        """Remove the records too, as an orderly end does."""
        for name in names or COMPONENTS:
            remove_record(self.home, name)

    def tell(self, kind: str, message: str, **fields: Any) -> None:
        """The trainer tells an event."""
        event = trainer_pb2.WatchTrainingResponse(
            kind=trainer_pb2.TrainingEventKind.Value(f"TRAINING_EVENT_KIND_{kind}"), message=message, **fields)
        event.at.FromNanoseconds(time.time_ns())

        async def put() -> None:
            for queue in self.watchers:
                queue.put_nowait(event)

        self._do(put())

    def _do(self, work: Awaitable[T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)  # type: ignore[arg-type]

    async def _start(self, name: str) -> None:
        server = grpc.aio.server()
        component_pb2_grpc.add_ComponentServiceServicer_to_server(_Component(self, name), server)
        self._more(name, server)
        if name == "env_server":
            environment_pb2_grpc.add_EnvironmentServiceServicer_to_server(_Environment(self), server)
        elif name == "prm_judge":
            judge_pb2_grpc.add_JudgeServiceServicer_to_server(_Judge(), server)
        elif name == "trainer":
            trainer_pb2_grpc.add_TrainerServiceServicer_to_server(_Trainer(self), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self.status[name].started_at.GetCurrentTime()
        self.status[name].address = f"127.0.0.1:{port}"
        write_record(self.home, RunRecord(name, os.getpid(), f"127.0.0.1:{port}"))
        self._servers[name] = server

    def __enter__(self) -> FakeMesh:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
