from __future__ import annotations

import pytest

from openclaw_rl.sessions.fingerprint import _squeeze, prefix_digests, request_digest, text_of
from openclaw_rl.v1.turn_pb2 import ChatMessage, ContentPart, ToolCall, ToolDefinition


def msg(role: str, content: str = "", **fields: object) -> ChatMessage:
    return ChatMessage(role=role, content=content, **fields)


def parts(*texts: str) -> list[ContentPart]:
    return [ContentPart(text=text) for text in texts]


def call(arguments: str, name: str = "ls", id: str = "c1") -> ChatMessage:
    return msg("assistant", tool_calls=[ToolCall(id=id, name=name, arguments_json=arguments)])


def last(*messages: ChatMessage) -> bytes:
    return prefix_digests(messages)[-1]


@pytest.mark.parametrize(("one", "other"), [
    (msg("user", "hello"), msg("user", "  hello\r\n")),
    (msg("user", "one\ntwo"), msg("user", parts=parts("one", "two"))),
    (msg("user", "hello"), msg("user", parts=parts("hello", ""))),
    (call('{"a": 1, "b": [2]}'), call('{"b":[2],"a":1}')),
    (call("{}"), call("")),
    (call("{}", id="c1"), call("{}", id="call_77")),
    (call("{broken"), call("{broken ")),
    (msg("tool", "x", tool_call_id="c1"), msg("tool", "x", tool_call_id="77", name="ls")),
    (msg("assistant", "<think>hm\nhm</think>\n\nYes."), msg("assistant", "Yes.")),
])
def test_reformatting_changes_nothing(one: ChatMessage, other: ChatMessage) -> None:
    assert last(one) == last(other)


@pytest.mark.parametrize(("one", "other"), [
    (msg("user", "hello"), msg("user", "hallo")),
    (msg("user", "hello"), msg("assistant", "hello")),
    (msg("user", "hello"), msg("user", "hello", parts=[ContentPart(image_url="data:,x")])),
    (call('{"a": 1}'), call('{"a": 2}')),
    (call("{}"), call("{}", name="rm")),
    (msg("user", "<think>a</think>b"), msg("user", "b")),
])
def test_another_message_has_another_digest(one: ChatMessage, other: ChatMessage) -> None:
    assert last(one) != last(other)


def test_digests_are_chained_and_line_up_with_the_messages() -> None:
    a, b = msg("user", "a"), msg("assistant", "b")
    digests = prefix_digests([msg("system", "It is 12:00"), a, msg("developer", "x"), b])
    assert len(digests) == 4
    assert digests[1:] == [last(a), last(a), last(a, b)]
    assert last(a, b) != last(b, a)
    assert last(msg("user", "ab"), msg("user", "c")) != last(msg("user", "a"), msg("user", "bc"))
    assert prefix_digests([]) == []


def test_request_digest_tells_instructions_apart_but_not_the_time() -> None:
    chat = [msg("user", "hello")]
    at_noon = request_digest([msg("system", "Help. It is 12:00:01"), *chat])
    assert at_noon == request_digest([msg("system", "Help. It is 12:00:59"), *chat])
    assert at_noon != request_digest([msg("system", "Give a title"), *chat])
    assert request_digest(chat) != request_digest(chat, [ToolDefinition(name="ls")])


def test_deeply_nested_arguments_have_a_digest() -> None:
    assert last(call("[" * 5000)) == last(call("[" * 5000))


def test_text_of() -> None:
    assert text_of(msg("user", "a")) == "a"
    assert text_of(msg("user", "a", parts=[ContentPart(image_url="u"), *parts("b", "c")])) == "a\nb\nc"


def test_white_space_is_what_python_calls_it() -> None:
    """Digests are kept in stores, so they stay what they were: of the text without what `str.split` splits at."""
    spaces = [chr(number) for number in range(0x110000) if chr(number).isspace()]
    text = "aé漢😀".join(spaces)
    assert _squeeze(text) == "".join(text.split()).encode()
    assert _squeeze("\x00\x08\x0e\x1b\x7f\u200b\ufeff a") == "\x00\x08\x0e\x1b\x7f\u200b\ufeffa".encode()
