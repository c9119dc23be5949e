"""Versions travel from a publisher to a policy server over real gRPC, also over lines that break."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from openclaw_rl.mesh.channel import connect
from openclaw_rl.mesh.errors import MeshError, from_rpc_error
from openclaw_rl.mesh.interceptor import ErrorInterceptor
from openclaw_rl.policy.engines.base import EngineInfo, Pause, WeightsError
from openclaw_rl.policy.versions import PolicyVersions
from openclaw_rl.policy.weights_service import WeightsService
from openclaw_rl.v1 import policy_pb2 as pb
from openclaw_rl.v1 import policy_pb2_grpc, weights_pb2
from openclaw_rl.weights.publisher import WeightPublisher
from openclaw_rl.weights.receiver import WeightReceiver
from openclaw_rl.weights.store import VersionStore

ROWS = 400
SIZE = 4 * ROWS * 1024 * 2  # bytes of a version's transfer
CHUNK, WINDOW = 64 << 10, 256 << 10


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


class Servicer(policy_pb2_grpc.PolicyServiceServicer):
    def __init__(self, service: WeightsService) -> None:
        self.service = service

    async def SyncWeights(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.SyncWeightsResponse]:
        async for response in self.service.sync(request_iterator):
            yield response

    async def WatchPolicy(self, request: Any, context: Any) -> AsyncIterator[pb.WatchPolicyResponse]:
        async for response in self.service.watch():
            yield response


class Server:
    """A policy server that can be killed and started again over the same folder."""

    def __init__(self, folder: Path, base: Path) -> None:
        self.folder, self.base = folder, base
        self.address: str | None = None
        self.engine = FakeEngine()

    async def start(self, accepts_weights: bool = True) -> None:
        self.engine = FakeEngine(accepts_weights)
        self.versions = PolicyVersions(self.folder, self.base if accepts_weights else None, self.engine)
        await self.versions.start()
        self.service = WeightsService(self.versions, WeightReceiver(self.versions, WINDOW))
        self.server = grpc.aio.server(interceptors=[ErrorInterceptor()])
        policy_pb2_grpc.add_PolicyServiceServicer_to_server(Servicer(self.service), self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        await self.server.start()

    async def kill(self) -> None:
        self.address = None
        await self.server.stop(None)
        await self.service.close()


class Relay:
    """A TCP line that breaks after so many bytes from the trainer, once for each limit."""

    def __init__(self, target: Callable[[], str | None], limits: list[int]) -> None:
        self.target, self.limits = target, limits
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

        async def up() -> None:
            nonlocal left
            while data := await reader.read(16 << 10):
                self.bytes += len(data)
                if left is not None:
                    left -= len(data)
                    if left < 0:
                        return
                up_writer.write(data)
                await up_writer.drain()

        async def down() -> None:
            while data := await up_reader.read(16 << 10):
                writer.write(data)
                await writer.drain()

        tasks = [asyncio.create_task(up()), asyncio.create_task(down())]
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


def tensors(version: int):
    rng = np.random.default_rng(version)
    for i in range(4):
        yield f"t{i}", "BF16", (ROWS, 1024), rng.integers(0, 0x7F00, (ROWS, 1024), np.uint16)
    yield "same", "BF16", (1024,), np.zeros(1024, np.uint16)


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    store = VersionStore(folder / "made")
    store.write(weights_pb2.VersionManifest(version=1), tensors(0))
    shutil.move(store.folder(1) / "model.safetensors", folder / "model.safetensors")
    return folder


class Mesh:
    def __init__(self, tmp_path: Path, model: Path) -> None:
        self.server = Server(tmp_path / "policy_server", model)
        self.relay: Relay | None = None
        self.trainer = Trainer(tmp_path / "trainer", model,
                               lambda: self.relay.address if self.relay else self.server.address)

    async def start(self, limits: list[int] | None = None, accepts_weights: bool = True) -> Mesh:
        await self.server.start(accepts_weights)
        if limits is not None:
            self.relay = Relay(lambda: self.server.address, limits)
            await self.relay.start()
        await self.trainer.publisher.start()
        return self

    @property
    def active(self) -> int:
        return self.server.engine.active_version


@pytest.fixture
async def mesh(tmp_path, model):
    mesh = Mesh(tmp_path, model)
    yield mesh
    await mesh.trainer.publisher.stop()
    if mesh.server.address:
        await mesh.server.kill()
    if mesh.relay:
        await mesh.relay.stop()


async def test_versions_become_active_one_after_the_other(mesh):
    await mesh.start()
    for version in (1, 2, 3):
        mesh.trainer.offer(version)
        await mesh.trainer.until(lambda v=version: mesh.trainer.activated[-1:] == [(v, 1.5)])
        assert mesh.active == version and mesh.server.versions.store.verify(version)
    assert [s.active_version for s in mesh.trainer.states] == [0], "told once; `activated` tells the rest"
    status = mesh.trainer.publisher.status()
    assert status == {"connected": True, "active_version": 3, "pinned": False, "sending": None, "received_bytes": 0,
                      "total_bytes": 0, "waiting": None, "superseded": 0, "bytes_sent": 3 * SIZE, "error": ""}


@pytest.mark.parametrize("seed", range(6))
async def test_a_line_that_breaks_costs_little(mesh, seed):
    rng = random.Random(seed)
    cuts = [rng.randint(10_000, SIZE // 2) for _ in range(3)]
    await mesh.start(cuts)
    mesh.trainer.offer(1)
    await mesh.trainer.until(lambda: mesh.trainer.activated != [])
    assert mesh.active == 1 and mesh.server.versions.store.verify(1)
    assert mesh.relay.connections > 1
    assert mesh.relay.bytes < 1.3 * SIZE and mesh.trainer.publisher.status()["bytes_sent"] < 1.3 * SIZE


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
async def test_a_policy_server_killed_in_the_middle(mesh, share):
    await mesh.start([])
    mesh.trainer.offer(1)
    await mesh.trainer.until(lambda: mesh.relay.bytes > share * SIZE)
    await mesh.server.kill()
    await mesh.server.start()
    await mesh.trainer.until(lambda: mesh.trainer.activated != [])
    assert mesh.active == 1 and mesh.server.versions.store.verify(1) and mesh.relay.bytes < 1.3 * SIZE


async def test_a_trainer_killed_in_the_middle(mesh):
    await mesh.start([])
    mesh.trainer.offer(1)
    await mesh.trainer.until(lambda: mesh.relay.bytes > SIZE // 2)
    mesh.trainer.publisher._task.cancel()  # as a kill does: no abort, no half-close
    mesh.trainer.publisher = mesh.trainer.make()
    await mesh.trainer.publisher.start()
    mesh.trainer.publisher.offer(1)
    await mesh.trainer.until(lambda: mesh.trainer.activated != [])
    assert mesh.active == 1 and mesh.relay.bytes < 1.3 * SIZE


async def test_a_stopped_publisher_gives_up_and_a_new_one_goes_on(mesh):
    await mesh.start([])
    mesh.trainer.offer(1)
    await mesh.trainer.until(lambda: mesh.relay.bytes > SIZE // 2)
    await mesh.trainer.publisher.stop()
    assert mesh.active == 0
    mesh.trainer.publisher = mesh.trainer.make()
    mesh.trainer.publisher.offer(1)
    await mesh.trainer.publisher.start()
    await mesh.trainer.until(lambda: mesh.trainer.activated != [])
    assert mesh.active == 1 and mesh.relay.bytes < 1.3 * SIZE


async def test_an_activation_whose_answer_was_lost(mesh):
    await mesh.start([])
    commit = mesh.server.versions.commit

    async def commit_and_break(version: int, admit: Callable[[], None]) -> Pause:
        pause = await commit(version, admit)
        await mesh.server.kill()
        return pause

    mesh.server.versions.commit = commit_and_break
    mesh.trainer.offer(1)
    await mesh.trainer.until(lambda: mesh.active == 1 and mesh.server.address is None)
    assert mesh.trainer.activated == []
    await mesh.server.start()
    await mesh.trainer.until(lambda: mesh.trainer.activated == [(1, 0.0)])
    assert mesh.trainer.rejected == [] and mesh.active == 1


async def test_versions_that_come_too_fast_are_superseded_and_a_begun_one_is_finished(mesh):
    mesh.trainer.write(1)
    mesh.trainer.publisher.offer(1)
    for version in (2, 3):
        mesh.trainer.offer(version)
    await mesh.start([])
    await mesh.trainer.until(lambda: mesh.relay.bytes > SIZE // 8)
    assert mesh.trainer.publisher.status()["sending"] == 3
    for version in (4, 5):
        mesh.trainer.offer(version)
    await mesh.trainer.until(lambda: len(mesh.trainer.activated) == 2)
    assert [version for version, _ in mesh.trainer.activated] == [3, 5]
    assert mesh.trainer.publisher.status()["superseded"] == 3 and mesh.relay.bytes < 2.2 * SIZE


async def test_a_rollback_reaches_the_trainer_and_its_versions_are_refused(mesh):
    await mesh.start()
    for version in (1, 2):
        mesh.trainer.offer(version)
        await mesh.trainer.until(lambda v=version: mesh.active == v and len(mesh.trainer.activated) == v)
    answer = await mesh.server.service.activate(pb.ActivateVersionRequest(version=1, reason="worse"))
    assert answer.state.active_version == 1 and answer.pause_ms == 1.5
    await mesh.trainer.until(lambda: mesh.trainer.states[-1].active_version == 1)
    assert list(mesh.trainer.states[-1].withdrawn_versions) == [2]
    mesh.trainer.write(3)
    mesh.trainer.offer(4, parent=3)  # 3 was never sent; its parent was taken back
    await mesh.trainer.until(lambda: mesh.trainer.rejected != [])
    assert mesh.trainer.rejected[0][:2] == (4, "WRONG_BASE") and "version 2" in mesh.trainer.rejected[0][2]
    mesh.trainer.offer(5, parent=1)
    await mesh.trainer.until(lambda: mesh.active == 5)


async def test_an_operator_who_goes_back_just_before_a_commit_has_the_last_word(mesh):
    await mesh.start()
    for version in (1, 2):
        mesh.trainer.offer(version)
        await mesh.trainer.until(lambda v=version: mesh.active == v and len(mesh.trainer.activated) == v)
    commit = mesh.server.versions.commit

    async def commit_too_late(version: int, admit: Callable[[], None]) -> Pause:
        mesh.server.versions.commit = commit
        await mesh.server.service.activate(pb.ActivateVersionRequest(version=0, reason="worse"))
        return await commit(version, admit)

    mesh.server.versions.commit = commit_too_late
    mesh.trainer.offer(3, parent=2)
    await mesh.trainer.until(lambda: mesh.trainer.rejected != [])
    assert mesh.trainer.rejected[0][:2] == (3, "WRONG_BASE") and mesh.active == 0
    mesh.trainer.offer(4, parent=0)
    await mesh.trainer.until(lambda: mesh.active == 4)


async def test_going_back_and_forward_again_reaches_the_trainer(mesh):
    await mesh.start()
    for version in (1, 2):
        mesh.trainer.offer(version)
        await mesh.trainer.until(lambda v=version: len(mesh.trainer.activated) == v)
    for version in (1, 2, 0, 2):
        await mesh.server.service.activate(pb.ActivateVersionRequest(version=version))
        await mesh.trainer.until(lambda v=version: mesh.trainer.states[-1].active_version == v)


async def test_a_rejected_version_is_reported_and_the_next_one_goes_on(mesh):
    await mesh.start()
    mesh.trainer.write(1, model_id="other")
    mesh.trainer.publisher.offer(1)
    await mesh.trainer.until(lambda: mesh.trainer.rejected != [])
    assert mesh.trainer.rejected[0][:2] == (1, "WRONG_MODEL") and mesh.active == 0
    mesh.trainer.offer(2, parent=0)
    await mesh.trainer.until(lambda: mesh.active == 2)


async def test_a_version_that_the_trainers_disk_lost(mesh):
    mesh.trainer.offer(1)
    (mesh.trainer.store.folder(1) / "model.safetensors").unlink()
    await mesh.start()
    await mesh.trainer.until(lambda: mesh.trainer.rejected != [])
    assert mesh.trainer.rejected[0][:2] == (1, "STORAGE")
    with pytest.raises(KeyError):
        mesh.trainer.publisher.offer(7)


async def test_an_engine_that_recovers_gets_the_version(mesh):
    await mesh.start()
    mesh.server.engine.fail = True
    mesh.trainer.offer(1)
    await mesh.trainer.until(lambda: "out of memory" in mesh.trainer.publisher.status()["error"])
    assert mesh.trainer.rejected == []
    mesh.server.engine.fail = False
    await mesh.trainer.until(lambda: mesh.active == 1)
    assert mesh.trainer.publisher.status()["bytes_sent"] == SIZE


async def test_a_version_that_the_policy_server_lost_is_sent_again(mesh):
    await mesh.start()
    mesh.trainer.offer(1)
    await mesh.trainer.until(lambda: mesh.trainer.activated != [])
    await mesh.server.kill()
    shutil.rmtree(mesh.server.folder)
    await mesh.server.start()
    assert mesh.active == 0
    await mesh.trainer.until(lambda: mesh.active == 1)


async def test_an_api_policy_takes_no_weights(mesh):
    await mesh.start(accepts_weights=False)
    mesh.trainer.offer(1)
    await mesh.trainer.until(lambda: mesh.trainer.rejected != [])
    assert mesh.trainer.rejected[0][:2] == (1, "UNSUPPORTED") and not mesh.trainer.states[0].accepts_weights


async def test_the_newer_of_two_streams_wins(mesh):
    await mesh.server.start()
    async with connect(mesh.server.address) as channel:
        stub = policy_pb2_grpc.PolicyServiceStub(channel)
        older = stub.SyncWeights()
        assert (await older.read()).HasField("state")
        newer = stub.SyncWeights()
        assert (await newer.read()).HasField("state")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await older.read()
        error = from_rpc_error(caught.value)
        assert error.code == grpc.StatusCode.ABORTED and "a newer SyncWeights stream took over" in error.message
        await newer.write(pb.SyncWeightsRequest(commit=weights_pb2.WeightCommit(version=1)))
        assert (await newer.read()).rejected.reason == weights_pb2.WEIGHT_REJECT_REASON_PROTOCOL
        await newer.done_writing()
        assert await newer.read() == grpc.aio.EOF


async def test_watchers_see_each_change(mesh):
    await mesh.start()
    async with connect(mesh.server.address) as channel:
        watch = policy_pb2_grpc.PolicyServiceStub(channel).WatchPolicy(pb.WatchPolicyRequest())
        assert (await watch.read()).state.active_version == 0
        mesh.trainer.offer(1)
        assert (await watch.read()).state.active_version == 1
        await mesh.server.service.activate(pb.ActivateVersionRequest(version=0))
        assert list((await watch.read()).state.withdrawn_versions) == [1]
        watch.cancel()
    answer = await mesh.server.service.get()
    assert answer.state.active_version == 0 and [m.version for m in answer.manifests] == [0, 1]


async def test_versions_that_cannot_be_activated(mesh):
    await mesh.start()
    with pytest.raises(MeshError, match="version 3 can't be activated: it is not kept here; those that are: 0"):
        await mesh.server.service.activate(pb.ActivateVersionRequest(version=3))
    with pytest.raises(MeshError, match="version: 'unset' is not allowed"):
        await mesh.server.service.activate(pb.ActivateVersionRequest(reason="no version is not version 0"))
    mesh.trainer.offer(1)
    await mesh.trainer.until(lambda: mesh.active == 1)
    mesh.server.engine.fail = True
    with pytest.raises(MeshError, match="out of memory") as caught:
        await mesh.server.service.activate(pb.ActivateVersionRequest(version=0))
    assert caught.value.retryable and mesh.active == 1


async def test_waits_for_a_policy_server_that_comes_late(mesh):
    await mesh.trainer.publisher.start()
    mesh.trainer.offer(1)
    await mesh.trainer.until(lambda: "not known" in mesh.trainer.publisher.status()["error"])
    await mesh.server.start()
    await mesh.trainer.until(lambda: mesh.active == 1)
