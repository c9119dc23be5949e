"""Whatever JSON `json.loads` takes is taken at the door: one bad character of the past never stops the future."""

from __future__ import annotations

import json
from typing import Any

import pytest

from openclaw_rl.serving.entrypoints.openai.errors import ApiError
from openclaw_rl.serving.entrypoints.openai.fields import parse_object
from openclaw_rl.serving.entrypoints.openai.requests import parse_chat

HISTORY = '{{"messages": [{{"role": "user", "content": {content}}}], "metadata": {{"x": {value}}}}}'


@pytest.mark.parametrize(("content", "read"), [
    (r'"a\ud83d b"', "a\ufffd b"),
    (r'"\udc00\ud83d\ud83d\ude00"', "\ufffd\ufffd\U0001F600"),
    (r'"\\ud83d \\\ud83d"', "\\ud83d \\\ufffd"),
    (r'"a\u0000b\ud800"', "a\0b\ufffd"),
    (json.dumps("x" * 10 + "\ud83d"), "x" * 10 + "\ufffd"),
])
def test_half_a_surrogate_pair(content: str, read: str) -> None:
    body = HISTORY.format(content=content, value="1")
    json.loads(body)
    assert parse_chat(parse_object(body.encode()), {}).calls[0].messages[0].content == read


@pytest.mark.parametrize(("value", "read"), [
    ("NaN", None), ("-Infinity", None), ("1e999", None), ("9" * 400, None), ("-" + "9" * 400, None),
    ("[1, NaN, 18446744073709551616, 12345678901234567]", [1, None, 2.0**64, 12345678901234567]),
])
def test_numbers_that_json_does_not_know(value: str, read: Any) -> None:
    body = HISTORY.format(content='"hi"', value=value)
    json.loads(body)
    assert parse_object(body.encode())["metadata"]["x"] == read
    assert parse_chat(parse_object(body.encode()), {}).calls[0].messages[0].content == "hi"


def test_a_mark_at_the_beginning_is_no_part_of_it() -> None:
    assert parse_object(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


@pytest.mark.parametrize("body", [
    b"", b"{", b'{"a": NaNN}', b'{"temperature": NaN}', b'{"seed": %s}' % (b"9" * 400), b'{"a": "\xff"}',
    b'{"a": "\\ud83d}', b"NaN", b"[" * 100_000, b'{"a": NaN, "b": %s}' % (b"[" * 2_000 + b"]" * 2_000),
    b'{"a": "b\nc"}'])
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as failed:
        parse_object(body)
    assert failed.value.status == 400
