"""The environment server as its neighbours see it: gRPC in, gRPC out, a restart between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from openclaw_rl.config import Config
from openclaw_rl.delivery.receiver import receive
from openclaw_rl.rollouts import server
from openclaw_rl.rollouts.servicer import EnvironmentServicer
from openclaw_rl.rpc.channel import connect
from openclaw_rl.rpc.errors import from_rpc_error
from openclaw_rl.runtime.home import Home, read_record
from openclaw_rl.v1 import common_pb2, component_pb2, component_pb2_grpc, environment_pb2_grpc, judge_pb2_grpc
from openclaw_rl.v1 import environment_pb2 as pb
from openclaw_rl.v1.environment_pb2_grpc import EnvironmentServiceServicer
from openclaw_rl.v1.judge_pb2 import JudgeTransitionsResponse
from openclaw_rl.v1.turn_pb2 import Transition
from tests.rollouts.harness import answer, as_event, turn, user
from tests.support.callers import of_mesh
from tests.support.waiting import eventually


class FakeJudge(judge_pb2_grpc.JudgeServiceServicer):
    def __init__(self, refuse: str = "") -> None:
        self.got: dict[str, Transition] = {}
        self.refuse = refuse

    async def JudgeTransitions(self, request_iterator, context):  # type: ignore[no-untyped-def]
        await context.send_initial_metadata(())  # as all components do: a sender waits for it
        async for response in receive(request_iterator, lambda request: list(request.transitions), self.take,
                                      lambda acks: JudgeTransitionsResponse(acks=acks)):
            yield response

    async def take(self, transitions: list[Transition]) -> list[common_pb2.Ack]:
        acks = []
        for transition in transitions:
            id = transition.turn.turn_id
            if id == self.refuse:
                acks.append(common_pb2.Ack(id=id, status=common_pb2.ACK_STATUS_REJECTED, reason="no"))
                continue
            self.got[id] = transition
            acks.append(common_pb2.Ack(id=id, status=common_pb2.ACK_STATUS_ACCEPTED))
        return acks


@asynccontextmanager
async def judging(judge: FakeJudge) -> AsyncIterator[str]:
    grpc_server = grpc.aio.server()
    judge_pb2_grpc.add_JudgeServiceServicer_to_server(judge, grpc_server)
    port = grpc_server.add_insecure_port("127.0.0.1:0")
    await grpc_server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await grpc_server.stop(None)


@asynccontextmanager
async def serving(home: Home, judge: str, **awareness: object) -> AsyncIterator[grpc.aio.Channel]:
    config = Config.model_validate({
        "components": {"env_server": {"port": 0}, "prm_judge": {"address": judge}}, "session_awareness": awareness})
    task = asyncio.create_task(server.run(config, home))
    try:
        await eventually(lambda: task.done() or read_record(home, server.NAME))
        record = read_record(home, server.NAME)
        assert record is not None, task.result()
        async with connect(record.address, ours=of_mesh(home)) as channel:
            yield channel
            await component_pb2_grpc.ComponentServiceStub(channel).Drain(component_pb2.DrainRequest())
            await asyncio.wait_for(task, 10)
    finally:
        task.cancel()


async def record(channel: grpc.aio.Channel, *events: object) -> list[common_pb2.Ack]:
    call = environment_pb2_grpc.EnvironmentServiceStub(channel).RecordTurns()
    await call.write(pb.RecordTurnsRequest(events=[as_event(event) for event in events]))  # type: ignore[arg-type]
    await call.done_writing()
    return [ack async for response in call for ack in response.acks]


async def status(channel: grpc.aio.Channel) -> component_pb2.ComponentStatus:
    request = component_pb2.GetStatusRequest()
    return (await component_pb2_grpc.ComponentServiceStub(channel).GetStatus(request)).status


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path).create()


async def test_turns_reach_the_judge_over_a_restart(home: Home) -> None:
    judge = FakeJudge()
    async with judging(judge) as address:
        async with serving(home, address) as channel:
            first = turn("t1", [user("hi")], "hello", policy_version=4)
            assert [ack.status for ack in await record(channel, first)] == [common_pb2.ACK_STATUS_ACCEPTED]
        async with serving(home, address) as channel:
            second = turn("t2", [user("hi"), answer("hello"), user("bye")], "bye", session_done=True)
            assert [ack.id for ack in await record(channel, first, second)] == ["t1", "t2"]
            await eventually(lambda: len(judge.got) == 2)
            assert [message.content for message in judge.got["t1"].next_state.messages] == ["bye"]
            found = await status(channel)
            assert found.state == component_pb2.COMPONENT_STATE_RUNNING
            assert dict(found.counters) == {"turns_main": 2, "turns_side": 0, "turns_unknown": 0, "retries": 0,
                                            "transitions_sent": 2, "feedback_ignored": 0, "total_interactions": 2,
                                            "leases": 0, "leases_expired": 0, "steps": 0,
                                            "sandboxes_lost": 0, "episodes_done": 0, "episodes_broken": 0}
            assert found.policy_version == 4
    assert [line.split("] ", 2)[2] for path in home.logs.glob("rl_trace_*") for line in path.read_text().splitlines()
            ] == ['[VERSION: 4] [MAIN] Action: "hello"', '[VERSION: 4] NextState: "bye"',
                  '[VERSION: 0] [MAIN] Action: "bye"', '[VERSION: 0] NextState: "(the session ended)"']


async def test_a_judge_that_is_away_slows_nothing_and_is_told(home: Home) -> None:
    async with serving(home, "127.0.0.1:1") as channel:
        await record(channel, turn("t1", [user("hi")], "hello", session_done=True))

        async def told() -> bool:
            return "Connection refused" in (await status(channel)).detail

        await eventually(told)
        found = await status(channel)
        assert found.detail.startswith("1 transitions wait on disk for prm_judge: ")
        assert found.state == component_pb2.COMPONENT_STATE_RUNNING
        assert found.outboxes[0].pending == 1


async def test_sessions_and_turns_are_told(home: Home) -> None:
    judge = FakeJudge(refuse="t2")
    async with judging(judge) as address, serving(home, address) as channel:
        stub = environment_pb2_grpc.EnvironmentServiceStub(channel)
        await record(channel, turn("t1", [user("hi")], "hello"), turn("t2", [user("x")], "y"))
        session = await stub.GetSession(pb.GetSessionRequest(session_id="s"))
        assert [summary.turn_id for summary in session.turns] == ["t1", "t2"]
        assert (session.session.branches, session.session.ended) == (2, False)
        assert (await stub.EndSession(pb.EndSessionRequest(session_id="s"))).closed_turns == 2

        async def rejected() -> int:
            return (await status(channel)).outboxes[0].rejected

        await eventually(rejected)
        [second, _] = (await stub.ListTurns(pb.ListTurnsRequest())).turns
        assert second.state == pb.TURN_STATE_REJECTED
        assert second.reason == "the judge refused it: no"


async def test_an_idle_session_is_reaped(home: Home) -> None:
    judge = FakeJudge()
    async with judging(judge) as address, serving(home, address, session_timeout=0.2) as channel:
        await record(channel, turn("t1", [user("hi")], "hello"))
        await eventually(lambda: judge.got)
        assert (await status(channel)).gauges["sessions_open"] == 0


async def test_nothing_trainable_is_degraded(home: Home) -> None:
    async with serving(home, "127.0.0.1:1") as channel:
        await record(channel, *(turn(f"t{i}", [user("x")], "y", declared_type="side") for i in range(20)))
        found = await status(channel)
        assert found.state == component_pb2.COMPONENT_STATE_DEGRADED
        assert "none of the 20 requests since the start is trainable" in found.detail


@pytest.mark.parametrize(("method", "request_", "code", "text"), [
    ("GetSession", pb.GetSessionRequest(), grpc.StatusCode.INVALID_ARGUMENT, "session_id: '' is not allowed"),
    ("GetSession", pb.GetSessionRequest(session_id="x"), grpc.StatusCode.NOT_FOUND, "there is no session 'x'"),
    ("EndSession", pb.EndSessionRequest(session_id="x"), grpc.StatusCode.NOT_FOUND, "there is no session 'x'"),
    ("ListTurns", pb.ListTurnsRequest(page_size=1001), grpc.StatusCode.INVALID_ARGUMENT, "page_size: 1001"),
    ("ListTurns", pb.ListTurnsRequest(page_size=-1), grpc.StatusCode.INVALID_ARGUMENT, "page_size: -1"),
    ("ListTurns", pb.ListTurnsRequest(page_token="x"), grpc.StatusCode.INVALID_ARGUMENT, "page_token: 'x'"),
    ("Acquire", pb.AcquireRequest(), grpc.StatusCode.INVALID_ARGUMENT, "lease_id: ''"),
    ("Acquire", pb.AcquireRequest(lease_id="a", type="moon"), grpc.StatusCode.NOT_FOUND, "there is no environment"),
    ("Reset", pb.ResetRequest(lease_id="a"), grpc.StatusCode.NOT_FOUND, "there is no lease 'a'"),
    ("RunEpisodes", pb.RunEpisodesRequest(type="moon"), grpc.StatusCode.NOT_FOUND, "there is no environment 'moon'"),
    ("RunEpisodes", pb.RunEpisodesRequest(groups=-1), grpc.StatusCode.INVALID_ARGUMENT, "groups: -1"),
    ("ListEpisodes", pb.ListEpisodesRequest(page_size=-1), grpc.StatusCode.INVALID_ARGUMENT, "page_size: -1"),
])
async def test_errors_say_what_to_do(home: Home, method: str, request_: object, code: grpc.StatusCode, text: str
                                     ) -> None:
    async with serving(home, "127.0.0.1:1") as channel:
        call = getattr(environment_pb2_grpc.EnvironmentServiceStub(channel), method)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            if method == "RunEpisodes":
                _ = [answer async for answer in call(request_)]
            else:
                await call(request_)
    error = from_rpc_error(caught.value)
    assert error.code == code
    assert text in error.message


def test_every_rpc_is_there() -> None:
    service = pb.DESCRIPTOR.services_by_name["EnvironmentService"]
    missing = [method.name for method in service.methods if getattr(EnvironmentServicer, method.name)
               is getattr(EnvironmentServiceServicer, method.name)]
    assert not missing
