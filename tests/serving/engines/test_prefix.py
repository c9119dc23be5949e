"""A prompt that begins as an earlier text did is computed from there on, with the same results."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from openclaw_rl.config import PolicyServerConfig
from openclaw_rl.models import memory
from openclaw_rl.serving.engines.embedded.engine import EmbeddedEngine
from openclaw_rl.serving.engines.embedded.prefix_cache import PrefixCache
from openclaw_rl.serving.engines.interface import Sampling, Token
from tests.serving.engines.conftest import GREEDY, ids, tokens
from tests.support.waiting import eventually

SYSTEM = [i * 7 % 120 for i in range(300)]
LONG = Sampling(temperature=2, seed=4, max_tokens=600)


@pytest.fixture
async def plain(tiny: Path) -> AsyncIterator[EmbeddedEngine]:
    """The same engine without reuse."""
    engine = EmbeddedEngine(tiny, device="cpu", prefix_cache_mb=0)
    await engine.start()
    yield engine
    await engine.stop()


async def cached(engine: EmbeddedEngine, prompt: list[int], sampling: Sampling = GREEDY) -> int:
    first, *rest = await tokens(engine, prompt, sampling)
    assert not any(token.cached_tokens for token in rest)
    return first.cached_tokens


def same(some: list[Token], others: list[Token]) -> bool:
    """The same tokens; log-probabilities may differ as much as those of two batches do."""
    return [token.id for token in some] == [token.id for token in others] and all(
        [getattr(token, name) for token in some] == pytest.approx([getattr(token, name) for token in others], abs=1e-4)
        for name in ("logprob", "model_logprob"))


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.9, top_p=0.8, seed=5, max_tokens=20)])
async def test_the_tenth_turn_computes_what_is_new(engine: EmbeddedEngine, plain: EmbeddedEngine,
                                                   held: SimpleNamespace, sampling: Sampling) -> None:
    prompt, known = SYSTEM[:50], 0
    for turn in range(10):
        held.pieces.clear()
        response = await tokens(engine, prompt, sampling)
        assert same(response, await tokens(plain, prompt, sampling))
        assert response[0].cached_tokens == known
        assert sum(size for step in held.pieces for size in step) == len(prompt) - known
        # All but the last token, whose keys nobody needed yet.
        known = len(prompt) + len(response) - 1
        prompt = [*prompt, *(token.id for token in response), *(i * turn % 120 for i in range(1, 21))]
    counts, gauges = engine.status().counters, engine.status().gauges
    assert counts["engine_cached_tokens"] + counts["engine_prompt_tokens"] == \
        plain.status().counters["engine_prompt_tokens"]
    assert 0.7 < gauges["prefix_cache_hit_rate"] < 1
    assert plain.status().gauges["prefix_cache_hit_rate"] == plain.status().gauges["prefix_cache_bytes"] == 0


async def test_sessions_share_what_they_begin_with(engine: EmbeddedEngine, plain: EmbeddedEngine) -> None:
    first = engine.generate([*SYSTEM, 1], LONG, session="ann")  # still runs when the second one begins
    await anext(first)
    response = await tokens(engine, [*SYSTEM, 2, 3])
    assert response[0].cached_tokens == 300
    assert same(response, await tokens(plain, [*SYSTEM, 2, 3]))
    await first.aclose()  # type: ignore[attr-defined]
    assert await cached(engine, [*SYSTEM, 2, 3]) == 301  # the last token is always computed
    assert await cached(engine, [9, *SYSTEM]) == 0


async def test_a_prompt_finds_what_another_one_reads_beside_it(engine: EmbeddedEngine, plain: EmbeddedEngine,
                                                               held: SimpleNamespace) -> None:
    """The first has 256 rows of the first step and 44 of the second; the other one begins beside these 44."""
    prompts = [SYSTEM, [*SYSTEM, 5, 6]]
    expected = [await tokens(plain, prompt) for prompt in prompts]
    held.gate.clear()
    tasks = [asyncio.create_task(tokens(engine, prompt)) for prompt in prompts]
    await eventually(lambda: held.waiting and engine.status().gauges["waiting"] == 1)
    held.gate.set()
    found = await asyncio.gather(*tasks)
    assert all(map(same, found, expected))
    assert found[1][0].cached_tokens == 300 - (256 - 44)
    assert sum(size for step in held.pieces for size in step) == 300 + (256 - 44) + 2


async def test_a_prompt_that_was_given_up_is_kept_as_far_as_it_was_read(engine: EmbeddedEngine, plain: EmbeddedEngine,
                                                                        held: SimpleNamespace) -> None:
    held.gate.clear()
    task = asyncio.create_task(ids(engine, SYSTEM * 2))
    await eventually(lambda: held.waiting)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    held.gate.set()
    response = await tokens(engine, SYSTEM * 2)
    assert response[0].cached_tokens == 256
    assert same(response, await tokens(plain, SYSTEM * 2))


async def test_nothing_of_other_weights_is_used(engine: EmbeddedEngine, plain: EmbeddedEngine, other: Path) -> None:
    assert await cached(engine, SYSTEM) == 0
    spanning = engine.generate([*SYSTEM, 8], LONG)
    assert (await anext(spanning)).cached_tokens == 300  # type: ignore[union-attr]
    for one in (engine, plain):
        await one.stage(1, other)
        await one.activate(1)
    assert engine.status().gauges["prefix_cache_bytes"] == 0
    response = await tokens(engine, SYSTEM)
    assert response[0].cached_tokens == 0 and response[0].version == 1
    assert same(response, await tokens(plain, SYSTEM))
    await spanning.aclose()  # type: ignore[attr-defined]
    await eventually(lambda: engine.status().gauges["running"] == 0)
    assert await cached(engine, [*SYSTEM, 8, 8]) == 300  # of the new weights; the 8 was the old ones'
    await engine.stage(0, engine._folder)
    await engine.activate(0)
    assert await cached(engine, SYSTEM) == 0


async def test_nothing_is_left_of_what_is_forgotten(engine: EmbeddedEngine) -> None:
    await ids(engine, SYSTEM)
    running = engine.generate([7, *SYSTEM], LONG)
    await anext(running)
    assert engine.status().gauges["prefix_cache_bytes"] > 600 * 2 * 3 * 2 * 16 * 4
    engine.clear_prefixes()
    await eventually(lambda: engine.status().gauges["prefix_cache_bytes"] == 0)
    await running.aclose()  # type: ignore[attr-defined]
    await eventually(lambda: engine.status().gauges["running"] == 0)
    assert engine.status().gauges["prefix_cache_bytes"] == 0
    assert [await cached(engine, prompt) for prompt in (SYSTEM, [7, *SYSTEM], SYSTEM)] == [0, 0, 299]


async def test_scores_are_computed_in_full(engine: EmbeddedEngine, plain: EmbeddedEngine) -> None:
    await ids(engine, SYSTEM)
    assert (await engine.score(SYSTEM))[0] == pytest.approx((await plain.score(SYSTEM))[0], abs=1e-4)


async def test_the_cache_gives_way_when_memory_runs_out(engine: EmbeddedEngine,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    expected = await ids(engine, SYSTEM)

    def fail(*_: object) -> int:
        raise RuntimeError("not enough memory: you tried to allocate 1 byte")

    for name in ("load", "keep"):
        with monkeypatch.context() as patch:
            patch.setattr(PrefixCache, name, fail)
            assert await ids(engine, SYSTEM) == expected
        assert engine.status().gauges["prefix_cache_bytes"] == 0 or name == "load"
    assert [await cached(engine, SYSTEM), await cached(engine, SYSTEM)] == [0, 299]


@pytest.mark.parametrize(("wanted", "free", "limit"), [
    (None, 4 << 30, 512 << 20), (None, 64 << 30, 1 << 30), (0, 4 << 30, 0), (300, 4 << 30, 300 << 20),
    (5000, 4 << 30, 2 << 30)])
async def test_its_room_depends_on_the_memory(tiny: Path, monkeypatch: pytest.MonkeyPatch,
                                              caplog: pytest.LogCaptureFixture, wanted: int | None, free: int,
                                              limit: int) -> None:
    monkeypatch.setattr("openclaw_rl.serving.engines.embedded.engine.available_memory", lambda: free)
    engine = EmbeddedEngine(tiny, device="cpu", prefix_cache_mb=wanted)
    with caplog.at_level(logging.INFO):
        await engine.start()
    assert f"prefix cache {limit >> 20} MiB" in caplog.text
    assert ("prefix_cache_mb: 5000 is more than the memory that is available (4096 MiB)" in caplog.text) is \
        (wanted == 5000)
    assert [await cached(engine, SYSTEM), await cached(engine, SYSTEM)] == [0, 299 if limit else 0]
    await engine.stop()


def test_less_than_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"prefix_cache_mb\n.*greater than or equal to 0"):
        PolicyServerConfig(prefix_cache_mb=-1)


def test_available_memory_is_the_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert (free := memory.available_memory()) > 1000
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    assert memory.available_memory() == 1000 < free
