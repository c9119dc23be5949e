"""Structured output and tool calls through the HTTP entrypoint, of an embedded model of random weights."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from openclaw_rl.serving.engines.embedded.engine import EmbeddedEngine
from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.serving.token_policy import TokenPolicy
from openclaw_rl.v1 import turn_pb2
from tests.serving.engines.conftest import save_model
from tests.serving.entrypoints.conftest import Entrypoint, OpenEntrypoint
from tests.serving.stub import EOS, write_tokenizer

ASK: Any = [{"role": "user", "content": "Hi"}]


class Person(BaseModel):
    name: Literal["Joe", "Ann"]
    age: int = Field(ge=0, le=120)
    tags: list[Literal["a", "b"]] = Field(max_length=2)


PERSON = Person.model_json_schema()
CITY = {"type": "object", "properties": {"city": {"enum": ["Rom", "Köln"]}, "days": {"type": "integer", "minimum": 1,
        "maximum": 9}}, "required": ["city", "days"], "additionalProperties": False}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {
    "type": "object", "properties": {}, "additionalProperties": False}}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_model(tmp_path_factory.mktemp("models") / "bytes", vocab_size=267, eos_token_id=EOS)
    return write_tokenizer(folder)


@pytest.fixture
async def door(folder: Path, open_entrypoint: OpenEntrypoint) -> AsyncIterator[Entrypoint]:
    engine = EmbeddedEngine(folder, max_batch=4, device="cpu")
    await engine.start()
    entrypoint = await open_entrypoint(ready=False)
    entrypoint.service.mark_ready(TokenPolicy(engine, ChatTemplate(folder), max_tokens=400))
    yield entrypoint
    await engine.stop()


async def test_parse_of_openais_package(door: Entrypoint) -> None:
    for seed in range(3):
        answer = await door.openai().chat.completions.parse(
            model="stub", messages=ASK, response_format=Person, seed=seed, temperature=1.2)
        assert isinstance(answer.choices[0].message.parsed, Person)
        assert answer.choices[0].finish_reason == "stop"
    tokens = door.turns()[-1].tokens
    assert len(tokens.response_ids) == len(tokens.logprobs) == len(tokens.model_logprobs)
    assert list(tokens.forced) == sorted(set(tokens.forced))
    assert 0 < len(tokens.forced) < len(tokens.response_ids)
    assert all(tokens.logprobs[i] == 0 for i in tokens.forced)
    assert any(value < 0 for value in tokens.logprobs)


async def test_parse_of_tools(door: Entrypoint) -> None:
    class Weather(BaseModel):
        city: Literal["Rom", "Bern"]

    answer = await door.openai().chat.completions.parse(
        model="stub", messages=ASK, tools=[openai.pydantic_function_tool(Weather)], tool_choice="required", seed=1)
    calls = answer.choices[0].message.tool_calls or []
    assert calls and all(isinstance(call.function.parsed_arguments, Weather) for call in calls)


@pytest.mark.parametrize(("fields", "schema"), [
    ({"response_format": {"type": "json_schema", "json_schema": {  # Vercel's AI SDK
        "name": "response", "description": "A person.", "strict": True,
        "schema": {"$schema": "http://json-schema.org/draft-07/schema#", **PERSON}}}}, PERSON),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}}}, CITY),
    ({"guided_json": CITY}, CITY), ({"guided_json": json.dumps(CITY)}, CITY), ({"json_schema": CITY}, CITY),
    ({"structured_outputs": {"json": CITY}}, CITY)])
async def test_schemas_by_every_name(door: Entrypoint, fields: dict[str, Any], schema: dict[str, Any]) -> None:
    async with door.http(timeout=60) as client:
        said = (await client.post("/v1/chat/completions", json={"messages": ASK, "seed": 3, **fields})).json()
        jsonschema.validate(json.loads(said["choices"][0]["message"]["content"]), schema)
        said = (await client.post("/v1/completions", json={"prompt": "Hi", "seed": 3, **fields})).json()
        jsonschema.validate(json.loads(said["choices"][0]["text"]), schema)


@pytest.mark.parametrize(("fields", "texts"), [
    ({"guided_choice": ["yes", "no"]}, {"yes", "no"}), ({"guided_regex": "^a[bc]$"}, {"ab", "ac"}),
    ({"regex": "a[bc]"}, {"ab", "ac"}), ({"guided_grammar": 'root ::= "ab" | "ac"'}, {"ab", "ac"}),
    ({"ebnf": 'root ::= "ab" | "ac"'}, {"ab", "ac"}), ({"structured_outputs": {"choice": ["yes"]}}, {"yes"}),
    ({"response_format": {"type": "text"}, "guided_choice": ["yes"]}, {"yes"}),
    ({"tools": [WEATHER], "tool_choice": "none", "guided_choice": ["yes"]}, {"yes"})])
async def test_texts_by_every_name(door: Entrypoint, fields: dict[str, Any], texts: set[str]) -> None:
    async with door.http(timeout=60) as client:
        said = (await client.post("/v1/chat/completions", json={"messages": ASK, **fields})).json()
        assert said["choices"][0]["message"]["content"] in texts


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
async def test_arguments_stream_in_pieces(door: Entrypoint, choice: Any) -> None:
    stream = await door.openai().chat.completions.create(
        model="stub", messages=ASK, tools=[WEATHER, CLOCK], tool_choice=choice, stream=True, seed=4,
        parallel_tool_calls=False, temperature=1.2)
    calls: dict[int, list[Any]] = {}
    text, reasons = "", []
    async for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        reasons.append(chunk.choices[0].finish_reason)
        for piece in chunk.choices[0].delta.tool_calls or []:
            calls.setdefault(piece.index, []).append(piece)
    assert list(calls) == [0] and text == ""
    first, *rest = calls[0]
    assert first.id and first.type == "function" and first.function.name in ("weather", "clock")
    assert all(piece.id is None and piece.function.name is None for piece in rest)
    joined = "".join(piece.function.arguments or "" for piece in calls[0])
    if first.function.name == "weather":
        assert len(rest) > 1
        jsonschema.validate(json.loads(joined), CITY)
    assert reasons[-1] == "tool_calls"
    recorded, = door.turns()[-1].response.tool_calls
    assert (recorded.id, recorded.name, recorded.arguments_json) == (first.id, first.function.name, joined)


async def test_a_call_that_is_cut_says_so(door: Entrypoint) -> None:
    answer = await door.openai().chat.completions.create(
        model="stub", messages=ASK, tools=[WEATHER], tool_choice="required", max_tokens=4, seed=1)
    assert answer.choices[0].finish_reason == "length"
    call, = answer.choices[0].message.tool_calls or []
    assert call.function.name == "weather" and call.function.arguments.strip().startswith("{")
    assert door.turns()[-1].finish_reason == turn_pb2.FINISH_REASON_LENGTH


@pytest.mark.parametrize(("fields", "param", "reason"), [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "banana"}}}},
     "response_format.json_schema.schema", "banana"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema",
     "Missing"),
    ({"response_format": {"type": "yaml"}}, "response_format.type", "yaml"),
    ({"guided_json": {"$ref": "#"}}, "guided_json", "without end"),
    ({"guided_json": 3}, "guided_json", "a JSON schema"),
    ({"guided_regex": "(a"}, "guided_regex", "unclosed group"),
    ({"guided_choice": []}, "guided_choice", "at least one"), ({"guided_choice": [1]}, "guided_choice", "strings"),
    ({"guided_grammar": "root ::= foo"}, "guided_grammar", "foo"), ({"ebnf": ""}, "ebnf", "empty"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "guided_regex is given too"),
    ({"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {
        "type": "object", "properties": {"a": {"not": {}}}}}}]}, "tools[0].function.parameters", "not"),
    ({"tools": [CLOCK], "guided_grammar": 'root ::= "a"'}, "guided_grammar", "tools"),
])
async def test_bad_forms_are_refused_by_name(door: Entrypoint, fields: dict[str, Any], param: str,
                                             reason: str) -> None:
    async with door.http(timeout=60) as client:
        beside, answer = await asyncio.gather(
            client.post("/v1/chat/completions", json={"messages": ASK, "max_tokens": 20}),
            client.post("/v1/chat/completions", json={"messages": ASK, **fields}))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert reason in answer.json()["error"]["message"]
    assert beside.status_code == 200
