"""Every field of a request works or is refused by its name."""

from __future__ import annotations

from typing import Any

import pytest

from openclaw_rl.serving.engines.interface import Shaping
from openclaw_rl.serving.unsupported import UNSUPPORTED
from tests.serving.entrypoints.conftest import Entrypoint
from tests.serving.stub import EOS

ASK = [{"role": "user", "content": "Hi"}]


async def post(entrypoint: Entrypoint, path: str = "chat/completions", **body: Any) -> Any:
    async with entrypoint.http() as http:
        reply = await http.post(f"/v1/{path}", json=({} if "prompt" in body else {"messages": ASK}) | body)
    return reply.status_code, reply.json()


async def test_sampling_fields_reach_the_engine(entrypoint: Entrypoint) -> None:
    fields = {"frequency_penalty": 0.5, "presence_penalty": -1, "repetition_penalty": 1.2, "logit_bias": {"5": -3},
              "top_k": 40, "min_p": 0.1, "min_tokens": 2, "ignore_eos": True}
    for body in ({}, {"prompt": "a"}):
        status, data = await post(entrypoint, "completions" if body else "chat/completions", **body, **fields,
                                  stop_token_ids=[9])
        assert status == 200, data
        sampling = entrypoint.engine.samplings[-1]
        assert sampling.shaping == Shaping(**{**fields, "logit_bias": {5: -3.0}})  # type: ignore[arg-type]
        assert sampling.stop_token_ids == (9,)
    neutral = {"frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1, "logit_bias": {}, "top_k": -1,
               "min_p": 0, "min_tokens": 0, "ignore_eos": False}
    assert (await post(entrypoint, **neutral))[0] == 200
    assert entrypoint.engine.samplings[-1].shaping is None


@pytest.mark.parametrize(("body", "param"), [
    ({"frequency_penalty": 2.5}, "frequency_penalty"), ({"presence_penalty": "1"}, "presence_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"), ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5"), ({"logit_bias": [5]}, "logit_bias"),
    ({"logit_bias": {"99999": 1}}, "logit_bias[0]"), ({"top_k": -2}, "top_k"), ({"top_k": 1.5}, "top_k"),
    ({"min_p": 2}, "min_p"), ({"min_tokens": -1}, "min_tokens"), ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"), ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"include_stop_str_in_output": 1}, "include_stop_str_in_output"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"return_token_ids": True, "stream": True}, "return_token_ids"),
    ({"prompt": "a", "best_of": 1, "n": 2}, "best_of"), ({"prompt": "a", "best_of": 2, "stream": True}, "best_of"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens")])
async def test_values_out_of_range_are_named(entrypoint: Entrypoint, body: dict[str, Any], param: str) -> None:
    status, data = await post(entrypoint, "completions" if "prompt" in body else "chat/completions", **body)
    assert (status, data["error"]["param"]) == (400, param), data
    assert entrypoint.turns() == []


async def test_what_is_not_there_is_refused_by_name(entrypoint: Entrypoint) -> None:
    for name, neutral in UNSUPPORTED.items():
        status, data = await post(entrypoint, **{name: "wanted"})
        assert (status, data["error"]["param"]) == (400, name), data
        for value in (None, *neutral):
            assert (await post(entrypoint, **{name: value}))[0] == 200, name
    assert (await post(entrypoint, user="u", store=True, service_tier="auto", metadata={"a": "b"}))[0] == 200


async def test_a_stop_text_may_stay(entrypoint: Entrypoint) -> None:
    entrypoint.says("One. Two. Three.")
    for include, text in ((False, "One. "), (True, "One. Two")):
        status, data = await post(entrypoint, stop=["Two", "Three"], include_stop_str_in_output=include)
        assert status == 200 and data["choices"][0]["message"]["content"] == text
    status, data = await post(entrypoint, stop=["n"], min_tokens=4)  # "One." is past the first three tokens
    assert data["choices"][0]["message"]["content"] == "One. Two. Three."


async def test_a_last_message_is_continued(entrypoint: Entrypoint) -> None:
    entrypoint.says(" blue.")
    asked = [*ASK, {"role": "assistant", "content": "The sky is "}]
    status, data = await post(entrypoint, messages=asked, continue_final_message=True, add_generation_prompt=False,
                              session_id="s")
    assert status == 200 and data["choices"][0]["message"]["content"] == " blue."
    assert entrypoint.prompt().endswith("<|im_start|>assistant\nThe sky is ")


async def test_the_template_takes_values(entrypoint: Entrypoint) -> None:
    assert (await post(entrypoint, chat_template_kwargs={"enable_thinking": False}))[0] == 200
    before = entrypoint.prompt()
    assert (await post(entrypoint, chat_template_kwargs={"messages": [], "add_generation_prompt": False}))[0] == 200
    assert entrypoint.prompt() == before  # nothing of the request's own is replaced


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_is_echoed_with_its_log_probabilities(entrypoint: Entrypoint, stream: bool) -> None:
    entrypoint.says(" end")
    client, ids = entrypoint.openai(), entrypoint.template.encode("The")
    for prompt in ("The", ids):
        asked = await client.completions.create(model="stub", prompt=prompt, echo=True, logprobs=2, stream=stream)
        choices = [chunk.choices[0] async for chunk in asked] if stream else [asked.choices[0]]  # type: ignore
        assert "".join(choice.text for choice in choices) == "The end"
        told = [choice.logprobs for choice in choices if choice.logprobs]
        names = [name for part in told for name in part.tokens]
        assert names[-1] == "<|im_end|>" and "".join(names[:-1]) == "The end"
        assert told[0].token_logprobs[0] is None and told[0].top_logprobs[0] is None
        assert told[0].token_logprobs[1] == -1 and len(told[0].top_logprobs[1]) == 2
        offsets = [offset for part in told for offset in part.text_offset]
        assert offsets == [len("".join(names[:i])) for i in range(len(names))]
    assert all(turn.response.content == " end" for turn in entrypoint.turns())


async def test_an_end_token_behind_an_echoed_prompt_has_its_log_probability(entrypoint: Entrypoint) -> None:
    entrypoint.engine.script = lambda _prompt: [EOS]
    for most in (1, 5):  # lm-evaluation-harness leaves out the last entry, whatever it is
        _, data = await post(entrypoint, "completions", prompt=[[70, 80]], echo=True, logprobs=1, max_tokens=most)
        told = data["choices"][0]["logprobs"]
        assert told["token_logprobs"] == [None, -1, -0.25] and told["tokens"][-1] == "<|im_end|>"


async def test_a_prompt_alone_is_scored_and_is_no_turn(entrypoint: Entrypoint) -> None:
    status, data = await post(entrypoint, "completions", prompt=[[70, 80, 90]], echo=True, logprobs=1, max_tokens=0)
    choice = data["choices"][0]
    assert status == 200 and choice["logprobs"]["token_logprobs"] == [None, -1, -1]
    assert data["usage"]["completion_tokens"] == 0 and entrypoint.turns() == []
    assert entrypoint.engine.prompts == []


async def test_the_likeliest_of_several_is_returned(entrypoint: Entrypoint) -> None:
    likelihood = {tuple([*entrypoint.template.encode(word), EOS]): value
                  for word, value in (("bad", -2.0), ("good", -0.5), ("worse", -3.0))}
    responses = iter(likelihood)
    entrypoint.engine.script = lambda _prompt: next(responses)
    entrypoint.engine.likelihood = lambda response: likelihood[tuple(response)]
    status, data = await post(entrypoint, "completions", prompt="a", best_of=3, n=2)
    assert status == 200, data
    assert [(choice["index"], choice["text"]) for choice in data["choices"]] == [(0, "good"), (1, "bad")]
    assert len(entrypoint.turns()) == 3


async def test_what_serves_is_told(entrypoint: Entrypoint) -> None:
    client = entrypoint.openai()
    answer = await client.chat.completions.create(model="stub", messages=ASK)  # type: ignore[arg-type]
    assert answer.system_fingerprint == "stub@3"
    chunks = [chunk async for chunk in await client.chat.completions.create(
        model="stub", messages=ASK, stream=True)]  # type: ignore[arg-type]
    assert {chunk.system_fingerprint for chunk in chunks} == {"stub@3"}
    async with entrypoint.http() as http:
        model = (await http.get("/v1/models")).json()["data"][0]
    assert model["max_model_len"] == entrypoint.engine.info.context_length


async def test_token_ids_are_told(entrypoint: Entrypoint) -> None:
    _, data = await post(entrypoint, return_token_ids=True)
    choice = data["choices"][0]
    assert choice["prompt_token_ids"] == entrypoint.engine.prompts[-1]
    assert choice["token_ids"] == [*entrypoint.template.encode("Hello there!"), EOS]
