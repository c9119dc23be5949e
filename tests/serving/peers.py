"""Policy servers without a model, a trainer's publisher, and a line between them that breaks."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from openclaw_rl.rpc.interceptor import ErrorInterceptor
from openclaw_rl.serving.engines.interface import EngineInfo, EngineStatus, Pause, WeightsError
from openclaw_rl.serving.entrypoints.grpc.weights_service import WeightsService
from openclaw_rl.serving.versions.registry import PolicyVersions
from openclaw_rl.v1 import policy_pb2 as pb
from openclaw_rl.v1 import policy_pb2_grpc, weights_pb2
from openclaw_rl.weights.identity import TRAINER_KEY
from openclaw_rl.weights.store import VersionStore
from openclaw_rl.weights.transfer.publisher import WeightPublisher
from openclaw_rl.weights.transfer.receiver import WeightReceiver
from openclaw_rl.weights.transfer.relay import WeightRelay

ROWS = 400
SIZE = 4 * ROWS * 1024 * 2  # bytes of a version's transfer
CHUNK, WINDOW = 64 << 10, 256 << 10
RELAY_WINDOW = 16 << 20  # a relay gets chunks of 2 MiB


class FakeEngine:
    """Takes weights as an engine would."""

    def __init__(self, accepts_weights: bool = True) -> None:
        self.info = EngineInfo("embedded", "tiny", "m", 128, 100, (2,), accepts_weights)
        self.active_version = 0
        self.staged: set[int] = set()
        self.fail = False

    async def stage(self, version: int, folder: Path) -> None:
        assert (folder / "model.safetensors").exists()
        if self.fail:
            raise WeightsError("out of memory")
        self.staged.add(version)

    async def activate(self, version: int) -> Pause:
        self.staged.remove(version)
        self.active_version = version
        return Pause(ms=1.5, steps=1)

    def discard(self, version: int) -> None:
        self.staged.discard(version)

    def status(self) -> EngineStatus:
        return EngineStatus()


class Servicer(policy_pb2_grpc.PolicyServiceServicer):
    def __init__(self, service: WeightsService) -> None:
        self.service = service

    async def SyncWeights(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.SyncWeightsResponse]:
        trainer = dict(context.invocation_metadata()).get(TRAINER_KEY, "")
        async for response in self.service.sync(request_iterator, trainer):
            yield response

    async def WatchPolicy(self, request: Any, context: Any) -> AsyncIterator[pb.WatchPolicyResponse]:
        async for response in self.service.watch():
            yield response

    async def GetPolicy(self, request: Any, context: Any) -> pb.GetPolicyResponse:
        return await self.service.get()

    async def ActivateVersion(self, request: Any, context: Any) -> pb.ActivateVersionResponse:
        return await self.service.activate(request)

    async def FetchWeights(self, request: Any, context: Any) -> AsyncIterator[pb.PolicyServiceFetchWeightsResponse]:
        async with aclosing(self.service.fetch(request)) as responses:  # type: ignore[type-var]
            async for response in responses:
                yield response


class Server:
    """A policy server that can be killed and started again over the same folder.

    Args:
        folder: its own.
        base: the model's.
        weights_from: address of the policy server that it copies.
        keep: see PolicyVersions.
    """

    def __init__(self, folder: Path, base: Path, weights_from: str | None = None, keep: int = 3) -> None:
        self.folder, self.base, self.weights_from, self.keep = folder, base, weights_from, keep
        self.relay: WeightRelay | None = None
        self.address: str | None = None
        self.engine = FakeEngine()

    async def start(self, accepts_weights: bool = True) -> None:
        self.engine = FakeEngine(accepts_weights)
        self.versions = PolicyVersions(self.folder, self.base if accepts_weights else None, self.engine, self.keep)
        await self.versions.start()
        receiver = WeightReceiver(self.versions, WINDOW if self.weights_from is None else RELAY_WINDOW)
        self.service = WeightsService(self.versions, receiver, self.weights_from)
        self.server = grpc.aio.server(interceptors=[ErrorInterceptor()])
        policy_pb2_grpc.add_PolicyServiceServicer_to_server(Servicer(self.service), self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        await self.server.start()
        if self.weights_from is not None:
            self.relay = WeightRelay(self.weights_from, self.versions, receiver)
            await self.relay.start()

    @property
    def active(self) -> int:
        return self.versions.state().active_version

    @property
    def digest(self) -> str:
        return self.versions.state().active_digest

    async def kill(self) -> None:
        self.address = None
        if self.relay is not None:
            await self.relay.stop()
        await self.server.stop(None)
        await self.service.close()


class Line:
    """A TCP line that breaks after so many bytes, once for each limit, and can be held.

    Args:
        target: address that it leads to, asked for each connection.
        limits: bytes from the one who connects; with `back`, bytes to him.
    """

    def __init__(self, target: Callable[[], str | None], limits: Sequence[int] = (), back: bool = False) -> None:
        self.target, self.limits, self.back = target, list(limits), back
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.bytes = 0
        self.connections = 0

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        host, _, port = (self.target() or "127.0.0.1:1").rpartition(":")
        try:
            up_reader, up_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        left = self.limits.pop(0) if self.limits else None

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, counted: bool) -> None:
            nonlocal left
            while data := await source.read(16 << 10):
                if counted:
                    await self.flowing.wait()
                    self.bytes += len(data)
                    if left is not None:
                        left -= len(data)
                        if left < 0:
                            return
                sink.write(data)
                await sink.drain()

        tasks = [asyncio.create_task(pump(reader, up_writer, not self.back)),
                 asyncio.create_task(pump(up_reader, writer, self.back))]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        writer.transport.abort()
        up_writer.transport.abort()

    async def stop(self) -> None:
        self.server.close()


class Trainer:
    """A publisher and what it was told."""

    def __init__(self, root: Path, base: Path, resolve: Callable[[], str | None]) -> None:
        self.store = VersionStore(root, base, "m")
        self.states: list[pb.PolicyState] = []
        self.activated: list[tuple[int, float]] = []
        self.rejected: list[tuple[int, str, str]] = []
        self.resolve = resolve
        self.changed = asyncio.Event()
        self.publisher = self.make()

    def make(self) -> WeightPublisher:
        async def on_state(state: pb.PolicyState) -> None:
            self.states.append(state)
            self.changed.set()

        def on_activated(version: int, activated: weights_pb2.WeightActivated) -> None:
            self.activated.append((version, activated.pause_ms))
            self.changed.set()

        def on_rejected(version: int, rejected: weights_pb2.WeightRejected) -> None:
            reason = weights_pb2.WeightRejectReason.Name(rejected.reason).removeprefix("WEIGHT_REJECT_REASON_")
            self.rejected.append((version, reason, rejected.message))
            self.changed.set()

        return WeightPublisher(self.resolve, self.store, on_state, on_activated, on_rejected, chunk=CHUNK)

    def write(self, version: int, parent: int | None = None, model_id: str = "m") -> None:
        manifest = weights_pb2.VersionManifest(
            version=version, parent=version - 1 if parent is None else parent, model_id=model_id)
        self.store.write(manifest, tensors(version))

    def offer(self, version: int, parent: int | None = None) -> None:
        self.write(version, parent)
        self.publisher.offer(version)

    async def until(self, condition: Callable[[], bool], seconds: float = 15) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                self.changed.clear()
                with contextlib.suppress(TimeoutError):  # the policy server's side is looked at again now and then
                    await asyncio.wait_for(self.changed.wait(), 0.01)


def tensors(version: int) -> Iterator[Any]:
    rng = np.random.default_rng(version)
    for i in range(4):
        yield f"t{i}", "BF16", (ROWS, 1024), rng.integers(0, 0x7F00, (ROWS, 1024), np.uint16)
    yield "same", "BF16", (1024,), np.zeros(1024, np.uint16)


def make_model(folder: Path) -> Path:
    """Folder of a base model: version 0."""
    store = VersionStore(folder / "made")
    store.write(weights_pb2.VersionManifest(version=1), tensors(0))
    shutil.move(store.folder(1) / "model.safetensors", folder / "model.safetensors")
    return folder


async def put(server: Server, version: int, parent: int | None = None) -> None:
    """Make a version and activate it, as the trainer would have."""
    server.versions.store.write(weights_pb2.VersionManifest(
        version=version, parent=version - 1 if parent is None else parent, model_id="m"), tensors(version))
    await server.versions.commit(version)
