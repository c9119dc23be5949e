"""OpenAI's own SDK against the Responses API, and the tokenizer's endpoints."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from openclaw_rl.serving.response_history import Conversation, ResponseHistory
from openclaw_rl.v1 import turn_pb2
from tests.serving.entrypoints.conftest import Entrypoint, OpenEntrypoint

TOOL: Any = {"type": "function", "name": "look", "description": "Looks.", "strict": False, "parameters": {
    "type": "object", "properties": {"at": {"type": "string"}}}}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "the sky"}}\n</tool_call>'


async def test_a_response(entrypoint: Entrypoint) -> None:
    response = await entrypoint.openai().responses.create(
        model="stub", input="Hi", instructions="Be brief.", max_output_tokens=50, temperature=0.5,
        metadata={"a": "b"}, reasoning={"effort": "low"})
    assert response.output_text == "Hello there!" and response.status == "completed"
    assert response.usage is not None and response.usage.input_tokens == len(entrypoint.engine.prompts[0])
    assert response.usage.output_tokens > 5 and response.instructions == "Be brief."
    [turn] = entrypoint.turns()
    assert response.id == f"resp_{turn.turn_id}" and turn.api == "responses" and turn.metadata == {"a": "b"}
    assert [(said.role, said.content) for said in turn.messages] == [("system", "Be brief."), ("user", "Hi")]
    cut = await entrypoint.openai().responses.create(model="stub", input="Hi", max_output_tokens=3)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"


async def test_a_stream(entrypoint: Entrypoint) -> None:
    async with entrypoint.openai().responses.stream(model="stub", input="Hi") as stream:
        events = [event async for event in stream]
        response = await stream.get_final_response()
    assert response.output_text == "Hello there!" and response.status == "completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events if event.type != "response.output_text.delta"]
    assert kinds == ["response.created", "response.in_progress", "response.output_item.added",
                     "response.content_part.added", "response.output_text.done", "response.content_part.done",
                     "response.output_item.done", "response.completed"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_loop_by_previous_response_id(entrypoint: Entrypoint, stream: bool) -> None:
    client = entrypoint.openai()

    async def ask(**asked: Any) -> Any:
        if not stream:
            return await client.responses.create(model="stub", tools=[TOOL], **asked)
        async with client.responses.stream(model="stub", tools=[TOOL], **asked) as streamed:
            return await streamed.get_final_response()

    entrypoint.says("Let me see." + CALL)
    first = await ask(input="What is up?", instructions="Old words.")
    assert [item.type for item in first.output] == ["message", "function_call"]
    call = first.output[1]
    assert (call.name, call.arguments) == ("look", '{"at": "the sky"}')
    entrypoint.says("It is blue.")
    second = await ask(previous_response_id=first.id, instructions="New words.", input=[
        {"type": "function_call_output", "call_id": call.call_id, "output": "blue"}])
    assert second.output_text == "It is blue." and second.previous_response_id == first.id
    await ask(previous_response_id=second.id, input="Thanks")
    one, two, three = entrypoint.turns()
    assert one.session_id == two.session_id == three.session_id
    assert [said.role for said in two.messages] == ["system", "user", "assistant", "tool"]
    assert two.messages[0].content == "New words." and two.messages[2].tool_calls[0].id == call.call_id
    assert [said.role for said in three.messages] == ["user", "assistant", "tool", "assistant", "user"]


async def test_a_whole_conversation_as_input(entrypoint: Entrypoint) -> None:
    entrypoint.says("Let me see." + CALL)
    first = await entrypoint.openai().responses.create(model="stub", input="What is up?", tools=[TOOL], store=False)
    entrypoint.says("It is blue.")
    await entrypoint.openai().responses.create(model="stub", tools=[TOOL], input=[
        {"role": "user", "content": [{"type": "input_text", "text": "What is up?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []}, *[item.model_dump() for item in first.output],  # type: ignore
        {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "blue"}])  # type: ignore
    one, two = entrypoint.turns()
    assert one.session_id == two.session_id, "it is recognized by its messages"
    assert [said.role for said in two.messages] == ["user", "assistant", "tool"]
    with pytest.raises(openai.BadRequestError) as caught:  # store: false
        await entrypoint.openai().responses.create(model="stub", input="Go on", previous_response_id=first.id)
    assert caught.value.param == "previous_response_id"  # type: ignore[attr-defined]


async def test_a_conversation_is_its_clients(open_entrypoint: OpenEntrypoint) -> None:
    entrypoint = await open_entrypoint(api_keys=("secret-key-of-16", "another-key-of-16"))
    first = await entrypoint.openai("secret-key-of-16").responses.create(model="stub", input="Hi")
    with pytest.raises(openai.BadRequestError, match="another client"):
        await entrypoint.openai("another-key-of-16").responses.create(model="stub", input="?",
                                                                      previous_response_id=first.id)
    again = await entrypoint.openai("secret-key-of-16").responses.create(model="stub", input="?",
                                                                         previous_response_id=first.id)
    assert again.output_text == "Hello there!"


def test_the_history_is_bounded_and_forgets() -> None:
    history = ResponseHistory(3000)
    message = turn_pb2.ChatMessage(role="user", content="x" * 1000)
    for i in range(5):
        history.keep(f"turn_{i}", Conversation("c", f"s{i}", [message]))
    assert history.find("resp_turn_4", "c").session_id == "s4"
    assert history.forget("s4") == 1
    for gone in ("resp_turn_0", "resp_turn_4"):
        with pytest.raises(Exception, match="previous_response_id"):
            history.find(gone, "c")


@pytest.mark.parametrize(("body", "param"), [
    ({}, "input"), ({"input": 5}, "input"), ({"input": [5]}, "input[0]"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
    ({"input": "a", "max_output_tokens": 0}, "max_output_tokens"), ({"input": "a", "background": True}, "background"),
    ({"input": "a", "conversation": "c"}, "conversation"), ({"input": "a", "tools": [{"type": "web_search"}]},
                                                           "tools[0].type"),
    ({"input": "a", "tool_choice": {"type": "file_search"}}, "tool_choice.type"),
    ({"input": "a", "previous_response_id": "resp_x"}, "previous_response_id"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "file_id")])
async def test_bad_requests_are_named(entrypoint: Entrypoint, body: dict[str, Any], param: str) -> None:
    async with entrypoint.http() as http:
        reply = await http.post("/v1/responses", json=body)
    assert reply.status_code == 400 and reply.json()["error"]["param"].endswith(param), reply.text
    assert entrypoint.turns() == []


async def test_a_failure_in_a_stream_is_an_event(entrypoint: Entrypoint) -> None:
    entrypoint.engine.fail_after = 4
    with pytest.raises(openai.APIError, match="the accelerator is gone"):
        async with entrypoint.openai().responses.stream(model="stub", input="Hi") as stream:
            await stream.get_final_response()


async def test_texts_and_conversations_are_tokenized(entrypoint: Entrypoint) -> None:
    async with entrypoint.http() as http:
        async def post(path: str, **body: Any) -> Any:
            reply = await http.post(path, json=body)
            return reply.status_code, reply.json()

        ids = entrypoint.template.encode("the end")
        assert await post("/tokenize", prompt="the end", return_token_strs=True) == (200, {
            "count": len(ids), "max_model_len": entrypoint.engine.info.context_length, "tokens": ids,
            "token_strs": ["th", "e", " ", "e", "n", "d"]})
        assert await post("/detokenize", tokens=ids, model="stub") == (200, {"prompt": "the end"})
        ask = [{"role": "user", "content": "Hi"}]
        _, asked = await post("/tokenize", messages=ask)
        await http.post("/v1/chat/completions", json={"messages": ask})
        assert asked["tokens"] == entrypoint.engine.prompts[-1]
        _, bare = await post("/tokenize", messages=ask, add_generation_prompt=False)
        assert asked["tokens"][:bare["count"]] == bare["tokens"] and bare["count"] < asked["count"]
        for path, body, param in (("/tokenize", {}, "prompt"), ("/tokenize", {"prompt": 5}, "prompt"),
                                  ("/detokenize", {}, "tokens"), ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
                                  ("/detokenize", {"tokens": [99_999]}, "tokens[0]")):
            status, data = await post(path, **body)
            assert (status, data["error"]["param"]) == (400, param), data
    assert len(entrypoint.turns()) == 1
