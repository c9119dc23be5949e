"""SGLang's own parsers on our text side. Slow: to import them takes 10 s of a core."""

from __future__ import annotations

import itertools

import pytest

from openclaw_rl.serving.interfaces import ChatCall, Delta, End
from openclaw_rl.serving.text.parsers import NamedToolParser, Parsers, ReasoningSplitter
from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.serving.token_policy import TokenPolicy, Transcript
from openclaw_rl.v1 import turn_pb2
from tests.serving.stub import EOS, StubEngine, write_tokenizer

pytest.importorskip("sglang")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOOLS = [turn_pb2.ToolDefinition(name="weather", parameters_json='{"type": "object", "properties": {"city": {}}}'),
         turn_pb2.ToolDefinition(name="time")]


def test_unknown_names_list_the_known_ones() -> None:
    tool, reasoning = Parsers("qwen99", "thoughts").validate()
    assert "sglang.tool_parser: 'qwen99'" in tool and "qwen25" in tool and "llama3" in tool
    assert "sglang.reasoning_parser: 'thoughts'" in reasoning and "deepseek-r1" in reasoning
    assert Parsers("qwen25", "qwen3").validate() == []


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_calls_come_whole_however_the_text_is_cut(size: int) -> None:
    text = ('Let me see.<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>')
    numbers = itertools.count()
    parser = NamedToolParser("qwen25", TOOLS, lambda: f"call_{next(numbers)}")
    shown, calls = "", []
    for start in range(0, len(text), size):
        new, found = parser.feed(text[start:start + size])
        shown, calls = shown + new, calls + found
    new, found = parser.finish()
    assert (shown + new).strip() == "Let me see."
    assert [(call.id, call.name, call.arguments_json) for call in calls + found] == [
        ("call_0", "weather", '{"city": "Paris"}'), ("call_1", "time", "{}")]


def test_reasoning_is_told_from_the_answer() -> None:
    splitter = ReasoningSplitter("deepseek-r1")
    reasoning, rest = map("".join, zip(*(splitter.feed(char) for char in "<think>Hm, 2+2.</think>It is 4."),
                                       strict=True))
    more, end = splitter.finish()
    assert (reasoning + more).strip() == "Hm, 2+2." and (rest + end).strip() == "It is 4."


async def test_a_chat_has_reasoning_calls_and_all_its_tokens(tmp_path_factory: pytest.TempPathFactory) -> None:
    template = ChatTemplate(write_tokenizer(tmp_path_factory.mktemp("tokenizer")))
    ids = [*template.encode('<think>Ask.</think>Yes.<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'), EOS]
    policy = TokenPolicy(StubEngine(lambda prompt: ids), template, parsers=Parsers("qwen25", "qwen3"))
    call = ChatCall(messages=[turn_pb2.ChatMessage(role="user", content="Hi")], tools=TOOLS,
                    sampling=policy.fill(turn_pb2.SamplingParams()))
    transcript = Transcript()
    events = [event async for event in policy.chat(call, transcript)]
    assert "".join(event.reasoning for event in events if isinstance(event, Delta)) == "Ask."
    end = events[-1]
    assert isinstance(end, End) and end.message.reasoning_content == "Ask."
    assert end.message.content.strip() == "Yes." and [made.name for made in end.message.tool_calls] == ["time"]
    assert transcript.response_ids == ids
