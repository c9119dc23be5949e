"""A policy server that copies its versions from another one, over real gRPC and lines that break."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import grpc
import pytest

from openclaw_rl.rpc import reconnect
from openclaw_rl.rpc.channel import connect
from openclaw_rl.rpc.errors import from_rpc_error
from openclaw_rl.runtime.backoff import Backoff
from openclaw_rl.v1 import policy_pb2 as pb
from openclaw_rl.v1 import policy_pb2_grpc
from openclaw_rl.weights.transfer import fetch as fetch_module
from openclaw_rl.weights.transfer import relay as relay_module
from tests.serving.peers import CHUNK, SIZE, Line, Server, put
from tests.support.waiting import eventually


class Tree:
    """A policy server, and others that copy it or one another, each over a line of its own."""

    def __init__(self, tmp_path: Path, model: Path) -> None:
        self.tmp_path, self.model = tmp_path, model
        self.servers: list[Server] = []
        self.lines: list[Line] = []

    async def root(self) -> Server:
        server = Server(self.tmp_path / "root", self.model)
        self.servers.append(server)
        await server.start()
        return server

    async def copy(self, source: Server, limits: tuple[int, ...] = (), keep: int = 3) -> tuple[Server, Line]:
        line = Line(lambda: source.address, limits, back=True)
        await line.start()
        server = Server(self.tmp_path / f"copy{len(self.servers)}", self.model, line.address, keep)
        self.lines.append(line)
        self.servers.append(server)
        await server.start()
        return server, line

    async def stop(self) -> None:
        for server in reversed(self.servers):
            if server.address:
                await server.kill()
        for line in self.lines:
            await line.stop()


@pytest.fixture
async def tree(tmp_path: Path, model: Path) -> AsyncIterator[Tree]:
    tree = Tree(tmp_path, model)
    yield tree
    await tree.stop()


async def activate(server: Server, **fields: object) -> None:
    await server.service.activate(pb.ActivateVersionRequest(**fields))  # type: ignore[arg-type]


async def test_versions_run_down_a_tree(tree: Tree) -> None:
    root = await tree.root()
    middle, _ = await tree.copy(root)
    leaf, _ = await tree.copy(middle)
    for version in (1, 2):
        await put(root, version)
        await eventually(lambda v=version: leaf.active == v)  # type: ignore[misc]
        assert root.digest == middle.digest == leaf.digest and leaf.versions.store.verify(version)
    relay = leaf.relay
    assert leaf.engine.active_version == 2 and relay is not None
    await eventually(lambda: relay.status()["fetching"] is None)  # told a moment after the activation
    status = relay.status()
    assert (status["connected"], status["peer_version"], status["fetching"], status["error"]) == (True, 2, None, "")
    assert leaf.relay.problems() == []


async def test_one_that_comes_late_gets_the_newest_alone(tree: Tree) -> None:
    root = await tree.root()
    for version in (1, 2, 3):
        await put(root, version)
    copy, line = await tree.copy(root)
    await eventually(lambda: copy.active == 3)
    assert copy.versions.state().kept_versions == [0, 3] and line.bytes < 1.2 * SIZE


@pytest.mark.parametrize("seed", range(3))
async def test_a_line_that_breaks_costs_little(tree: Tree, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "CHUNK", CHUNK)
    monkeypatch.setattr(reconnect, "Backoff", partial(Backoff, 0.01, 0.1))
    chance = random.Random(seed)
    limits = tuple(chance.randrange(SIZE // 20, SIZE // 3) for _ in range(10))
    root = await tree.root()
    await put(root, 1)
    copy, line = await tree.copy(root, limits)
    await eventually(lambda: copy.active == 1, 30)
    assert copy.digest == root.digest and copy.versions.store.verify(1) and line.connections > 3


async def test_a_copy_that_is_killed_goes_on_from_what_it_has(tree: Tree) -> None:
    root = await tree.root()
    await put(root, 1)
    copy, line = await tree.copy(root)
    assert copy.relay is not None
    await eventually(lambda: copy.relay.status()["received_bytes"] > 0 or copy.active == 1)
    await copy.kill()
    await copy.start()
    await eventually(lambda: copy.active == 1)
    assert copy.digest == root.digest and line.bytes < 2.2 * SIZE


async def test_rollbacks_are_followed_and_the_way_forward_again(tree: Tree) -> None:
    root = await tree.root()
    copy, line = await tree.copy(root)
    for version in (1, 2):
        await put(root, version)
        await eventually(lambda v=version: copy.active == v)  # type: ignore[misc]
    sent = line.bytes
    for version in (1, 2, 0):
        await activate(root, version=version)
        await eventually(lambda v=version: copy.active == v)  # type: ignore[misc]
    assert copy.versions.state().withdrawn_versions == [1, 2] and line.bytes < sent + 100_000
    await put(root, 3, parent=0)
    await eventually(lambda: copy.active == 3)


async def test_a_rollback_stops_what_is_on_its_way(tree: Tree) -> None:
    root = await tree.root()
    await put(root, 1)
    copy, line = await tree.copy(root)
    await eventually(lambda: copy.active == 1)
    line.flowing.clear()
    await put(root, 2)
    await activate(root, version=1, reason="worse")
    line.flowing.set()
    await put(root, 3, parent=1)
    await eventually(lambda: copy.active == 3)
    assert 2 not in copy.versions.state().kept_versions


async def test_a_rollback_to_what_is_not_kept_is_reported_until_the_next_version(tree: Tree) -> None:
    root = await tree.root()
    copy, _ = await tree.copy(root, keep=1)
    for version in (1, 2, 3):
        await put(root, version)
        await eventually(lambda v=version: copy.active == v)  # type: ignore[misc]
    assert 1 not in copy.versions.state().kept_versions
    await activate(root, version=1)
    assert copy.relay is not None
    await eventually(lambda: copy.relay.problems() != [])
    assert "answers with version 1, which is not kept here" in copy.relay.problems()[0] and copy.active == 3
    await put(root, 4, parent=1)
    await eventually(lambda: copy.active == 4)
    assert copy.relay.problems() == []


async def test_while_the_other_one_is_down_it_serves_and_says_so(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "UNREACHABLE", 0.05)
    root = await tree.root()
    copy, _ = await tree.copy(root)
    await put(root, 1)
    await eventually(lambda: copy.active == 1)
    await root.kill()
    assert copy.relay is not None
    await eventually(lambda: copy.relay.problems() != [])
    assert "has not been reached for" in copy.relay.problems()[0] and copy.active == 1
    await root.start()
    await put(root, 2)
    await eventually(lambda: copy.active == 2)
    assert copy.relay.problems() == [] and copy.relay.status()["error"] == ""


async def test_a_pin_holds_until_it_is_lifted(tree: Tree) -> None:
    root = await tree.root()
    copy, _ = await tree.copy(root)
    await put(root, 1)
    await eventually(lambda: copy.active == 1)
    await activate(copy, pin=True, reason="a demonstration")
    await put(root, 2)
    await eventually(lambda: copy.relay is not None and copy.relay.status()["peer_version"] == 2)
    assert copy.active == 1
    await activate(copy, pin=False)
    await eventually(lambda: copy.active == 2)
    await activate(copy, version=1)  # without a pin the other one's version comes back
    await eventually(lambda: copy.active == 2)


async def test_an_engine_that_recovers_gets_the_version(tree: Tree) -> None:
    root = await tree.root()
    copy, line = await tree.copy(root)
    copy.engine.fail = True
    await put(root, 1)
    await eventually(lambda: copy.relay is not None and "out of memory" in copy.relay.status()["error"])
    copy.engine.fail = False
    await eventually(lambda: copy.active == 1)
    assert line.bytes < 1.2 * SIZE


async def test_another_model_is_not_copied(tree: Tree) -> None:
    root = await tree.root()
    root.engine.info = type(root.engine.info)("embedded", "other", "n", 128, 100, (2,), True)
    copy, _ = await tree.copy(root)
    assert copy.relay is not None
    await eventually(lambda: copy.relay.problems() != [])
    assert "serves another model (other, n) than this one (tiny, m)" in copy.relay.problems()[0]


async def test_the_trainer_is_told_where_the_versions_come_from(tree: Tree) -> None:
    root = await tree.root()
    copy, line = await tree.copy(root)
    async with connect(str(copy.address)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await policy_pb2_grpc.PolicyServiceStub(channel).SyncWeights().read()
    error = from_rpc_error(refused.value)
    assert error.reason == "FED_BY_RELAY" and f"from {line.address}" in error.message
