"""JSON from outside."""

from __future__ import annotations

import pytest

from openclaw_rl.runtime.json import parse_json, parse_json_prefix


@pytest.mark.parametrize("text", ["", "{", "[1,]", b"\xff", b'"\xff"', "[" * 100_000, '{"a":' * 100_000, "1 2"])
def test_what_is_no_document_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def test_a_value_is_taken_from_where_it_begins() -> None:
    assert parse_json('{"a": [1, "é"]}') == {"a": [1, "é"]}
    assert parse_json_prefix('see {"a": 1} there', 4) == ({"a": 1}, 12)
    assert parse_json_prefix('"a\nb"', strict=False) == ("a\nb", 5)
    for text in ('"a\nb"', "[" * 100_000, "x"):
        with pytest.raises(ValueError):
            parse_json_prefix(text)
