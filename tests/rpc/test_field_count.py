"""Fields of serialized messages, counted without parsing them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from openclaw_rl.rpc.field_count import has_more_fields
from openclaw_rl.v1.policy_pb2 import ChatRequest
from openclaw_rl.v1.turn_pb2 import ChatMessage, ContentPart, ToolCall


def conversation(messages: int) -> ChatRequest:
    call = ToolCall(id="c", name="read", arguments_json="{}")
    return ChatRequest(
        messages=[ChatMessage(role="user", content="Hi \u00e9" * 50, tool_calls=[call, call],
                              parts=[ContentPart(text="x")]) for _ in range(messages)],
        metadata={"a": "b", "c": "d"}, parallel_tool_calls=False)


def has(data: bytes, most: int) -> bool:
    return has_more_fields(data, ChatRequest.DESCRIPTOR, most)


def test_fields_of_all_messages_within_count() -> None:
    data = conversation(30).SerializeToString()
    # Of a message itself, role and content; two calls of three fields, a part of one; the request's metadata and flag.
    count = 30 * (1 + 2 + 2 * (1 + 3) + (1 + 1)) + 2 * (1 + 2) + 1
    assert has(data, count - 1) and not has(data, count)


@pytest.mark.parametrize("data", [b"\x0a\x00", b"\x0a\x02\x0a\x00", b"\x18\x01", b"\xfa\x01\x00"])
def test_a_field_of_any_kind_counts(data: bytes) -> None:
    """Empty messages, empty texts, numbers, and fields that are not known."""
    assert has(data * 3_000_000, 2**17)


class Counted(bytes):
    """Counts how many of its bytes are read."""

    reads = 0

    def __getitem__(self, at: Any) -> Any:
        self.reads += 1
        return super().__getitem__(at)


@pytest.mark.parametrize("entry", [b"\x0a\x00", b"\x0a\x04\x0a\x02\x18\x01"])
def test_a_longer_request_costs_no_more(entry: bytes) -> None:
    once, twice = Counted(entry * 2**16), Counted(entry * 2**17)
    assert has(once, 2**12) and has(twice, 2**12)
    assert once.reads == twice.reads > 0


def test_what_is_no_message_is_for_the_parser() -> None:
    chance, sound = random.Random(1), conversation(5).SerializeToString()
    for _ in range(300):
        cut = chance.randrange(len(sound))
        assert has(sound[:cut], 10**6) is has(sound[:cut] + chance.randbytes(50), 10**6) is False
        has(chance.randbytes(200), 3)  # raises nothing
