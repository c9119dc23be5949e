from __future__ import annotations

import pytest

from openclaw_rl.sessions.declared import Declared, declared
from openclaw_rl.v1.turn_pb2 import ChatMessage, ContentPart

RUNTIME = ("You are Claw.\n\n## Runtime\nRuntime: agent=main | host=pi | model=x | session=agent:main:telegram:42 | "
           "tz=UTC")


def said(*texts: str, role: str = "system", client: str = "ann") -> Declared:
    messages = [ChatMessage(role=role, content=text) for text in texts]
    return declared([*messages, ChatMessage(role="user", content="hi")], client)


@pytest.mark.parametrize(("text", "result"), [
    ("You are Claw.\n\n[RL-TRAINING-META] session_id=0c2f-1 turn_type=side", Declared("0c2f-1", "side")),
    ("[RL-TRAINING-META] turn_type=main session_id=a:b\nMore.", Declared("a:b", "main")),
    ("[RL-TRAINING-META] session_id=old\n[RL-TRAINING-META] session_id=new", Declared("new", "")),
    ("[RL-TRAINING-META] turn_type=side", Declared("", "side")),
    ("[RL-TRAINING-META] session_id=\nsession_id=next-line", Declared()),
    ("[RL-TRAINING-META] session_id=" + "x" * 500, Declared()),
    ("Write session_id=abc turn_type=side", Declared()),
    ("Runtime: node | my session=agentless", Declared()),
    ("The Runtime: line has session=agent:main:x", Declared()),
])
def test_the_line_of_the_plug_in(text: str, result: Declared) -> None:
    assert said(text) == result
    assert declared([ChatMessage(role="developer", parts=[ContentPart(text=text)])], "ann") == result


def test_only_instructions_are_read() -> None:
    for role in ("user", "tool", "assistant"):
        assert said("[RL-TRAINING-META] session_id=x turn_type=side", RUNTIME, role=role) == Declared()


def test_the_name_of_an_agent_is_its_clients_alone() -> None:
    ann, bob = said(RUNTIME), said(RUNTIME, client="bob")
    assert ann.session_id.startswith("agent:main:telegram:42@") and ann == said("It is noon.", RUNTIME)
    assert ann.session_id != bob.session_id
    assert said(RUNTIME, "[RL-TRAINING-META] session_id=s turn_type=side") == Declared("s", "side")
