"""Versions travel from a publisher to a policy server over real gRPC, also over lines that break."""

from __future__ import annotations

import random
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from openclaw_rl.rpc.channel import connect
from openclaw_rl.rpc.errors import MeshError, from_rpc_error
from openclaw_rl.serving.engines.interface import Pause
from openclaw_rl.v1 import policy_pb2 as pb
from openclaw_rl.v1 import policy_pb2_grpc, weights_pb2
from tests.serving.peers import SIZE, Line, Server, Trainer


class Mesh:
    def __init__(self, tmp_path: Path, model: Path) -> None:
        self.server = Server(tmp_path / "policy_server", model)
        self.line: Line | None = None
        self.trainer = Trainer(tmp_path / "trainer", model,
                               lambda: self.line.address if self.line else self.server.address)

    async def start(self, limits: list[int] | None = None, accepts_weights: bool = True) -> Mesh:
        await self.server.start(accepts_weights)
        if limits is not None:
            self.line = Line(lambda: self.server.address, limits)
            await self.line.start()
        await self.trainer.publisher.start()
        return self

    @property
    def active(self) -> int:
        return self.server.engine.active_version


@pytest.fixture
async def mesh(tmp_path: Path, model: Path) -> AsyncIterator[Mesh]:
    mesh = Mesh(tmp_path, model)
    yield mesh
    await mesh.trainer.publisher.stop()
    if mesh.server.address:
        await mesh.server.kill()
    if mesh.line:
        await mesh.line.stop()


async def test_versions_become_active_one_after_the_other(mesh: Mesh) -> None:
    await mesh.start()
    for version in (1, 2, 3):
        mesh.trainer.offer(version)
        await mesh.trainer.until(lambda v=version: mesh.trainer.activated[-1:] == [(v, 1.5)])
        assert mesh.active == version and mesh.server.versions.store.verify(version)
    assert [s.active_version for s in mesh.trainer.states] == [0], "told once; `activated` tells the rest"
    status = mesh.trainer.publisher.status()
    assert status == {"connected": True, "active_version": 3, "pinned": False, "sending": None, "received_bytes": 0,
                      "total_bytes": 0, "waiting": None, "superseded": 0, "bytes_sent": 3 * SIZE, "error": "",
                      "reason": ""}


@pytest.mark.parametrize("seed", range(6))
async def test_a_line_that_breaks_costs_little(mesh: Mesh, seed: Any) -> None:
    rng = random.Random(seed)
    cuts = [rng.randint(10_000, SIZE // 2) for _ in range(3)]
    await mesh.start(cuts)
    mesh.trainer.offer(1)
    await mesh.trainer.until(lambda: mesh.trainer.activated != [])
    assert mesh.active == 1 and mesh.server.versions.store.verify(1)
    assert mesh.line.connections > 1
    assert mesh.line.bytes < 1.3 * SIZE and mesh.trainer.publisher.status()["bytes_sent"] < 1.3 * SIZE


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
async def test_a_policy_server_killed_in_the_middle(mesh: Mesh, share: float) -> None:
    await mesh.start([])
    mesh.trainer.offer(1)
    await mesh.trainer.until(lambda: mesh.line.bytes > share * SIZE)
    await mesh.server.kill()
    await mesh.server.start()
    await mesh.trainer.until(lambda: mesh.trainer.activated != [])
    assert mesh.active == 1 and mesh.server.versions.store.verify(1) and mesh.line.bytes < 1.3 * SIZE


async def test_a_trainer_killed_in_the_middle(mesh: Mesh) -> None:
    await mesh.start([])
    mesh.trainer.offer(1)
    await mesh.trainer.until(lambda: mesh.line.bytes > SIZE // 2)
    mesh.trainer.publisher._task.cancel()  # as a kill does: no abort, no half-close
    mesh.trainer.publisher = mesh.trainer.make()
    await mesh.trainer.publisher.start()
    mesh.trainer.publisher.offer(1)
    await mesh.trainer.until(lambda: mesh.trainer.activated != [])
    assert mesh.active == 1 and mesh.line.bytes < 1.3 * SIZE


async def test_a_stopped_publisher_gives_up_and_a_new_one_goes_on(mesh: Mesh) -> None:
    await mesh.start([])
    mesh.trainer.offer(1)
    await mesh.trainer.until(lambda: mesh.line.bytes > SIZE // 2)
    await mesh.trainer.publisher.stop()
    assert mesh.active == 0
    mesh.trainer.publisher = mesh.trainer.make()
    mesh.trainer.publisher.offer(1)
    await mesh.trainer.publisher.start()
    await mesh.trainer.until(lambda: mesh.trainer.activated != [])
    assert mesh.active == 1 and mesh.line.bytes < 1.3 * SIZE


async def test_an_activation_whose_answer_was_lost(mesh: Mesh) -> None:
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


async def test_versions_that_come_too_fast_are_superseded_and_a_begun_one_is_finished(mesh: Mesh) -> None:
    mesh.trainer.write(1)
    mesh.trainer.publisher.offer(1)
    for version in (2, 3):
        mesh.trainer.offer(version)
    await mesh.start([])
    await mesh.trainer.until(lambda: mesh.line.bytes > SIZE // 8)
    assert mesh.trainer.publisher.status()["sending"] == 3
    for version in (4, 5):
        mesh.trainer.offer(version)
    await mesh.trainer.until(lambda: len(mesh.trainer.activated) == 2)
    assert [version for version, _ in mesh.trainer.activated] == [3, 5]
    assert mesh.trainer.publisher.status()["superseded"] == 3 and mesh.line.bytes < 2.2 * SIZE


async def test_a_rollback_reaches_the_trainer_and_its_versions_are_refused(mesh: Mesh) -> None:
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


async def test_an_operator_who_goes_back_just_before_a_commit_has_the_last_word(mesh: Mesh) -> None:
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


async def test_going_back_and_forward_again_reaches_the_trainer(mesh: Mesh) -> None:
    await mesh.start()
    for version in (1, 2):
        mesh.trainer.offer(version)
        await mesh.trainer.until(lambda v=version: len(mesh.trainer.activated) == v)
    for version in (1, 2, 0, 2):
        await mesh.server.service.activate(pb.ActivateVersionRequest(version=version))
        await mesh.trainer.until(lambda v=version: mesh.trainer.states[-1].active_version == v)


async def test_a_rejected_version_is_reported_and_the_next_one_goes_on(mesh: Mesh) -> None:
    await mesh.start()
    mesh.trainer.write(1, model_id="other")
    mesh.trainer.publisher.offer(1)
    await mesh.trainer.until(lambda: mesh.trainer.rejected != [])
    assert mesh.trainer.rejected[0][:2] == (1, "WRONG_MODEL") and mesh.active == 0
    mesh.trainer.offer(2, parent=0)
    await mesh.trainer.until(lambda: mesh.active == 2)


async def test_a_version_that_the_trainers_disk_lost(mesh: Mesh) -> None:
    mesh.trainer.offer(1)
    (mesh.trainer.store.folder(1) / "model.safetensors").unlink()
    await mesh.start()
    await mesh.trainer.until(lambda: mesh.trainer.rejected != [])
    assert mesh.trainer.rejected[0][:2] == (1, "STORAGE")
    with pytest.raises(KeyError):
        mesh.trainer.publisher.offer(7)


async def test_an_engine_that_recovers_gets_the_version(mesh: Mesh) -> None:
    await mesh.start()
    mesh.server.engine.fail = True
    mesh.trainer.offer(1)
    await mesh.trainer.until(lambda: "out of memory" in mesh.trainer.publisher.status()["error"])
    assert mesh.trainer.rejected == []
    mesh.server.engine.fail = False
    await mesh.trainer.until(lambda: mesh.active == 1)
    assert mesh.trainer.publisher.status()["bytes_sent"] == SIZE


async def test_a_version_that_the_policy_server_lost_is_sent_again(mesh: Mesh) -> None:
    await mesh.start()
    mesh.trainer.offer(1)
    await mesh.trainer.until(lambda: mesh.trainer.activated != [])
    await mesh.server.kill()
    shutil.rmtree(mesh.server.folder)
    await mesh.server.start()
    assert mesh.active == 0
    await mesh.trainer.until(lambda: mesh.active == 1)


async def test_an_api_policy_takes_no_weights(mesh: Mesh) -> None:
    await mesh.start(accepts_weights=False)
    mesh.trainer.offer(1)
    await mesh.trainer.until(lambda: mesh.trainer.rejected != [])
    assert mesh.trainer.rejected[0][:2] == (1, "UNSUPPORTED") and not mesh.trainer.states[0].accepts_weights


async def test_the_newer_of_two_streams_wins(mesh: Mesh) -> None:
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


async def test_watchers_see_each_change(mesh: Mesh) -> None:
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


async def test_versions_that_cannot_be_activated(mesh: Mesh) -> None:
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


async def test_waits_for_a_policy_server_that_comes_late(mesh: Mesh) -> None:
    await mesh.trainer.publisher.start()
    mesh.trainer.offer(1)
    await mesh.trainer.until(lambda: "not known" in mesh.trainer.publisher.status()["error"])
    await mesh.server.start()
    await mesh.trainer.until(lambda: mesh.active == 1)
