#!/usr/bin/env python3
"""Time to the first token in a growing chat, beside llama.cpp's `cache_prompt`, on this machine.

    python tools/bench/prefix.py [--model FOLDER] [--new 96] [--turns 10] [--rounds 3] [--gguf FILE]

Each prompt is the one before, its response of 20 tokens and so many new ones; one request at a time, one thread. `ours`
keeps keys and values, `off` is the same engine without (`prefix_cache_mb: 0`), `llama_cpp` is llama-cpp-python, which
keeps those of its last prompt; it takes part when `--gguf` gives it the model, for a fair comparison in F16 or BF16.
Rounds alternate between them, each with other texts, and the best of each turn counts. Goals: turn 10 at most 1.3 x the
time of turn 1, and less than llama.cpp's. Prints one JSON line; milliseconds. Takes 2 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

GOAL = 1.3
ANSWER = 20  # tokens of each response

#: Continues a prompt; returns the seconds to the first token, and the response.
Chat = Callable[[list[int]], Awaitable[tuple[float, list[int]]]]


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="the embedded model or a folder")
    parser.add_argument("--new", type=int, default=96, help="new tokens of each turn")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gguf", type=Path, help="the model for llama.cpp")
    return parser.parse_args()


async def conversation(chat: Chat, args: argparse.Namespace, seed: int, vocabulary: int) -> list[float]:
    """Milliseconds to the first token of each turn."""
    dice = random.Random(seed)
    prompt: list[int] = []
    times = []
    for _ in range(args.turns):
        # Ids of words: what is drawn makes no sense, which costs as much.
        prompt = prompt + [dice.randrange(1000, vocabulary) for _ in range(args.new)]
        seconds, response = await chat(prompt)
        times.append(seconds * 1000)
        prompt += response
    return times


async def embedded(folder: Path, prefix_cache_mb: int | None, stack: list[Any]) -> Chat:
    """Our engine, started; `stack` takes it."""
    from openclaw_rl.serving.engines.embedded.engine import EmbeddedEngine
    from openclaw_rl.serving.engines.interface import Sampling, Token

    engine = EmbeddedEngine(folder, device="cpu", prefix_cache_mb=prefix_cache_mb)
    engine.info = type(engine.info)(**{**engine.info.__dict__, "eos_ids": ()})
    await engine.start()
    stack.append(engine)

    async def chat(prompt: list[int]) -> tuple[float, list[int]]:
        started, first, response = time.perf_counter(), 0.0, []
        async for item in engine.generate(prompt, Sampling(temperature=0, max_tokens=ANSWER)):
            if isinstance(item, Token):
                first = first or time.perf_counter() - started
                response.append(item.id)
        return first, response
    return chat


def llama_cpp(file: Path) -> Chat:
    """llama.cpp, whose `generate` continues after what the prompt shares with its cache."""
    from llama_cpp import Llama

    model = Llama(str(file), n_ctx=4096, n_threads=1, n_threads_batch=1, verbose=False)

    async def chat(prompt: list[int]) -> tuple[float, list[int]]:
        started, first, response = time.perf_counter(), 0.0, []
        for token in model.generate(prompt, temp=0, reset=True):
            first = first or time.perf_counter() - started
            response.append(token)
            if len(response) == ANSWER:
                break
        return first, response
    return chat


async def main() -> None:
    """Measure and print."""
    args = arguments()
    os.environ["OMP_NUM_THREADS"] = "1"
    from openclaw_rl.models.config import ModelConfig
    from openclaw_rl.models.prepare import ensure_model
    from openclaw_rl.runtime.home import Home

    folder = ensure_model(args.model, Home.default(), lambda text, share: None)
    engines: list[Any] = []
    chats = {"ours": await embedded(folder, None, engines), "off": await embedded(folder, 0, engines)}
    if args.gguf:
        chats["llama_cpp"] = llama_cpp(args.gguf)
    vocabulary = ModelConfig.read(folder).vocab_size
    best: dict[str, list[float]] = {}
    for turn in range(args.rounds):
        for name, chat in chats.items():
            await chat([turn + 1] * 8)  # nothing of another round is at its beginning, and the threads are awake
            times = await conversation(chat, args, turn, vocabulary)
            best[name] = [min(pair) for pair in zip(times, best.get(name, times), strict=True)]
    for engine in engines:
        await engine.stop()
    ratio = best["ours"][-1] / best["ours"][0]
    result: dict[str, Any] = {"bench": "prefix", "new": args.new, "ratio": round(ratio, 2), "goal": GOAL,
                              **{name: [round(value) for value in times] for name, times in best.items()}}
    result["met"] = ratio <= GOAL
    if "llama_cpp" in best:
        result["of_llama_cpp"] = round(best["ours"][-1] / best["llama_cpp"][-1], 2)
        result["met"] = result["met"] and result["of_llama_cpp"] < 1
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    asyncio.run(main())
