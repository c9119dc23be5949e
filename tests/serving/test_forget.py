"""A forgotten session leaves the policy server, also what is held in memory or still being answered."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.home import Home
from openclaw_rl.serving import conversations
from openclaw_rl.serving.chat_service import ChatService
from openclaw_rl.serving.event_recorder import SCHEMA, TurnRecorder
from openclaw_rl.serving.forget import PolicyForgetter
from openclaw_rl.serving.interfaces import ChatCall, Origin, RequestContext
from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.serving.token_policy import TokenPolicy
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1 import common_pb2, component_pb2, environment_pb2, turn_pb2
from tests.privacy.test_forgetting import MARK, found
from tests.serving.stub import EOS, StubEngine

ASK = [turn_pb2.ChatMessage(role="user", content=MARK)]


class Rig:
    def __init__(self, root: Path, template: ChatTemplate) -> None:
        self.home = Home(root).create()
        self.store = Database(root / "policy_server" / "state.db", schema=SCHEMA + conversations.SCHEMA)
        self.outbox = Outbox(self.store, "turns")
        known = conversations.Conversations(self.store)
        self.recorder = TurnRecorder(self.store, self.outbox, also=known.save)
        self.turns = ChatService(self.recorder, "stub", index=known.index)
        self.engine = StubEngine(lambda _: [*template.encode("Hello!"), EOS])
        self.turns.mark_ready(TokenPolicy(self.engine, template))
        self.turns.on_forgotten = self.engine.clear_prefixes
        self.forgetter = PolicyForgetter("policy_server", self.home, self.store, self.recorder, known)
        self.forgetter.engine = self.engine

    def open(self, session: str) -> RequestContext:
        return self.turns.open(Origin(client="c", payer="", api="test"), turn_pb2.TurnOptions(session_id=session),
                               ASK, {})

    async def answer(self, context: RequestContext) -> str:
        async for _ in self.turns.run(context, ChatCall(messages=ASK)):
            pass
        return context.turn_id

    async def forget(self, session: str, **fields: object) -> component_pb2.ForgetResponse:
        request = component_pb2.ForgetRequest(session_id=session, **fields)  # type: ignore[arg-type]
        request.before.GetCurrentTime()
        return await self.forgetter.forget(request)

    def waiting(self) -> list[str]:
        return [row.id for row in self.outbox.window(0, 100, 2**24)]


@pytest.fixture
def rig(tmp_path: Path, template: ChatTemplate) -> Iterator[Rig]:
    rig = Rig(tmp_path, template)
    yield rig
    rig.store.close()


async def test_everything_of_the_session_goes_and_nothing_else(rig: Rig, tmp_path: Path) -> None:
    ann = [await rig.answer(rig.open("ann")) for _ in range(3)]
    rig.outbox.settle([common_pb2.Ack(id=ann[0], status=common_pb2.ACK_STATUS_REJECTED, reason="no")])
    await rig.turns.feedback(turn_pb2.Feedback(turn_id=ann[1], session_id="ann", comment=MARK))
    (rig.home.logs / "policy_server.log").write_text(f"event {ann[0]} is lost\nother\n")
    assert found(tmp_path, MARK) and found(tmp_path, "ann")
    done = await rig.forget("ann")
    assert set(done.turn_ids) == set(ann) and done.removed["turns"] == 3 and done.removed["log lines"] == 1
    assert done.removed["conversations"] == 2
    assert not rig.waiting() and not rig.outbox.rejected()
    assert not found(tmp_path, MARK) and not found(tmp_path, "ann")
    bob = await rig.answer(rig.open("bob"))
    again = await rig.forget("ann", turn_ids=ann)
    assert set(again.turn_ids) == set(ann) and not again.removed["turns"] and rig.waiting() == [bob]
    assert rig.turns._index.match("c", [*ASK, turn_pb2.ChatMessage(role="assistant", content="Hello!")]) == "bob"


async def test_a_turn_that_was_asked_for_before_is_let_go_and_a_newer_one_is_welcome(
        rig: Rig, template: ChatTemplate, tmp_path: Path) -> None:
    late = rig.open("ann")
    await rig.forget("ann")
    assert rig.engine.cleared == 1
    await rig.answer(late)
    assert rig.engine.cleared == 2, "it was computed after the forgetting"
    await rig.turns.feedback(turn_pb2.Feedback(session_id="ann", comment="now"))
    assert len(rig.waiting()) == 1, "the feedback, which is newer"
    assert rig.turns._index.match("c", [*ASK, turn_pb2.ChatMessage(role="assistant", content="Hello!")]) is None
    rig.store.close()
    again = Rig(tmp_path, template)  # after a restart
    event = environment_pb2.PolicyEvent(turn=turn_pb2.Turn(turn_id="t", session_id="ann"))
    event.turn.requested_at.FromSeconds(int(time.time()) - 100)
    await again.recorder.turn(event.turn)
    assert len(again.waiting()) == 1
    new = await again.answer(again.open("ann"))
    assert new in again.waiting()
    again.store.close()


async def test_what_is_held_in_memory_goes_too(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(entries: Any, db: Any) -> None:
        raise MeshError(None, "DISK_FULL", "the disk is full")  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(rig.recorder, "_write", full)
        ann, bob = await rig.answer(rig.open("ann")), await rig.answer(rig.open("bob"))
    assert rig.recorder.problem
    assert list((await rig.forget("ann")).turn_ids) == [ann]
    rig.recorder.retry()
    assert rig.waiting() == [bob] and not rig.recorder.problem


async def test_versions_are_asked_for_again_while_there_are_none(rig: Rig) -> None:
    await rig.answer(rig.open("ann"))
    with pytest.raises(MeshError) as error:
        await rig.forget("ann", versions=[3])
    assert error.value.retryable and not rig.waiting()
