"""News of a conversation, from servers in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.cli.chat_news import News, judged, serves
from openclaw_rl.rpc.server import ComponentServer
from openclaw_rl.runtime.home import Home
from openclaw_rl.v1 import (
    component_pb2,
    judge_pb2,
    judge_pb2_grpc,
    policy_pb2,
    policy_pb2_grpc,
    trainer_pb2,
    trainer_pb2_grpc,
    weights_pb2,
)
from openclaw_rl.v1.turn_pb2 import Judgement, Vote
from tests.support.waiting import eventually

PENDING, DROPPED = trainer_pb2.SAMPLE_FATE_PENDING, trainer_pb2.SAMPLE_FATE_DROPPED
SOON = 60


class Told:
    """A stream that tells what is put in; `readers` follow it."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self.readers = 0
        self.tell = self._queue.put_nowait

    async def stream(self) -> AsyncIterator[Any]:
        self.readers += 1
        while True:
            yield await self._queue.get()


class Judge(judge_pb2_grpc.JudgeServiceServicer):
    def __init__(self) -> None:
        self.told = Told()
        self.made: dict[str, Judgement] = {}

    async def ListJudgements(self, request: Any, context: Any) -> judge_pb2.ListJudgementsResponse:
        return judge_pb2.ListJudgementsResponse(judgements=[
            self.made[turn] for turn in request.turn_ids if turn in self.made])

    async def WatchJudgements(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for message in self.told.stream():
            yield message

    def judge(self, turn_id: str, score: int, hint: str = "") -> None:
        self.told.tell(judge_pb2.WatchJudgementsResponse(
            judgement=Judgement(turn_id=turn_id, score=score, hint=hint)))


class Trainer(trainer_pb2_grpc.TrainerServiceServicer):
    def __init__(self) -> None:
        self.told = Told()
        self.samples: dict[str, trainer_pb2.SampleStatus] = {}
        self.status = component_pb2.ComponentStatus()

    async def WatchTraining(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for message in self.told.stream():
            yield message

    async def ListSamples(self, request: Any, context: Any) -> trainer_pb2.ListSamplesResponse:
        return trainer_pb2.ListSamplesResponse(samples=[
            self.samples[turn] for turn in request.turn_ids if turn in self.samples])

    def event(self, kind: trainer_pb2.TrainingEventKind.ValueType, message: str, version: int | None = None) -> None:
        self.told.tell(trainer_pb2.WatchTrainingResponse(kind=kind, message=message, version=version))


class Policy(policy_pb2_grpc.PolicyServiceServicer):
    def __init__(self) -> None:
        self.told = Told()

    async def WatchPolicy(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for message in self.told.stream():
            yield message

    async def GetPolicy(self, request: Any, context: Any) -> policy_pb2.GetPolicyResponse:
        return policy_pb2.GetPolicyResponse(manifests=[
            weights_pb2.VersionManifest(version=1, turn_ids=["a", "b", "c", "d"])])

    def serve(self, version: int) -> None:
        self.told.tell(policy_pb2.WatchPolicyResponse(state=policy_pb2.PolicyState(active_version=version)))


class Mesh:
    """Judge, trainer and policy server."""

    def __init__(self, home: Home) -> None:
        self.home, self.judge, self.trainer, self.policy = home, Judge(), Trainer(), Policy()
        self.servers: dict[str, ComponentServer] = {}

    async def start(self, stack: AsyncExitStack, *names: str) -> None:
        known: dict[str, tuple[Any, Any, str]] = {
            "prm_judge": (judge_pb2_grpc.add_JudgeServiceServicer_to_server, self.judge, "JudgeService"),
            "trainer": (trainer_pb2_grpc.add_TrainerServiceServicer_to_server, self.trainer, "TrainerService"),
            "policy_server": (policy_pb2_grpc.add_PolicyServiceServicer_to_server, self.policy, "PolicyService")}
        for name in names:
            add, servicer, service = known[name]
            server = ComponentServer(name, "127.0.0.1", 0, self.home, lambda: self.trainer.status)
            server.add(add, servicer, f"openclaw_rl.v1.{service}")
            await server.start()
            stack.push_async_callback(server.stop, 0)
            self.servers[name] = server


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def test_what_becomes_of_an_answer_is_told(stack: AsyncExitStack, tmp_path: Path) -> None:
    mesh, notes = Mesh(Home(tmp_path).create()), list[str]()
    await mesh.start(stack, "prm_judge", "trainer", "policy_server")

    async def told(*wanted: str) -> None:
        await eventually(lambda: len(notes) >= len(wanted), SOON, str(wanted))
        assert notes == list(wanted)
        notes.clear()

    with News(mesh.home, lambda text, style: notes.append(text)) as news:
        mesh.policy.serve(0)
        await eventually(lambda: news.active == 0 and mesh.judge.told.readers and mesh.trainer.told.readers, SOON)
        news.answered(1, "turn_1")
        mesh.trainer.status.detail = "needs 2 more samples or 41 s; 3 dropped: judge failed"
        mesh.judge.judge("another", 1)
        mesh.judge.judge("turn_1", -1, "Answer in\none sentence.")
        await told("answer 1 judged -1, hint: Answer in one sentence.")
        assert news.judged == 1
        mesh.trainer.samples["turn_1"] = trainer_pb2.SampleStatus(turn_id="turn_1", fate=PENDING)
        await told("training needs 2 more samples or 41 s")
        news.answered(2, "turn_2")
        mesh.trainer.samples["turn_2"] = trainer_pb2.SampleStatus(turn_id="turn_2", fate=DROPPED, reason="no signal")
        mesh.judge.judge("turn_2", 0)
        await told("answer 2 judged 0", "answer 2 is not trained on: no signal")
        mesh.trainer.event(trainer_pb2.TRAINING_EVENT_KIND_STEP_STARTED, "a step began")
        mesh.trainer.event(trainer_pb2.TRAINING_EVENT_KIND_VERSION_CREATED, "version 1 was made", 1)
        mesh.trainer.event(trainer_pb2.TRAINING_EVENT_KIND_VERSION_REFUSED, "it repeats itself", 2)
        await told("training begins", "the gate refused version 2: it repeats itself")
        mesh.policy.serve(1)
        await told("version 1 answers now, made of 4 turns")
        mesh.policy.serve(0)
        await told("version 0 answers again")


async def test_a_component_that_is_down_is_told_once_and_followed_once_it_is_up(stack: AsyncExitStack,
                                                                                 tmp_path: Path) -> None:
    mesh, notes = Mesh(Home(tmp_path).create()), list[str]()
    await mesh.start(stack, "policy_server")
    with News(mesh.home, lambda text, style: notes.append(text)) as news:
        mesh.policy.serve(3)
        await eventually(lambda: news.active == 3 and len(notes) == 2, SOON)
        assert sorted(note.partition(":")[0] for note in notes) == ["no news of the judge", "no news of the trainer"]
        news.answered(1, "turn_1")
        news.answered(2, "turn_2")
        mesh.judge.made["turn_1"] = Judgement(turn_id="turn_1", score=1)
        await mesh.start(stack, "prm_judge")
        await eventually(lambda: mesh.judge.told.readers, SOON)
        mesh.judge.judge("turn_2", -1)
        await eventually(lambda: len(notes) > 3, SOON)
        assert notes[2:] == ["answer 1 judged +1", "answer 2 judged -1"], "one that it made before it was followed, too"


def test_sentences() -> None:
    failed = Judgement(failed=True, votes=[Vote(judge="llm", error="no answer within 30 s")])
    assert judged(3, failed) == "answer 3 could not be judged: no answer within 30 s"
    assert judged(3, Judgement(failed=True)) == "answer 3 could not be judged: no vote"
    assert serves(0, 1, 1) == "version 1 answers now, made of 1 turn"
    assert serves(5, 2, 0) == "version 2 answers again"
