"""The engine gives transformers' numbers, whoever else is in the batch."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from openclaw_rl.config import EMBEDDED_MODEL
from openclaw_rl.models.config import ModelConfig
from openclaw_rl.models.llama import load_weights, rotary_table
from openclaw_rl.models.prepare import ensure_model
from openclaw_rl.runtime.home import Home
from openclaw_rl.serving.engines.embedded import decode_loop
from openclaw_rl.serving.engines.embedded.engine import EmbeddedEngine
from openclaw_rl.serving.engines.embedded.forward import Cache, Forward, Piece
from openclaw_rl.serving.engines.interface import EngineBusy, EngineError, Finished, PromptTooLong, Sampling, Token
from tests.serving.engines.conftest import GREEDY, ids, save_model, tokens
from tests.support.waiting import eventually

PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6, 5, 3, 5], [8] * 40, [9, 7], [93, 23, 84, 62], list(range(1, 120))]
LLAMA3 = {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                              "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}


@pytest.mark.parametrize(("kind", "settings"), [
    ("llama", {}), ("llama", {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True, **LLAMA3}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}}),
    ("mistral", {"sliding_window": None, "head_dim": 32}), ("qwen2", {}), ("qwen3", {"head_dim": 32})])
async def test_gives_the_numbers_of_transformers(kind: str, settings: dict, tmp_path: Path) -> None:
    folder = save_model(tmp_path, kind, **settings)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    text = [int(i) for i in torch.randint(0, 120, (300,))]
    with torch.inference_mode():
        expected = reference(torch.tensor([text])).logits[0].log_softmax(-1)[:-1].gather(
            1, torch.tensor(text[1:])[:, None])[:, 0]
        continued = reference.generate(torch.tensor([text[:50]]), max_new_tokens=12, do_sample=False)[0, 50:].tolist()
    engine = EmbeddedEngine(folder, device="cpu")
    await engine.start()
    scores, version = await engine.score(text)
    assert version == 0
    assert torch.allclose(torch.tensor(scores), expected, atol=5e-4)
    assert await ids(engine, text[:50]) == continued
    await engine.stop()


async def test_reads_shards(tiny: Path, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_pretrained(tiny).save_pretrained(tmp_path, max_shard_size="100KB")
    (tmp_path / "tokenizer.json").write_text("{}")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    results = []
    for folder in (tiny, tmp_path):
        engine = EmbeddedEngine(folder, device="cpu")
        await engine.start()
        results.append(await engine.score(PROMPTS[1]))
        await engine.stop()
    assert results[0] == results[1]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.9, top_p=0.8, seed=5, max_tokens=20)])
async def test_a_response_does_not_depend_on_the_batch(engine: EmbeddedEngine, sampling: Sampling) -> None:
    alone = [await tokens(engine, prompt, sampling) for prompt in PROMPTS]
    together = await asyncio.gather(*(tokens(engine, prompt, sampling) for prompt in PROMPTS))
    for one, other in zip(alone, together, strict=True):
        assert [token.id for token in one] == [token.id for token in other]
        assert [token.logprob for token in one] == pytest.approx([token.logprob for token in other], abs=1e-4)


async def test_log_probabilities_of_a_response_are_those_of_its_score(engine: EmbeddedEngine) -> None:
    prompt = PROMPTS[1]
    response = await tokens(engine, prompt, Sampling(temperature=0.7, top_p=0.9, seed=1, max_tokens=30, top_logprobs=3))
    scores, _ = await engine.score(prompt + [token.id for token in response])
    assert [token.model_logprob for token in response] == pytest.approx(scores[len(prompt) - 1:], abs=1e-4)
    for token in response:
        assert len(token.top) == 3
        assert token.top[0][1] >= max(token.top[1][1], token.model_logprob - 1e-5)
        assert dict(token.top).get(token.id, token.model_logprob) == pytest.approx(token.model_logprob, abs=1e-5)


async def test_the_same_seed_draws_the_same_tokens(engine: EmbeddedEngine) -> None:
    drawn = [await ids(engine, PROMPTS[0], Sampling(temperature=1.5, seed=seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


async def test_requests_join_and_leave_in_the_middle(engine: EmbeddedEngine) -> None:
    expected = [await ids(engine, prompt, Sampling(temperature=0, max_tokens=40)) for prompt in PROMPTS[:3]]
    first = engine.generate(PROMPTS[4], Sampling(temperature=0, max_tokens=500, stop_token_ids=()))
    for _ in range(3):
        await anext(first)
    joined = []
    for prompt in PROMPTS[:3]:
        joined.append(asyncio.create_task(ids(engine, prompt, Sampling(temperature=0, max_tokens=40))))
        await anext(first)
    await first.aclose()
    assert await asyncio.gather(*joined) == expected
    await eventually(lambda: engine.status().gauges["running"] == 0)


async def test_a_cancelled_request_leaves_at_once(engine: EmbeddedEngine) -> None:
    task = asyncio.create_task(ids(engine, PROMPTS[0], Sampling(temperature=2, seed=3, max_tokens=900)))
    await eventually(lambda: engine.status().counters["engine_tokens"] > 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: engine.status().gauges["running"] == 0)
    assert engine.status().counters["engine_tokens"] < 900


async def test_an_abandoned_iterator_is_cleaned_up(engine: EmbeddedEngine) -> None:
    async for _ in engine.generate(PROMPTS[0], Sampling(temperature=2, seed=3, max_tokens=900)):
        break
    gc.collect()
    await eventually(lambda: engine.status().gauges["running"] == 0)
    assert engine.status().counters["engine_tokens"] < 900


async def test_a_long_prompt_does_not_hold_up_the_others(engine: EmbeddedEngine, held: SimpleNamespace) -> None:
    stream = engine.generate(PROMPTS[0], Sampling(temperature=2, seed=1, max_tokens=900))
    await anext(stream)
    held.pieces.clear()
    joining = asyncio.create_task(ids(engine, [5] * 300))
    async for _ in stream:
        if joining.done():
            break
    sizes = [size for step in held.pieces for size in step]
    assert sum(sizes) == 300
    assert max(sizes) == 32
    await stream.aclose()


async def test_a_live_prompt_overtakes_one_of_the_background(engine: EmbeddedEngine, held: SimpleNamespace) -> None:
    quiet = Sampling(temperature=0, max_tokens=12, background=True)
    behind, live, more = [2] * 600, [9, 7] * 100, [1, 5, 9]
    expected = [await ids(engine, prompt) for prompt in (behind, live, more, PROMPTS[1])]
    engine.clear_prefixes()
    streams = [engine.generate(PROMPTS[0], Sampling(temperature=2, seed=seed, max_tokens=900)) for seed in (1, 2)]
    for stream in streams:
        await anext(stream)
    held.pieces.clear()
    order: list[str] = []

    async def answer(name: str, prompt: list[int], sampling: Sampling = GREEDY) -> list[int]:
        first = True
        found = []
        async for item in engine.generate(prompt, sampling):
            if first:
                order.append(name)
                first = False
            if isinstance(item, Token):
                found.append(item.id)
        return found

    async def keep(stream) -> None:
        async for _ in stream:
            pass

    going = [asyncio.create_task(keep(stream)) for stream in streams]
    tasks = [asyncio.create_task(answer("behind", behind, quiet))]
    await eventually(lambda: sum(map(sum, held.pieces)) >= 64)  # its prompt is being read
    tasks.append(asyncio.create_task(answer("behind too", PROMPTS[1], quiet)))
    tasks.append(asyncio.create_task(answer("live", live)))
    await eventually(lambda: engine.status().gauges["waiting"] == 1)
    going[0].cancel()  # a slot before both becomes free while neither prompt is complete
    await asyncio.gather(going[0], return_exceptions=True)
    tasks.append(asyncio.create_task(answer("more", more)))
    found = await asyncio.gather(*tasks)
    going[1].cancel()
    await asyncio.gather(going[1], return_exceptions=True)
    assert order == ["live", "more", "behind", "behind too"]
    assert found == [expected[0], expected[3], expected[1], expected[2]]


async def test_more_requests_than_slots_wait_their_turn(tiny: Path) -> None:
    engine = EmbeddedEngine(tiny, max_batch=2, max_waiting=3, device="cpu")
    await engine.start()
    expected = [await ids(engine, prompt) for prompt in PROMPTS[:5]]
    assert await asyncio.gather(*(ids(engine, prompt) for prompt in PROMPTS[:3])) == expected[:3]
    running = [engine.generate([7], Sampling(temperature=2, seed=1, max_tokens=900)) for _ in range(2)]
    for stream in running:
        await anext(stream)
    waiting = [asyncio.create_task(ids(engine, prompt)) for prompt in PROMPTS[:3]]
    await eventually(lambda: engine.status().gauges["waiting"] == 3)
    with pytest.raises(EngineBusy, match="3 requests wait already"):
        await ids(engine, PROMPTS[0])
    waiting[1].cancel()
    for stream in running:
        await stream.aclose()
    assert await waiting[0] == expected[0]
    assert await waiting[2] == expected[2]
    await engine.stop()


async def test_one_long_conversation_among_short_ones(engine: EmbeddedEngine) -> None:
    prompts = [[2] * 700, *PROMPTS[:4]]  # so unequal that attention goes one by one
    expected = [await ids(engine, prompt) for prompt in prompts]
    assert await asyncio.gather(*(ids(engine, prompt) for prompt in prompts)) == expected


async def test_memory_grows_with_use_and_is_given_back(engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = await ids(engine, [2] * 900)
    assert engine._decoding
    cache = engine._decoding._cache
    assert cache.layers[0][0].any()
    assert not cache.layers[0][1].any()
    monkeypatch.setattr(decode_loop, "_IDLE_SECONDS", 0.01)
    await ids(engine, [1])  # after it the thread waits anew
    await eventually(lambda: not cache.layers[0][0].any())
    assert await ids(engine, [2] * 900) == expected


async def test_a_response_ends_where_it_must(engine: EmbeddedEngine) -> None:
    greedy = await ids(engine, PROMPTS[0], Sampling(temperature=0, max_tokens=30))
    stop = greedy[7]
    items = [item async for item in engine.generate(PROMPTS[0], Sampling(temperature=0, stop_token_ids=(stop,)))]
    assert items[-1] == Finished("stop")
    assert isinstance(items[-2], Token)
    assert [item.id for item in items[:-1]] == greedy[:greedy.index(stop) + 1]
    room = engine.info.context_length - 1020
    items = [item async for item in engine.generate([5] * 1020, Sampling(temperature=0, max_tokens=10**9))]
    assert (len(items) - 1, items[-1]) == (room, Finished("length"))
    assert engine.info.eos_ids == (127,)


@pytest.mark.parametrize(("prompt", "error", "text"), [
    ([], ValueError, "at least one"), ([1, 128], ValueError, "token id 1: 128 is not allowed: 0 to 127"),
    ([-1], ValueError, "token id 0: -1"), ([1, "2"], ValueError, "'2'"),
    ([1] * 1024, PromptTooLong, "1024 tokens; the context has room for 1024")])
async def test_bad_prompts_are_refused_and_others_go_on(engine: EmbeddedEngine, prompt: list, error: type[Exception],
                                                        text: str) -> None:
    expected = await ids(engine, PROMPTS[0])
    good = asyncio.create_task(ids(engine, PROMPTS[0]))
    with pytest.raises(error, match=text):
        await ids(engine, prompt)
    if error is ValueError:
        with pytest.raises(error, match=text):
            await engine.score(prompt)
    assert await good == expected


@pytest.mark.parametrize(("field", "value"), [("temperature", -0.1), ("temperature", 3), ("temperature", float("nan")),
                                              ("top_p", 0), ("max_tokens", 0), ("seed", -1), ("top_logprobs", 21)])
def test_impossible_sampling_is_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field}: .* is not allowed"):
        Sampling(**{field: value})


async def test_a_failing_request_fails_alone(engine: EmbeddedEngine, held: SimpleNamespace) -> None:
    expected = await ids(engine, PROMPTS[0], Sampling(temperature=0, max_tokens=60))

    def fail(pieces: list) -> None:
        if any(piece.tokens[0] == 99 for piece in pieces):
            raise MemoryError

    held.before = fail
    good = asyncio.create_task(ids(engine, PROMPTS[0], Sampling(temperature=0, max_tokens=60)))
    await eventually(lambda: engine.status().gauges["running"] == 1)
    with pytest.raises(EngineError, match="the engine failed: MemoryError"):
        await ids(engine, [99] * 10)
    assert await good == expected
    assert await ids(engine, PROMPTS[0], Sampling(temperature=0, max_tokens=60)) == expected


async def test_stopping_ends_generations(tiny: Path) -> None:
    engine = EmbeddedEngine(tiny, device="cpu")
    await engine.start()
    stream = engine.generate([1], Sampling(temperature=2, seed=1, max_tokens=900))
    await anext(stream)
    await engine.stop()
    with pytest.raises(EngineError, match="stopping"):
        while True:
            await anext(stream)
    with pytest.raises(EngineError, match="does not run"):
        await ids(engine, [1])


@pytest.mark.slow
async def test_speaks_the_real_model_as_transformers_does(tmp_path: Path) -> None:
    folder = ensure_model(EMBEDDED_MODEL, Home.default())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    engine = EmbeddedEngine(folder, device="cpu")
    await engine.start()
    prompts = [tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True,
                                             return_dict=True)["input_ids"]
               for text in ("What is gravity?", "Name three colours.", "Write a line of Python that adds 2 and 40.")]
    responses = await asyncio.gather(*(ids(engine, prompt, Sampling(temperature=0, max_tokens=40))
                                       for prompt in prompts))
    for prompt, response in zip(prompts, responses, strict=True):
        with torch.inference_mode():
            logprobs = reference(torch.tensor([prompt + response])).logits[0].log_softmax(-1)[:-1]
        assert logprobs[len(prompt) - 1:].argmax(-1).tolist() == response
        following = torch.tensor(prompt[1:] + response)[:, None]
        scores, _ = await engine.score(prompt + response)
        assert torch.tensor(scores) == pytest.approx(logprobs.gather(1, following)[:, 0], abs=5e-4)
    await engine.stop()


def test_every_tensor_of_a_pass_is_on_its_device(tiny: Path) -> None:
    """Without a GPU: on torch's `meta` device, which has shapes and no values, a stray CPU tensor is an error."""
    config, meta = ModelConfig.read(tiny), torch.device("meta")
    with torch.inference_mode():
        cache = Cache(config, 4, 512, meta)
        forward, weights = Forward(config, rotary_table(config, 512, meta)), load_weights(tiny, config, meta)
        for start in (0, 20):
            for positions in ([5, 6, 7], [5, 6, 290]):
                logits = forward(weights, cache, [1, 2, 3], positions, [Piece(3, [1] * 10, start, 2)])
                assert (logits.shape, logits.device, logits.dtype) == ((5, 128), meta, torch.float32)


async def test_what_requests_cost_together(engine: EmbeddedEngine, held: SimpleNamespace) -> None:
    """What tools/bench/engine.py measures in time: one pass of the model decodes a token of each request, and each
    prompt's tokens are read once."""
    count, length = 6, 12
    held.gate.clear()
    tasks = [asyncio.create_task(ids(engine, [3 + i] * 5, Sampling(temperature=2, seed=i, max_tokens=length)))
             for i in range(count)]
    async with asyncio.timeout(60):
        while not held.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await asyncio.sleep(0)
    held.gate.set()
    longest = max(map(len, await asyncio.gather(*tasks)))
    assert sum(size for step in held.pieces for size in step) == 5 * count
    assert len(held.pieces) <= longest + count  # one by one it would be the sum of all


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
async def test_a_gpu_gives_nearly_the_numbers_of_the_cpu(tiny: Path, other: Path) -> None:
    scores = []
    for device in ("cpu", "cuda"):
        engine = EmbeddedEngine(tiny, device=device)
        await engine.start()
        await engine.stage(1, other)
        await engine.activate(1)
        scores.append((await engine.score(PROMPTS[-1]))[0])
        assert len(await asyncio.gather(*(ids(engine, prompt) for prompt in PROMPTS))) == len(PROMPTS)
        await engine.stop()
    assert scores[0] == pytest.approx(scores[1], abs=0.5)


def test_a_device_that_is_not_there_is_named(tiny: Path) -> None:
    for device in ("cuda:99", "abacus"):
        with pytest.raises(EngineError, match=f"device: '{device}' does not exist; allowed: auto, cpu"):
            EmbeddedEngine(tiny, device=device)
