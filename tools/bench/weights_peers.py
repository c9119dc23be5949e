"""The processes of the weights benchmark: both ends of a raw socket, and both ends of the weight stream."""

from __future__ import annotations

import asyncio
import mmap
import socket
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import google_crc32c
import grpc

from openclaw_rl.rpc.channel import COMMON_OPTIONS
from openclaw_rl.rpc.read_ahead import ReadAhead
from openclaw_rl.serving.engines.interface import EngineInfo, EngineStatus, Pause, Sampling, Token
from openclaw_rl.serving.entrypoints.grpc.weights_service import WeightsService
from openclaw_rl.serving.versions.registry import PolicyVersions
from openclaw_rl.v1 import policy_pb2, policy_pb2_grpc, weights_pb2
from openclaw_rl.weights.store import VersionStore
from openclaw_rl.weights.transfer.buffers import keep_buffers
from openclaw_rl.weights.transfer.publisher import WeightPublisher
from openclaw_rl.weights.transfer.receiver import WINDOW, WeightReceiver
from openclaw_rl.weights.transfer.sender import CHUNK

SOCKET_PIECE = 1 << 20  # bytes of a send and of a receive
_OPTIONS = [*COMMON_OPTIONS, ("grpc.http2.min_ping_interval_without_data_ms", 10_000)]  # as a component's server


class Cost:
    """What this process spent since: its CPU seconds, and the peak of its own memory (RssAnon; files that are mapped
    don't count) above what it was."""

    def __init__(self) -> None:
        self._cpu = time.process_time()
        self._peak = self._before = _anonymous()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> tuple[float, int]:
        """CPU seconds and bytes."""
        self._stop.set()
        self._thread.join()
        return time.process_time() - self._cpu, self._peak - self._before

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self._peak = max(self._peak, _anonymous())


def _anonymous() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))


def socket_sender(pipe: Connection, path: Path) -> None:
    """Sends a file once."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        view = memoryview(data)
        sum(view[::4096])  # read it into memory first
        port = pipe.recv()
        with socket.create_connection(("127.0.0.1", port)) as line:
            cpu = time.process_time()
            for start in range(0, len(view), SOCKET_PIECE):
                line.sendall(view[start : start + SOCKET_PIECE])
            pipe.send(time.process_time() - cpu)
        view.release()


def socket_receiver(pipe: Connection) -> None:
    """Takes it and drops it; tells bytes and seconds from the first byte to the last."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        pipe.send(server.getsockname()[1])
        line, _ = server.accept()
        cpu = time.process_time()
        buffer, total, begun = bytearray(SOCKET_PIECE), 0, 0.0
        while size := line.recv_into(buffer):
            begun = begun or time.monotonic()
            total += size
        pipe.send((total, time.monotonic() - begun, time.process_time() - cpu))


class NoEngine:
    """Takes any version and does nothing with it."""

    def __init__(self, model_id: str) -> None:
        self.info = EngineInfo(name="none", model="none", model_id=model_id, context_length=1, vocab_size=1, eos_ids=(),
                               accepts_weights=True)
        self.active_version = 0

    async def stage(self, version: int, folder: Path) -> None:
        pass

    def discard(self, version: int) -> None:
        pass

    async def activate(self, version: int) -> Pause:
        self.active_version = version
        return Pause(ms=0.0, steps=0)

    def status(self) -> EngineStatus:
        return EngineStatus()


@dataclass
class Times:
    """When a version was where, in seconds of time.monotonic."""

    first: float = 0.0  #: its first chunk was there
    last: float = 0.0  #: its last byte was on disk, and all tensors checked
    staged: float = 0.0  #: it was durable and loaded
    activated: float = 0.0


class TimedReceiver(WeightReceiver):
    """Notes when a version was where."""

    times = Times()

    async def handle(self, request: policy_pb2.SyncWeightsRequest) -> AsyncIterator[policy_pb2.SyncWeightsResponse]:
        if request.HasField("offer"):
            self.times = Times()
        elif request.HasField("chunk"):
            self.times.first = self.times.first or time.monotonic()
        async for answer in super().handle(request):
            if answer.HasField("progress"):
                self.times.last = time.monotonic()
            elif answer.HasField("staged"):
                self.times.staged = time.monotonic()
            elif answer.HasField("activated"):
                self.times.activated = time.monotonic()
            yield answer


class Servicer(policy_pb2_grpc.PolicyServiceServicer):
    """SyncWeights only."""

    def __init__(self, service: WeightsService) -> None:
        self._service = service

    async def SyncWeights(self, request_iterator: Any, context: Any) -> AsyncIterator[policy_pb2.SyncWeightsResponse]:
        async for response in self._service.sync(request_iterator):
            yield response


class Drop(policy_pb2_grpc.PolicyServiceServicer):
    """Takes every version, looks at the chunks' CRC and drops them: what the stream can carry."""

    def __init__(self, model_id: str, times: Times) -> None:
        self._model_id, self._times = model_id, times

    async def SyncWeights(self, request_iterator: Any, context: Any) -> AsyncIterator[policy_pb2.SyncWeightsResponse]:
        times, got, total = self._times, 0, 0
        yield policy_pb2.SyncWeightsResponse(state=policy_pb2.PolicyState(
            accepts_weights=True, model_id=self._model_id, kept_versions=[0]))
        async for request in ReadAhead(request_iterator):
            if request.HasField("offer"):
                got, total = 0, sum(spec.encoded_bytes for spec in request.offer.tensors)
                version, times.first = request.offer.manifest.version, 0.0
                yield policy_pb2.SyncWeightsResponse(need=weights_pb2.WeightNeed(
                    version=version, tensors=[spec.name for spec in request.offer.tensors], credit_bytes=WINDOW))
            elif request.HasField("chunk"):
                times.first = times.first or time.monotonic()
                data = request.chunk.data
                assert google_crc32c.value(data) == request.chunk.crc32c
                got += len(data)
                yield policy_pb2.SyncWeightsResponse(progress=weights_pb2.WeightProgress(
                    version=version, received_bytes=got, total_bytes=total, credit_bytes=len(data)))
                if got == total:
                    times.last = times.staged = time.monotonic()
                    yield policy_pb2.SyncWeightsResponse(staged=weights_pb2.WeightStaged(version=version))
            elif request.HasField("commit"):
                times.activated = time.monotonic()
                yield policy_pb2.SyncWeightsResponse(activated=weights_pb2.WeightActivated(version=version))


def dropping_server(pipe: Connection, base: Path) -> None:
    """`policy_server` with nothing behind the stream."""
    asyncio.run(_dropping_server(pipe, base))


async def _dropping_server(pipe: Connection, base: Path) -> None:
    from openclaw_rl.models.identity import model_id

    keep_buffers()
    times, server = Times(), grpc.aio.server(options=_OPTIONS)
    policy_pb2_grpc.add_PolicyServiceServicer_to_server(Drop(model_id(base), times), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    pipe.send(f"127.0.0.1:{port}")
    cost = Cost()
    while await asyncio.to_thread(pipe.recv) != "stop":
        pipe.send((times, *cost.stop()))
        cost = Cost()
    await server.stop(None)


def policy_server(pipe: Connection, root: Path, base: Path, streams: int) -> None:
    """A policy server's end of the weight stream. With `streams`, the embedded engine is behind it and decodes so many
    responses all the time. Says its address; then, to each message, what the last version cost."""
    asyncio.run(_policy_server(pipe, root, base, streams))


async def _policy_server(pipe: Connection, root: Path, base: Path, streams: int) -> None:
    from openclaw_rl.models.identity import model_id
    from openclaw_rl.weights.format import encoding  # and numpy: code is not what is measured

    assert encoding

    engine: Any
    decoding: list[asyncio.Task[None]] = []
    if streams:
        from openclaw_rl.serving.engines.embedded.engine import EmbeddedEngine

        engine = EmbeddedEngine(base)
        await engine.start()
        decoding = [asyncio.create_task(_decode(engine, seed)) for seed in range(streams)]
    else:
        engine = NoEngine(model_id(base))
    versions = PolicyVersions(root, base, engine)
    await versions.start()
    receiver = TimedReceiver(versions)
    server = grpc.aio.server(options=_OPTIONS)
    service = WeightsService(versions, receiver)
    policy_pb2_grpc.add_PolicyServiceServicer_to_server(Servicer(service), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    pipe.send(f"127.0.0.1:{port}")
    cost = Cost()
    while await asyncio.to_thread(pipe.recv) != "stop":
        pipe.send((receiver.times, *cost.stop()))
        cost = Cost()
    for task in decoding:
        task.cancel()
    await server.stop(None)
    await service.close()
    if streams:
        await engine.stop()


async def _decode(engine: Any, seed: int) -> None:
    prompt = list(range(100, 116))
    while True:
        async for item in engine.generate(prompt, Sampling(max_tokens=128, seed=seed)):
            if isinstance(item, Token):
                prompt = [*prompt[-15:], item.id]


@dataclass
class Sent:
    """What sending a version took, at the sender."""

    offered: float = 0.0  #: time.monotonic
    activated: float = 0.0
    bytes: int = 0
    memory: int = 0  #: bytes, at the peak
    cpu: float = 0.0  #: seconds
    pause_ms: float = 0.0
    pause_steps: int = 0
    error: str = ""


def trainer(pipe: Connection, root: Path, base: Path, address: str, full_every: int) -> None:
    """A trainer's end: sends each version that it is told, and says what that took."""
    asyncio.run(_trainer(pipe, root, base, address, full_every))


async def _trainer(pipe: Connection, root: Path, base: Path, address: str, full_every: int) -> None:
    from openclaw_rl.weights.format import diff  # imported by the first update otherwise

    assert diff
    store = VersionStore(root, base)
    done, connected, sent = asyncio.Event(), asyncio.Event(), Sent()

    def activated(version: int, answer: Any) -> None:
        sent.activated, sent.pause_ms, sent.pause_steps = time.monotonic(), answer.pause_ms, answer.pause_steps
        done.set()

    def rejected(version: int, answer: Any) -> None:
        sent.error = answer.message
        done.set()

    publisher = WeightPublisher(lambda: address, store, lambda state: connected.set(), activated, rejected,
                                chunk=CHUNK, full_every=full_every)
    await publisher.start()
    await connected.wait()
    pipe.send("connected")
    while (version := await asyncio.to_thread(pipe.recv)) != "stop":
        for tensor in (opened := store.open(version)):
            sum(opened[tensor][::4096])  # read it into memory first
        before, cost, sent = publisher.status()["bytes_sent"], Cost(), Sent(offered=time.monotonic())
        done.clear()
        publisher.offer(version)
        await done.wait()
        sent.bytes = publisher.status()["bytes_sent"] - before
        sent.cpu, sent.memory = cost.stop()
        pipe.send(sent)
    await publisher.stop()
