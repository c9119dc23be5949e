from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.serving import event_recorder as recorder_module
from openclaw_rl.serving.admission import FairQueue
from openclaw_rl.serving.chat_service import ChatService
from openclaw_rl.serving.event_recorder import SCHEMA, TurnRecorder
from openclaw_rl.serving.interfaces import ChatCall, End, Origin
from openclaw_rl.serving.rates import RateMeter
from openclaw_rl.serving.status import StatusReporter
from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.serving.token_policy import TokenPolicy
from openclaw_rl.storage.database import Database, StorageError
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1 import component_pb2, environment_pb2, turn_pb2
from tests.serving.stub import EOS, StubEngine
from tests.support.waiting import eventually

ORIGIN = Origin(client="c", payer="", api="test")
ASK = [turn_pb2.ChatMessage(role="user", content="Hi")]


class Rig:
    def __init__(self, folder: Path, template: ChatTemplate, durability: str = "group") -> None:
        self.engine = StubEngine(lambda _prompt: [*template.encode("Hello!"), EOS])
        self.store = Database(folder / "state.db", durability, SCHEMA)  # type: ignore[arg-type]
        self.outbox = Outbox(self.store, "turns")
        self.recorder = TurnRecorder(self.store, self.outbox)
        self.turns = ChatService(self.recorder, "stub")
        self.turns.mark_ready(TokenPolicy(self.engine, template))

    async def ask(self, **options: object) -> End:
        asked = turn_pb2.TurnOptions(**options)  # type: ignore[arg-type]
        context = self.turns.open(ORIGIN, asked, ASK, {})
        events = [event async for event in self.turns.run(context, ChatCall(messages=ASK))]
        assert isinstance(events[-1], End)
        return events[-1]

    def events(self) -> list[environment_pb2.PolicyEvent]:
        return [environment_pb2.PolicyEvent.FromString(row.payload) for row in self.outbox.window(0, 100, 2**24)]


@pytest.mark.parametrize("durability", ["group", "strict"])
async def test_counts_survive_a_restart(tmp_path: Path, template: ChatTemplate, durability: str) -> None:
    rig = Rig(tmp_path, template, durability)
    await rig.ask()
    await rig.ask()
    rig.engine.busy = True
    with pytest.raises(MeshError):
        await rig.ask()
    rig.recorder.close()
    rig.store.close()
    rig = Rig(tmp_path, template, durability)
    assert rig.recorder.counters == {"requests": 3, "failed": 1, "turns_recorded": 2}
    assert len(rig.events()) == 2
    rig.store.close()


async def test_no_record_leaves_nothing_but_the_end_of_its_session(tmp_path: Path, template: ChatTemplate) -> None:
    rig = Rig(tmp_path, template)
    await rig.ask(no_record=True)
    assert rig.events() == []
    await rig.ask(no_record=True, session_id="s", session_done=True)
    await eventually(lambda: rig.events() != [])  # nobody awaits the write
    event, = rig.events()
    assert event.session_end.session_id == "s"
    rig.store.close()


async def test_a_record_that_cannot_be_written_stops_no_answer(tmp_path: Path, template: ChatTemplate) -> None:
    rig = Rig(tmp_path, template)
    rig.store.close()
    assert (await rig.ask()).message.content == "Hello!"
    assert "1 events wait in memory" in rig.recorder.problem
    with pytest.raises(Exception):  # noqa: B017  the one who gives feedback is told
        await rig.turns.feedback(turn_pb2.Feedback(turn_id="t", score=1))


async def test_what_a_full_disk_kept_in_memory_is_written_when_there_is_room(
        tmp_path: Path, template: ChatTemplate, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, template)
    full = True
    write = TurnRecorder._write

    def fails(recorder: TurnRecorder, entries: list[tuple[str, bytes]], db: sqlite3.Connection) -> None:
        if full:
            raise StorageError.of(rig.store.path, OSError("full"))
        write(recorder, entries, db)

    monkeypatch.setattr(TurnRecorder, "_write", fails)
    monkeypatch.setattr(recorder_module, "RETRY_SECONDS", 0.01)
    await rig.ask(session_id="1")
    await rig.ask(session_id="2")
    with pytest.raises(StorageError):
        await rig.turns.feedback(turn_pb2.Feedback(turn_id="t", score=1))
    assert "2 events wait in memory" in rig.recorder.problem and rig.events() == []
    running = asyncio.create_task(rig.recorder.run())
    full = False
    async with asyncio.timeout(10):
        while rig.recorder.problem:  # noqa: ASYNC110  it is no event, but what status tells
            await asyncio.sleep(0.01)
    await rig.ask(session_id="3")
    assert [event.turn.session_id for event in rig.events()] == ["1", "2", "3"]
    running.cancel()
    rig.store.close()


async def test_memory_for_what_waits_is_bounded(tmp_path: Path, template: ChatTemplate) -> None:
    rig = Rig(tmp_path, template)
    rig.store.close()
    rig.recorder._held_bytes = 2000
    for i in range(30):
        rig.recorder.session_end(turn_pb2.SessionEnd(event_id=f"{i:0200}", session_id="s"))
    kept = [event_id for event_id, _ in rig.recorder._held]
    assert kept == [f"{i:0200}" for i in range(30 - len(kept), 30)] and 5 < len(kept) < 10
    assert rig.recorder.lost == 30 - len(kept) and f"{rig.recorder.lost} events were lost" in rig.recorder.problem


async def test_draining(tmp_path: Path, template: ChatTemplate) -> None:
    rig = Rig(tmp_path, template)
    await rig.turns.drain(1)
    with pytest.raises(MeshError, match="about to stop"):
        await rig.ask()
    rig.store.close()


async def test_status(tmp_path: Path, template: ChatTemplate) -> None:
    rig = Rig(tmp_path, template)
    board = StatusReporter(rig.turns, rig.recorder, rig.outbox, rig.store)
    board.engine = rig.engine
    await rig.ask()
    status = board.status()
    assert (status.state, status.policy_version) == (component_pb2.COMPONENT_STATE_RUNNING, 3)
    assert set(status.gauges) >= {"qps", "running", "waiting", "tokens_per_s"}
    assert status.gauges["background_waiting"] == 0
    rig.turns.queue = FairQueue(1, 10)
    async with rig.turns.queue.slot("a"):
        episode = asyncio.create_task(rig.turns.queue.slot("e", background=True).__aenter__())
        await asyncio.sleep(0)
        gauges = board.status().gauges
        assert (gauges["waiting"], gauges["background_waiting"]) == (0, 1)
    await episode
    assert status.gauges["qps"] > 0 and status.outboxes[0].pending == 1
    board.problems.append("version 4 is damaged")
    assert board.status().state == component_pb2.COMPONENT_STATE_DEGRADED
    rig.store.close()


def test_the_meter_forgets() -> None:
    now = [0.0]
    meter = RateMeter(lambda: now[0])
    for second in range(20):
        now[0] = second + 0.5
        for _ in range(4):
            meter.tick()
    assert meter.rate() == pytest.approx(4, rel=0.2)
    now[0] = 40
    assert meter.rate() == 0


async def test_a_background_request_waits_behind_live_ones_and_its_turn_says_what_step_it_is(
    tmp_path: Path, template: ChatTemplate,
) -> None:
    rig = Rig(tmp_path, template)
    asked: list[tuple[str, bool]] = []

    class Queue:
        @asynccontextmanager
        async def slot(self, client: str, background: bool = False) -> AsyncIterator[None]:
            asked.append((client, background))
            yield

    rig.turns.queue = Queue()  # type: ignore[assignment]
    step = turn_pb2.EpisodeStep(episode_id="e", group_id="g", group_size=8, step=2, type="terminal", task_id="t")
    await rig.ask(background=True, episode=step)
    await rig.ask()
    assert asked == [("c", True), ("c", False)]
    first, second = (event.turn for event in rig.events())
    assert first.episode == step and not second.HasField("episode")
    assert [sampling.background for sampling in rig.engine.samplings] == [True, False]
    rig.store.close()


async def test_latency_is_that_of_live_responses(tmp_path: Path, template: ChatTemplate) -> None:
    rig = Rig(tmp_path, template)
    board = StatusReporter(rig.turns, rig.recorder, rig.outbox, rig.store)
    board.engine = rig.engine
    await rig.ask(background=True)
    assert not [name for name in board.gauges() if name.startswith(("latency", "first_token"))]
    await rig.ask()
    gauges = board.gauges()
    assert 0 < gauges["first_token_p50_ms"] <= gauges["latency_p99_ms"] * 1.02 < 10_000
