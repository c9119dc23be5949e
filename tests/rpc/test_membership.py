"""Callers and servers of two meshes that meet, over real gRPC on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from openclaw_rl.client import AsyncComponentServiceClient, AsyncDelivery, ComponentServiceClient
from openclaw_rl.rpc.auth.authorize import TABLE
from openclaw_rl.rpc.channel import connect, sync_connect
from openclaw_rl.rpc.errors import MeshError, from_rpc_error
from openclaw_rl.rpc.membership import COMPONENT_KEY, MESH_KEY, REMEMBERED, Membership
from openclaw_rl.rpc.server import ComponentServer
from openclaw_rl.runtime import mesh_id
from openclaw_rl.runtime.home import COMPONENTS, Home
from openclaw_rl.runtime.runtime import Ambient, activated
from openclaw_rl.v1 import common_pb2, component_pb2, component_pb2_grpc, judge_pb2, judge_pb2_grpc
from openclaw_rl.v1.turn_pb2 import Transition, Turn

#: RPCs that belong to components; nobody else has a business there.
INTERNAL = {"RecordTurns", "JudgeTransitions", "SubmitSamples", "SyncWeights", "FetchWeights"}


class Judge(judge_pb2_grpc.JudgeServiceServicer):
    """Takes what comes."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    async def JudgeTransitions(self, requests: Any, context: Any) -> AsyncIterator[judge_pb2.JudgeTransitionsResponse]:
        async for request in requests:
            ids = [transition.turn.turn_id for transition in request.transitions]
            self.taken += ids
            yield judge_pb2.JudgeTransitionsResponse(acks=[
                common_pb2.Ack(id=id, status=common_pb2.ACK_STATUS_ACCEPTED) for id in ids])


@asynccontextmanager
async def judging(home: Home, judge: Judge, ours: Membership | None) -> AsyncIterator[ComponentServer]:
    """A judge's server of that mesh; None names none, as one of contract 1.0."""
    with activated(Ambient(identified=True, membership=ours)):
        server = ComponentServer("prm_judge", "127.0.0.1", 0, home,
                                 lambda: component_pb2.ComponentStatus(state=component_pb2.COMPONENT_STATE_RUNNING))
        server.add(judge_pb2_grpc.add_JudgeServiceServicer_to_server, judge, "openclaw_rl.v1.JudgeService")
        await server.start()
    try:
        yield server
    finally:
        await server.stop(0)


@pytest.fixture
async def judge() -> Judge:
    return Judge()


@pytest.fixture
async def server(tmp_path: Path, judge: Judge) -> AsyncIterator[ComponentServer]:
    async with judging(Home(tmp_path).create(), judge, Membership("mesh-b", "prm_judge")) as server:
        yield server


async def refused(address: str, ours: Membership | None) -> MeshError:
    """What a caller is told who opens the ring stream."""
    async with connect(address, ours=ours) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await judge_pb2_grpc.JudgeServiceStub(channel).JudgeTransitions().read()
    return from_rpc_error(caught.value)


async def status(address: str, ours: Membership | None) -> Any:
    """GetStatus's call, once it is answered."""
    async with connect(address, ours=ours) as channel:
        call = component_pb2_grpc.ComponentServiceStub(channel).GetStatus(component_pb2.GetStatusRequest())
        await call
        return call


def test_a_stream_between_components_is_one_that_no_key_opens() -> None:
    assert {method.rpartition("/")[2] for method, rule in TABLE.items() if rule.scope is None} == INTERNAL


async def test_another_mesh_is_refused_by_name(server: ComponentServer, judge: Judge) -> None:
    error = await refused(server.address, Membership("mesh-a", "env_server"))
    assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_MESH")
    assert error.message == (
        "env_server of the mesh mesh-a calls prm_judge of the mesh mesh-b: correct its address of prm_judge; "
        "`openclaw-rl status` tells the addresses of a mesh. Nothing was taken")
    assert error.metadata == {"expected": "mesh-b", "found": "mesh-a"} and not error.retryable
    with pytest.raises(grpc.aio.AioRpcError):
        await status(server.address, Membership("mesh-a"))
    assert not judge.taken
    told = server.status()
    assert not told.alarms and told.state == component_pb2.COMPONENT_STATE_RUNNING, "the fault is the caller's"
    assert told.gauges["foreign_calls_refused"] == 2
    assert "a client of the mesh mesh-a calls GetStatus here" in told.detail


async def test_who_names_no_mesh_may_ask_and_not_send(server: ComponentServer) -> None:
    call = await status(server.address, None)
    assert (await call).status.mesh_id == "mesh-b"
    assert set(await call.initial_metadata()) >= {(MESH_KEY, "mesh-b"), (COMPONENT_KEY, "prm_judge")}
    error = await refused(server.address, None)
    assert error.reason == "WRONG_MESH" and "send the metadata openclaw-mesh: mesh-b (grpcurl -H)" in error.message
    assert not server.status().gauges["foreign_calls_refused"], "nobody of another mesh was there"


async def test_another_component_has_no_business_there(server: ComponentServer) -> None:
    error = await refused(server.address, Membership("mesh-b", "trainer"))
    assert error.reason == "WRONG_ROLE"
    assert error.message == "JudgeTransitions is for env_server; the caller says it is trainer"


async def test_nothing_is_sent_to_another_mesh_and_it_waits(tmp_path: Path, judge: Judge) -> None:
    """The receiver lets everybody in, so that it is the sender alone that notices."""
    class Anybody(Membership):
        def admit(self, *_: Any, **__: Any) -> None:
            pass

    theirs = Anybody("mesh-b", "prm_judge")
    async with judging(Home(tmp_path).create(), judge, theirs) as server:
        delivery = AsyncDelivery("transitions", server.address, mesh="mesh-a")
        async with delivery:
            await delivery.send(Transition(turn=Turn(turn_id="t")))
            with pytest.raises(MeshError, match=r"prm_judge at .* is of the mesh mesh-b, not of this mesh mesh-a: "
                                                r"correct the address of prm_judge.*nothing was sent") as caught:
                await delivery.flush(20)
            assert caught.value.reason == "WRONG_MESH"
            assert not judge.taken and delivery.waiting == 1
            theirs.metadata = Membership("mesh-a", "prm_judge").metadata  # the right one is back on the port
            async with asyncio.timeout(20):
                while delivery.waiting:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert judge.taken == ["t"]


@pytest.mark.parametrize("ours", [None, Membership("mesh-a", "prm_judge")], ids=["of contract 1.0", "of our mesh"])
async def test_the_same_mesh_and_an_older_receiver_are_served(tmp_path: Path, judge: Judge, ours: Membership | None
                                                             ) -> None:
    async with judging(Home(tmp_path).create(), judge, ours) as server:
        async with AsyncDelivery("transitions", server.address, mesh="mesh-a") as delivery:
            await delivery.send(Transition(turn=Turn(turn_id="t")))
        assert judge.taken == ["t"]


async def test_clients_take_no_answer_of_another_mesh(server: ComponentServer, tmp_path: Path) -> None:
    home = Home(tmp_path / "other").create()
    (home.root / "mesh-id").write_text("mesh-a")

    def blocking() -> None:
        with ComponentServiceClient(server.address, home=home) as client, pytest.raises(MeshError, match="mesh-b"):
            client.get_status()
        with ComponentServiceClient(server.address, mesh="mesh-b") as client:
            assert client.get_status().status.mesh_id == next(client.watch_stats()).status.mesh_id == "mesh-b"
        with ComponentServiceClient(server.address) as client:  # a mere address takes whoever is there
            assert client.get_status().status.name == "prm_judge"

    await asyncio.to_thread(blocking)
    async with AsyncComponentServiceClient(server.address, home=home) as client:
        with pytest.raises(MeshError, match="mesh-b"):
            await anext(client.watch_stats())


async def test_all_calls_of_a_channel_name_the_mesh(server: ComponentServer) -> None:
    """Also those with metadata of their own, and of stubs that are blocking."""
    ours = Membership("mesh-b", "env_server")
    with sync_connect(server.address, ours=ours) as channel:
        stub = component_pb2_grpc.ComponentServiceStub(channel)
        request = component_pb2.GetStatusRequest()

        def calls() -> set[str]:
            return {stub.GetStatus(request, metadata=(("x", "y"),)).status.name,
                    stub.GetStatus.with_call(request)[0].status.name,
                    stub.GetStatus.future(request).result().status.name,
                    next(stub.WatchStats(component_pb2.WatchStatsRequest())).status.name}

        assert await asyncio.to_thread(calls) == {"prm_judge"}


def test_a_foreign_neighbour_is_an_alarm_until_the_right_one_answers() -> None:
    now = [100.0]
    ours = Membership("mesh-b", "env_server", clock=lambda: now[0])

    def meet(mesh: str, expected: str) -> None:
        ours.check_peer([(MESH_KEY, mesh)], expected, "127.0.0.1:1")

    with pytest.raises(MeshError) as found:
        meet("mesh-a", "prm_judge")
    ours.note(found.value, "policy_server")  # that refused before it said who it is
    meet("mesh-b", "policy_server")
    (name, text), = ours.alarms()
    assert name == "wrong_mesh" and "correct the address of prm_judge" in text
    meet("mesh-b", "prm_judge")
    assert not ours.alarms()
    with pytest.raises(MeshError):
        meet("mesh-a", "prm_judge")
    now[0] += REMEMBERED + 1
    assert not ours.alarms() and not ours.refused


def test_a_foreign_caller_is_counted_told_and_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    ours = Membership("mesh-b", "prm_judge", clock=lambda: now[0])

    def call() -> None:
        with pytest.raises(MeshError):
            ours.admit([(MESH_KEY, "mesh-a")], "/openclaw_rl.v1.JudgeService/Judge", certified=True)

    for _ in range(30):
        call()
        now[0] += 1
    assert ours.refused == 30 and not ours.alarms() and len(caplog.records) == 1
    assert "a client of the mesh mesh-a calls Judge here" in ours.refusals()
    now[0] += REMEMBERED
    assert not ours.refusals()
    call()
    assert len(caplog.records) == 2 and "31 calls of other meshes refused" in caplog.text


def test_a_certificate_names_the_mesh_of_a_stream() -> None:
    ours = Membership("mesh-b", "prm_judge")
    ours.admit(None, "/openclaw_rl.v1.JudgeService/JudgeTransitions", certified=True)
    with pytest.raises(MeshError, match="mesh-a"):
        ours.admit([(MESH_KEY, b"mesh-a")], "/openclaw_rl.v1.JudgeService/JudgeTransitions", certified=True)
    ours.admit([(MESH_KEY, "mesh-a")], "/grpc.health.v1.Health/Check", certified=False)


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_component_takes_the_id_of_its_home(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from openclaw_rl.config import Config
    from openclaw_rl.rpc import membership

    monkeypatch.delenv(mesh_id.VARIABLE, raising=False)
    home = Home(tmp_path)
    made = membership.of_component(Config(), home, name)
    assert (made.mesh, made.component) == (mesh_id.read(home), name)
    assert membership.of_client(home).mesh == membership.id_of(home) == made.mesh  # type: ignore[union-attr]
