#!/usr/bin/env python3
"""Decoding speed of the embedded engine against transformers' `generate`, on this machine.

    python tools/bench/engine.py [--model FOLDER] [--tokens 64] [--threads 1] [--rounds 3]

`single`: one request. `batch`: transformers has all 16 prompts at once, padded to one length; the engine gets them one
by one, `--gap` seconds apart. Greedy, so many new tokens for each, end tokens ignored on both sides; prefill counts.
transformers runs in bfloat16 and in float32 and the faster of them is taken for each ratio. Rounds alternate between
the engines, and the best round of each counts, since other processes can only slow one down.
Prints one JSON line; rates are tokens a second. Takes about 3 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

SUBJECTS = ("gravity", "the ring of fire", "bread", "a haiku", "prime numbers", "the French Revolution", "bees",
            "how a bicycle stays upright", "photosynthesis", "chess openings", "the speed of light", "tides",
            "good coffee", "why the sky is blue", "Python generators", "the history of the printing press in Europe")
GOALS = {"single": 1.6, "batch": 1.5}


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="the embedded model or a folder")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of each response")
    parser.add_argument("--threads", type=int, default=1, help="PyTorch threads, on both sides")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each measurement")
    parser.add_argument("--gap", type=float, default=0.01, help="seconds between the arrivals of two requests")
    return parser.parse_args()


async def main() -> None:
    """Measure and print."""
    args = arguments()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    from openclaw_rl.models.prepare import ensure_model
    from openclaw_rl.runtime.home import Home
    from openclaw_rl.serving.engines.embedded.engine import EmbeddedEngine
    from openclaw_rl.serving.engines.interface import Sampling, Token

    transformers_logging.disable_progress_bar()
    torch.set_num_threads(args.threads)
    folder = ensure_model(args.model, Home.default(), lambda text, share: None)
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    prompts: list[list[int]] = []
    for subject in SUBJECTS:
        encoded: Any = tokenizer.apply_chat_template([{"role": "user", "content": f"Tell me about {subject}."}],
                                                     add_generation_prompt=True, return_dict=True)
        prompts.append(encoded["input_ids"])
    engine = EmbeddedEngine(folder, threads=args.threads, device="cpu")
    # End tokens would make the amount of work depend on the answers.
    engine.info = type(engine.info)(**{**engine.info.__dict__, "eos_ids": ()})
    await engine.start()
    models = {name: AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, name))
              for name in ("bfloat16", "float32")}

    async def ours(count: int) -> float:
        async def one(index: int) -> int:
            await asyncio.sleep(index * args.gap)
            return sum([isinstance(item, Token) async for item in engine.generate(
                prompts[index], Sampling(temperature=0, max_tokens=args.tokens))])
        engine.clear_prefixes()  # prompts of the round before, which would not be computed again
        started = time.perf_counter()
        made = sum(await asyncio.gather(*(one(index) for index in range(count))))
        return made / (time.perf_counter() - started)

    def theirs(model: Any, count: int) -> float:
        batch = tokenizer.pad({"input_ids": prompts[:count]}, return_tensors="pt")
        started = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(**batch, max_new_tokens=args.tokens, min_new_tokens=args.tokens, do_sample=False)
        return (out.shape[1] - batch["input_ids"].shape[1]) * count / (time.perf_counter() - started)

    result: dict[str, object] = {"bench": "engine", "threads": args.threads, "tokens": args.tokens,
                                 "model": engine.info.model, "torch": torch.__version__}
    await ours(1)
    for name, count in (("single", 1), ("batch", len(prompts))):
        rates: dict[str, float] = {}
        for _ in range(args.rounds):
            rates["engine"] = max(rates.get("engine", 0.0), await ours(count))
            for kind, model in models.items():
                rates[kind] = max(rates.get(kind, 0.0), await asyncio.to_thread(theirs, model, count))
        ratio = rates["engine"] / max(rates[kind] for kind in models)
        result[name] = {"engine": round(rates["engine"], 1), "ratio": round(ratio, 2), "goal": GOALS[name],
                        **{f"transformers_{kind}": round(rates[kind], 1) for kind in models}}
    await engine.stop()
    result["met"] = all(result[name]["ratio"] >= goal for name, goal in GOALS.items())  # type: ignore[index]
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    asyncio.run(main())
