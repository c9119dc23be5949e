"""The judge as a component: real gRPC, a real process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import yaml

from openclaw_rl.config import Config, ConfigError
from openclaw_rl.reward.server import NAME, run
from openclaw_rl.rpc.channel import connect
from openclaw_rl.rpc.errors import from_rpc_error
from openclaw_rl.runtime.home import Home, read_record
from openclaw_rl.v1 import (
    common_pb2,
    component_pb2,
    component_pb2_grpc,
    judge_pb2,
    judge_pb2_grpc,
    trainer_pb2,
    trainer_pb2_grpc,
    turn_pb2,
)
from tests.reward.factory import transition
from tests.support.callers import of_mesh
from tests.support.waiting import eventually


class FakeTrainer(trainer_pb2_grpc.TrainerServiceServicer):
    """Accepts samples."""

    def __init__(self) -> None:
        self.samples: dict[str, turn_pb2.Sample] = {}

    async def SubmitSamples(self, request_iterator: AsyncIterator[trainer_pb2.SubmitSamplesRequest],
                            context: grpc.aio.ServicerContext) -> AsyncIterator[trainer_pb2.SubmitSamplesResponse]:
        await context.send_initial_metadata(())
        async for request in request_iterator:
            acks = []
            for sample in request.samples:
                turn_id = sample.transition.turn.turn_id
                known = turn_id in self.samples
                self.samples[turn_id] = sample
                acks.append(common_pb2.Ack(id=turn_id, status=common_pb2.ACK_STATUS_DUPLICATE if known
                                           else common_pb2.ACK_STATUS_ACCEPTED))
            yield trainer_pb2.SubmitSamplesResponse(acks=acks)


@pytest.fixture
async def trainer() -> AsyncIterator[tuple[FakeTrainer, str]]:
    found, server = FakeTrainer(), grpc.aio.server()
    trainer_pb2_grpc.add_TrainerServiceServicer_to_server(found, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield found, f"127.0.0.1:{port}"
    await server.stop(0)


def settings(trainer_address: str) -> dict[str, object]:
    return {"components": {"prm_judge": {"port": 0}, "trainer": {"address": trainer_address}}}


@pytest.fixture
async def stub(tmp_path: Path, trainer: tuple[FakeTrainer, str]) -> AsyncIterator[judge_pb2_grpc.JudgeServiceStub]:
    home = Home(tmp_path).create()
    task = asyncio.create_task(run(Config.model_validate(settings(trainer[1])), home))
    await eventually(lambda: task.done() or read_record(home, NAME))
    if task.done():
        task.result()
    record = read_record(home, NAME)
    assert record is not None
    async with connect(record.address, ours=of_mesh(home)) as channel:
        found = judge_pb2_grpc.JudgeServiceStub(channel)
        found.component = component_pb2_grpc.ComponentServiceStub(channel)  # type: ignore[attr-defined]
        yield found
        await found.component.Drain(component_pb2.DrainRequest())  # type: ignore[attr-defined]
    await asyncio.wait_for(task, 10)


async def send(stub: judge_pb2_grpc.JudgeServiceStub, *transitions: turn_pb2.Transition) -> list[common_pb2.Ack]:
    async def requests() -> AsyncIterator[judge_pb2.JudgeTransitionsRequest]:
        yield judge_pb2.JudgeTransitionsRequest(transitions=transitions)

    return [ack async for response in stub.JudgeTransitions(requests()) for ack in response.acks]


async def test_transitions_become_samples(stub: judge_pb2_grpc.JudgeServiceStub,
                                          trainer: tuple[FakeTrainer, str]) -> None:
    acks = await send(stub, transition("thanks", "a"), transition("that's wrong", "b"))
    assert [(ack.id, ack.status) for ack in acks] == [("a", common_pb2.ACK_STATUS_ACCEPTED),
                                                      ("b", common_pb2.ACK_STATUS_ACCEPTED)]
    await eventually(lambda: len(trainer[0].samples) == 2)
    assert trainer[0].samples["b"].judgement.score == -1
    listed = await stub.ListJudgements(judge_pb2.ListJudgementsRequest(turn_ids=["b", "zz", "a"]))
    assert [judgement.turn_id for judgement in listed.judgements] == ["b", "a"]
    status = (await stub.component.GetStatus(component_pb2.GetStatusRequest())).status  # type: ignore[attr-defined]
    assert status.state == component_pb2.COMPONENT_STATE_RUNNING and status.counters["judgements"] == 2
    assert status.outboxes[0].name == "samples"


async def test_a_watcher_sees_each_judgement(stub: judge_pb2_grpc.JudgeServiceStub) -> None:
    watch = stub.WatchJudgements(judge_pb2.WatchJudgementsRequest(session_id="s2"))
    await watch.initial_metadata()
    await send(stub, transition("thanks", "a"), transition("wrong", "b", session_id="s2"))
    seen = await asyncio.wait_for(watch.read(), 5)
    assert (seen.session_id, seen.judgement.turn_id, seen.judgement.score) == ("s2", "b", -1)
    watch.cancel()


async def test_judge_keeps_nothing(stub: judge_pb2_grpc.JudgeServiceStub) -> None:
    answer = await stub.Judge(judge_pb2.JudgeRequest(transition=transition("用中文回答", "x")))
    assert (answer.judgement.score, answer.judgement.hint) == (-1, "用中文回答。")
    listed = await stub.ListJudgements(judge_pb2.ListJudgementsRequest(turn_ids=["x"]))
    assert not listed.judgements


async def test_bad_requests_name_the_field(stub: judge_pb2_grpc.JudgeServiceStub) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Judge(judge_pb2.JudgeRequest())
    error = from_rpc_error(caught.value)
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    assert [field for field, _ in error.violations] == ["transition.turn.messages", "transition.turn.response",
                                                        "transition.next_state"]
    with pytest.raises(grpc.aio.AioRpcError, match="at most 1000"):
        await stub.ListJudgements(judge_pb2.ListJudgementsRequest(turn_ids=["t"] * 1001))


async def test_a_judge_that_can_not_start_says_why(tmp_path: Path) -> None:
    config = Config.model_validate({"components": {"prm_judge": {"port": 0, "judge": "nosuch"}}})
    with pytest.raises(ConfigError, match="there are: auto, classifier, llm, rules"):
        await run(config, Home(tmp_path).create())


async def _start(home: Home, **streams: int) -> asyncio.subprocess.Process:
    """The component's process, once it has recorded its address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "openclaw_rl.launch.component", NAME,
        env={**os.environ, "OPENCLAW_RL_HOME": str(home.root)}, **{"stderr": asyncio.subprocess.DEVNULL, **streams})
    await eventually(lambda: (record := read_record(home, NAME)) is not None and record.pid == process.pid)
    return process


async def _status(home: Home) -> component_pb2.ComponentStatus:
    record = read_record(home, NAME)
    assert record is not None
    async with connect(record.address, ours=of_mesh(home)) as channel:
        return (await component_pb2_grpc.ComponentServiceStub(channel).GetStatus(
            component_pb2.GetStatusRequest())).status


@pytest.mark.slow
async def test_damage_in_use_ends_the_process_and_the_next_one_recovers(tmp_path: Path) -> None:
    home = Home(tmp_path).create()
    home.config_file.write_text(yaml.safe_dump(settings("127.0.0.1:1")))
    process = await _start(home, stderr=asyncio.subprocess.PIPE)
    try:
        path = home.component(NAME) / "state.db"
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as db:
            db.execute("CREATE TABLE filling (id INTEGER PRIMARY KEY, data BLOB)")
            db.execute("INSERT INTO filling (data) VALUES (zeroblob(100000))")
            await eventually(lambda: not db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])
            with path.open("r+b") as file:  # all but the first page, which is written anew
                file.seek(4096)
                file.write(b"garbage!" * ((path.stat().st_size - 4096) // 8))
            db.execute("PRAGMA user_version = 1")  # a commit, so that nobody has the pages in memory any more
        record = read_record(home, NAME)
        assert record is not None
        async with connect(record.address, ours=of_mesh(home)) as channel:
            call = judge_pb2_grpc.JudgeServiceStub(channel).JudgeTransitions()
            with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError)):
                await call.write(judge_pb2.JudgeTransitionsRequest(transitions=[transition("that's wrong", "t")]))
                await call.read()
        _, said = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 1 and b"ending, to be started again: " in said and b"it is damaged" in said
        process = await _start(home)
        alarm, = (await _status(home)).alarms
        assert alarm.name == "state_damaged" and "it was set aside as" in alarm.message
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.slow
async def test_kill_9_loses_nothing_and_doubles_nothing(tmp_path: Path, trainer: tuple[FakeTrainer, str]) -> None:
    """The process is killed again and again while transitions come; each becomes one sample."""
    home = Home(tmp_path).create()
    home.config_file.write_text(yaml.safe_dump(settings(trainer[1])))

    pending = {str(i): transition("that's wrong", str(i)) for i in range(300)}
    process = await _start(home)
    try:
        for kill in (True, True, False):
            record = read_record(home, NAME)
            assert record is not None
            async with connect(record.address, ours=of_mesh(home)) as channel:
                call = judge_pb2_grpc.JudgeServiceStub(channel).JudgeTransitions()
                try:
                    for sent, item in enumerate(list(pending.values())):
                        await call.write(judge_pb2.JudgeTransitionsRequest(transitions=[item]))
                        if kill and sent == 40:
                            process.send_signal(signal.SIGKILL)
                            kill = False
                    await call.done_writing()
                    async for response in call:
                        for ack in response.acks:
                            pending.pop(ack.id, None)
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    pass
            if pending:
                await process.wait()
                process = await _start(home)
        assert not pending
        await eventually(lambda: len(trainer[0].samples) == 300)
        status = await _status(home)
        assert status.counters["judgements"] == status.counters["transitions"] == 300
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 15) == 0
