from __future__ import annotations

import itertools
import random

import pytest

from openclaw_rl.serving.text.hermes_tools import ToolParser, call_text, describe, forced_opening, parse_calls
from openclaw_rl.v1 import turn_pb2

WEATHER = turn_pb2.ToolDefinition(name="weather", description="Tells it.",
                                  parameters_json='{"type": "object", "properties": {}}')
CLOCK = turn_pb2.ToolDefinition(name="clock")


def parse(text: str, seed: int | None = None, **kwargs: object) -> tuple[str, list[tuple[str, str]]]:
    """Feed a text in random pieces (or one), and gather what comes out."""
    ids = itertools.count()
    parser = ToolParser(lambda: f"call_{next(ids)}", **kwargs)  # type: ignore[arg-type]
    rng, shown, calls, at = random.Random(seed), "", [], 0
    while at < len(text):
        size = len(text) if seed is None else rng.randint(1, 5)
        more, found = parser.feed(text[at:at + size])
        shown, calls, at = shown + more, calls + found, at + size
    more, found = parser.finish()
    return shown + more, [(call.name, call.arguments_json) for call in calls + found]


def test_brackets_without_end_are_text() -> None:
    assert parse("[" * 100_000, limit=1) == ("[" * 100_000, [])
    assert parse("[" * 100_000, opening=forced_opening([CLOCK], "clock")) == ("", [("clock", "[" * 100_000)])


CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rom"}}\n</tool_call>'
CASES = [
    ("Just text, 1 < 2 and <tool> is none.", "Just text, 1 < 2 and <tool> is none.", []),
    (CALL, "", [("weather", '{"city": "Rom"}')]),
    (f"Let me see. {CALL}", "Let me see. ", [("weather", '{"city": "Rom"}')]),
    (f"{CALL}\n{CALL}\n", "", [("weather", '{"city": "Rom"}')] * 2),
    (CALL.removesuffix("</tool_call>"), "", [("weather", '{"city": "Rom"}')]),  # the end is missing
    ("<tool_call>rubbish</tool_call> so", "<tool_call>rubbish</tool_call> so", []),
    ("<tool_call>{\"name\": ", "<tool_call>{\"name\": ", []),
    ('<tool_call>[{"name": "a"}, {"name": "b", "arguments": "{}"}]</tool_call>', "", [("a", "{}"), ("b", "{}")]),
    ('{"name": "weather", "parameters": {"city": "Köln"}}', "", [("weather", '{"city": "Köln"}')]),  # Llama 3
    ('{"answer": 42}', '{"answer": 42}', []),
    ('{"a": "' + "x" * 100 + '"}', '{"a": "' + "x" * 100 + '"}', []),
    ('{"type": "function", "function": {"name": "f", "arguments": {}}}', "", [("f", "{}")]),
    ("  ", "  ", []),
    ("ends with <tool_c", "ends with <tool_c", []),
]


@pytest.mark.parametrize(("text", "shown", "calls"), CASES)
def test_calls_are_found_wherever_the_borders_lie(text: str, shown: str, calls: list[tuple[str, str]]) -> None:
    for seed in (None, *range(30)):
        assert parse(text, seed) == (shown, calls)


def test_text_is_given_out_at_once() -> None:
    parser = ToolParser(lambda: "c")
    assert parser.feed("Let me see <too") == ("Let me see ", [])
    assert parser.feed("ls>") == ("<tools>", [])


def test_forced_calls() -> None:
    opening = forced_opening([WEATHER, CLOCK], "clock")
    assert opening == '<tool_call>\n{"name": "clock", "arguments":'
    assert forced_opening([WEATHER, CLOCK], "required") == '<tool_call>\n{"name": "'
    assert forced_opening([CLOCK], "required") == opening
    assert forced_opening([CLOCK], "auto") == forced_opening([CLOCK], "none") == ""
    for seed in (None, 1, 2):
        assert parse(' {"utc": true}}\n</tool_call>', seed, opening=opening) == ("", [("clock", '{"utc": true}')])
        # The model's mistakes are not lost: the caller, and the judge, shall see them.
        assert parse(' {"utc": tr', seed, opening=opening) == ("", [("clock", '{"utc": tr')])
        assert parse(' {"utc": 1} and more', seed, opening=opening) == ("", [("clock", '{"utc": 1}')])


@pytest.mark.parametrize(("text", "name"), [
    ('look\tup\n"}', "look\tup\n"), ('a\\q"', "a\\q"), ('a\\u12"', "a\\u12"), ('a\\\\b"', "a\\b"),
    ('half \\ud800"', "half \ufffd"), ('whole \\ud83d\\ude00"', "whole \U0001f600"),
])
def test_odd_names_of_calls(text: str, name: str) -> None:
    opening = forced_opening([WEATHER, CLOCK], "required")
    for seed in (None, 1, 2):
        assert parse(text, seed, opening=opening) == ("", [(name, "{}")])


def test_no_response_is_too_odd() -> None:
    """Whatever a model writes is text or calls."""
    rng = random.Random(7)
    pieces = [*'{}[]:,"\\\n\x00a1 ', "\\u", "\\ud800", '"name"', '"arguments"', "1e999", "NaN", "<tool_call>",
              "</tool_call>", '{"name": "f", "arguments": ', '"function"', "\ufffd"]
    for _ in range(5000):
        text = "".join(rng.choices(pieces, k=rng.randint(1, 12)))
        opening = rng.choice(["", *(forced_opening([WEATHER, CLOCK], choice) for choice in ("required", "clock"))])
        shown, calls = parse(text, rng.randint(1, 9), opening=opening)
        assert calls or shown == opening + text


def test_a_limit_ends_the_response() -> None:
    parser = ToolParser(lambda: "c", limit=1)
    text, calls = parser.feed(CALL + CALL + "text")
    assert (text, len(calls), parser.complete) == ("", 1, True)
    assert parser.finish() == ("", [])


def test_tools_are_told_and_calls_written_as_they_are_read() -> None:
    told = describe([WEATHER, CLOCK])
    assert '"name": "weather"' in told and '"name": "clock"' in told
    call = turn_pb2.ToolCall(name="weather", arguments_json='{"city": "Rom"}')
    assert call_text(call) == CALL
    assert parse_calls(call_text(call)[len("<tool_call>"):]) == ([("weather", '{"city": "Rom"}')], "\n</tool_call>")
