from __future__ import annotations

import asyncio
import time
from pathlib import Path

from openclaw_rl.serving.chat_service import ChatService
from openclaw_rl.serving.heartbeat import SessionHeartbeat
from openclaw_rl.serving.interfaces import ChatCall
from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.v1 import turn_pb2
from tests.serving.test_chat_service import ASK, ORIGIN, Rig


async def test_sessions_with_a_response_in_progress_get_heartbeats(tmp_path: Path, template: ChatTemplate) -> None:
    rig = Rig(tmp_path, template)
    heartbeat = SessionHeartbeat(rig.recorder, session_timeout=40.0)
    turns = ChatService(rig.recorder, "stub", heartbeat=heartbeat)
    assert rig.turns._policy is not None
    turns.mark_ready(rig.turns._policy)
    rig.engine.gate = asyncio.Event()

    async def ask(session: str, no_record: bool = False) -> None:
        context = turns.open(ORIGIN, turn_pb2.TurnOptions(session_id=session, no_record=no_record), ASK, {})
        async for _ in turns.run(context, ChatCall(messages=ASK)):
            pass

    async with asyncio.TaskGroup() as group:
        for session, no_record in (("s", False), ("s", False), ("secret", True)):
            group.create_task(ask(session, no_record))
        async with asyncio.timeout(5):
            while rig.engine.running < 3:  # noqa: ASYNC110  it is no event
                await asyncio.sleep(0.005)
        begin = time.monotonic()
        assert [heartbeat.send_due(begin + seconds) for seconds in (5, 11, 15, 22)] == [0, 1, 0, 1]
        rig.engine.gate.set()
    assert heartbeat.send_due(begin + 1000) == 0
    told = [event.session_active.session_id for event in rig.events() if event.HasField("session_active")]
    assert told == ["s", "s"]
    assert sum(event.HasField("turn") for event in rig.events()) == 2
    rig.store.close()
