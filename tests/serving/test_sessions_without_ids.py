"""Requests without a session id, through the chat service."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from openclaw_rl.serving.interfaces import ChatCall, End
from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.v1.turn_pb2 import (
    SESSION_SOURCE_CLIENT,
    SESSION_SOURCE_INFERRED,
    SESSION_SOURCE_NEW,
    ChatMessage,
    Turn,
    TurnOptions,
)
from tests.serving.test_chat_service import ORIGIN, Rig


def chat(*texts: str, system: str = "") -> list[ChatMessage]:
    talk = [ChatMessage(role=("user", "assistant")[i % 2], content=text) for i, text in enumerate(texts)]
    return [ChatMessage(role="system", content=system), *talk] if system else talk


class Door:
    """A client of the chat service that names no session."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig

    async def ask(self, messages: Sequence[ChatMessage], read: int = 0) -> str:
        """The answer; with `read` the client goes away after so many events."""
        context = self.rig.turns.open(ORIGIN, TurnOptions(), list(messages), {})
        async with aclosing(self.rig.turns.run(context, ChatCall(messages=list(messages)))) as events:
            async for event in events:
                read -= 1
                if isinstance(event, End):
                    return event.message.content
                if read == 0:
                    break
        return ""

    def turns(self) -> list[Turn]:
        return [event.turn for event in self.rig.events() if event.HasField("turn")]


@pytest.fixture
def rig(tmp_path: Path, template: ChatTemplate) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path, template)
    yield rig  # type: ignore[misc]
    rig.store.close()


async def test_a_question_asked_three_times_is_three_conversations(rig: Rig) -> None:
    door = Door(rig)
    for _ in range(3):
        answer = await door.ask(chat("Hi"))
        await door.ask(chat("Hi", answer, "Bye"))
    sessions = [turn.session_id for turn in door.turns()]
    assert len(set(sessions)) == 3 and sessions[::2] == sessions[1::2]
    assert [turn.session_source for turn in door.turns()] == [SESSION_SOURCE_NEW, SESSION_SOURCE_INFERRED] * 3


async def test_a_request_that_is_repeated_while_it_is_answered_is_one_session(rig: Rig) -> None:
    door = Door(rig)
    messages = chat("Hi")
    contexts = [rig.turns.open(ORIGIN, TurnOptions(), messages, {}) for _ in range(3)]
    contexts.append(rig.turns.open(ORIGIN, TurnOptions(), chat("Hi", system="Make a title."), {}))
    for context in contexts:
        async for _ in rig.turns.run(context, ChatCall(messages=messages)):
            pass
    sessions = [context.session_id for context in contexts]
    assert sessions[0] == sessions[1] == sessions[2] != sessions[3]
    await door.ask(messages)
    assert door.turns()[-1].session_id not in sessions, "it was answered: this is another conversation"


async def test_many_that_ask_the_same_at_once_are_not_one_session(rig: Rig) -> None:
    """Else a load test's session would grow for ever, and each turn is compared with those that it may repeat."""
    contexts = [rig.turns.open(ORIGIN, TurnOptions(), chat("Hi"), {}) for _ in range(100)]
    sessions = [context.session_id for context in contexts]
    assert max(map(sessions.count, sessions)) == 9


async def test_a_request_that_is_repeated_after_the_client_went_away_is_one_session(rig: Rig) -> None:
    door = Door(rig)
    await door.ask(chat("Hi"), read=2)
    await door.ask(chat("Hi"))
    first, second = door.turns()
    assert first.session_id == second.session_id


async def test_a_context_that_was_never_run_holds_nothing(rig: Rig) -> None:
    first = rig.turns.open(ORIGIN, TurnOptions(), chat("Hi"), {}).session_id
    assert rig.turns.open(ORIGIN, TurnOptions(), chat("Hi"), {}).session_id != first


async def test_what_a_framework_says_of_itself_counts_where_the_request_says_nothing(rig: Rig) -> None:
    door, system = Door(rig), "You are Claw.\n[RL-TRAINING-META] session_id=claw-1 turn_type=side"
    await door.ask(chat("Hi", system=system))
    context = rig.turns.open(ORIGIN, TurnOptions(session_id="mine", turn_type="main"), chat("Hi", system=system), {})
    assert (context.session_id, context.options.turn_type) == ("mine", "main")
    turn, = door.turns()
    assert (turn.session_id, turn.declared_type, turn.session_source) == ("claw-1", "side", SESSION_SOURCE_CLIENT)


@pytest.mark.parametrize("seed", range(8))
async def test_agents_that_are_answered_at_once_keep_their_sessions(rig: Rig, seed: int) -> None:
    """Equal agents under two instructions, several requests in flight at any time: what a turn's request has of the
    conversation is what was said in its session, and instructions are never mixed."""
    rng, door = random.Random(seed), Door(rig)

    async def agent(system: str) -> None:
        talk: list[str] = ["Hi"]
        for _ in range(3):
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            answer = await door.ask(chat(*talk, system=system))
            talk += [answer, rng.choice(["Bye", "More"])]

    await asyncio.gather(*(agent(rng.choice(["You are a poet.", "You are a cook."])) for _ in range(6)))
    told: dict[str, list[list[ChatMessage]]] = {}
    for turn in door.turns():
        known = told.setdefault(turn.session_id, [])
        messages = list(turn.messages)
        if len(messages) > 2:
            assert messages[:-1] in known, "its session has said just that"
        known.append([*messages, turn.response])
    assert all(len({talk[0].content for talk in known}) == 1 for known in told.values())
