"""The clients against a real server in this process."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from openclaw_rl.client import AsyncJudgeServiceClient, JudgeServiceClient
from openclaw_rl.client.base import find
from openclaw_rl.config import Config
from openclaw_rl.rpc import errors
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.rpc.server import ComponentServer
from openclaw_rl.runtime import mesh_file
from openclaw_rl.runtime.home import Home, RunRecord, write_record
from openclaw_rl.runtime.mesh_file import MeshFile
from openclaw_rl.v1 import common_pb2, component_pb2, judge_pb2, judge_pb2_grpc, turn_pb2


class Judge(judge_pb2_grpc.JudgeServiceServicer):
    """Judges +1, except what it is told to refuse; its watch never ends."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.refuses = False

    async def Judge(self, request: judge_pb2.JudgeRequest, context: Any) -> judge_pb2.JudgeResponse:
        if not request.transition.turn.turn_id:
            raise errors.invalid("transition.turn.turn_id", "", "an id")
        return judge_pb2.JudgeResponse(judgement=turn_pb2.Judgement(score=1))

    async def WatchJudgements(self, request: judge_pb2.WatchJudgementsRequest,
                              context: Any) -> AsyncIterator[judge_pb2.WatchJudgementsResponse]:
        try:
            while True:
                yield judge_pb2.WatchJudgementsResponse(session_id=request.session_id)
        finally:
            self.cancelled.set()

    async def JudgeTransitions(self, request_iterator: Any,
                               context: Any) -> AsyncIterator[judge_pb2.JudgeTransitionsResponse]:
        if self.refuses:
            raise errors.failed_precondition("PAUSED", "no more today")
        async for request in request_iterator:
            yield judge_pb2.JudgeTransitionsResponse(
                acks=[common_pb2.Ack(id=t.turn.turn_id) for t in request.transitions])


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Judge, Home]]:
    home, judge = Home(tmp_path).create(), Judge()
    server = ComponentServer("prm_judge", "127.0.0.1", 0, home, component_pb2.ComponentStatus)
    server.add(judge_pb2_grpc.add_JudgeServiceServicer_to_server, judge, "openclaw_rl.v1.JudgeService")
    await server.start()
    yield judge, home
    await server.stop(0)


def transition(turn_id: str) -> turn_pb2.Transition:
    return turn_pb2.Transition(turn=turn_pb2.Turn(turn_id=turn_id))


async def test_async(served: tuple[Judge, Home]) -> None:
    _, home = served
    async with AsyncJudgeServiceClient(home=home) as client:
        assert (await client.judge(transition=transition("a"))).judgement.score == 1
        with pytest.raises(MeshError) as refused:
            await client.judge()
        assert refused.value.violations[0][0] == "transition.turn.turn_id"

        async def requests() -> AsyncIterator[judge_pb2.JudgeTransitionsRequest]:
            for turn_id in "ab":
                yield judge_pb2.JudgeTransitionsRequest(transitions=[transition(turn_id)])

        assert [r.acks[0].id async for r in client.judge_transitions(requests())] == ["a", "b"]
        watch = client.watch_judgements(session_id="s")
        async for event in watch:
            assert event.session_id == "s"
            break
        await watch.aclose()  # type: ignore[attr-defined]
        with pytest.raises(TypeError, match="not both"):
            await client.judge(judge_pb2.JudgeRequest(), transition=transition("a"))


async def test_blocking(served: tuple[Judge, Home]) -> None:
    import asyncio

    judge, home = served

    def talk() -> None:
        with JudgeServiceClient(home=home) as client:
            assert client.judge(judge_pb2.JudgeRequest(transition=transition("a"))).judgement.score == 1
            with pytest.raises(MeshError) as refused:
                client.judge()
            assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
            requests = [judge_pb2.JudgeTransitionsRequest(transitions=[transition(i)]) for i in "ab"]
            assert [r.acks[0].id for r in client.judge_transitions(requests)] == ["a", "b"]
            watch: Iterator[Any] = client.watch_judgements(session_id="s")
            assert next(watch).session_id == "s"
            watch.close()  # type: ignore[attr-defined]
            assert judge.cancelled.wait(10), "closing the iterator cancels the call"

    await asyncio.to_thread(talk)


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(MeshError, match=r"prm_judge is not running in .*local-start"):
        JudgeServiceClient(home=Home(tmp_path))
    write_record(Home(tmp_path), RunRecord("prm_judge", 1, "127.0.0.1:1"))
    with JudgeServiceClient(home=Home(tmp_path)) as client, pytest.raises(MeshError, match="does not answer at 127"):
        client.judge()


def test_a_mesh_on_several_hosts_is_found_by_its_file(tmp_path: Path) -> None:
    home = Home(tmp_path).create()
    write_record(home, RunRecord("prm_judge", 1, "127.0.0.1:1"))
    config = Config.model_validate({"components": {"prm_judge": {"address": "127.0.0.1:2"}}})
    mesh_file.write(home, MeshFile(config))
    assert find("prm_judge", home) == "127.0.0.1:2"
    with pytest.raises(MeshError, match="trainer is not part of the mesh"):
        find("trainer", home)


async def test_writing_to_a_call_that_the_server_has_ended(served: tuple[Judge, Home]) -> None:
    judge, home = served
    judge.refuses = True
    async with AsyncJudgeServiceClient(home=home) as client:

        async def requests() -> AsyncIterator[judge_pb2.JudgeTransitionsRequest]:
            while True:
                yield judge_pb2.JudgeTransitionsRequest(transitions=[transition("a")] * 1000)

        for _ in range(20):  # the write meets the end at one moment or another
            with pytest.raises(MeshError, match="no more today") as refused:
                _ = [r async for r in client.judge_transitions(requests())]
            assert refused.value.reason == "PAUSED"
