#!/usr/bin/env python3
"""Cost of holding responses to a JSON schema: tokens a second of 16 requests with one and without, in the same run.

    python tools/bench/constrained.py [--model FOLDER] [--tokens 64] [--threads 1] [--rounds 3]

The schema is an array of objects that is long enough for all tokens, so that both sides make as many. Rounds alternate
between the two, and the best round of each counts, since other processes can only slow one down.
Prints one JSON line. Takes about 2 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path

BATCH = 16
GOAL = 0.9  #: share of the rate without a schema
SCHEMA = {"type": "array", "minItems": 50, "items": {
    "type": "object", "additionalProperties": False, "required": ["name", "kind", "tags", "year"], "properties": {
        "name": {"type": "string", "maxLength": 40}, "kind": {"enum": ["person", "place", "thing"]},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3},
        "year": {"type": "integer", "minimum": 0, "maximum": 2100}}}}


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="the embedded model or a folder")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each response")
    parser.add_argument("--threads", type=int, default=1, help="PyTorch threads")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each measurement")
    return parser.parse_args()


async def main() -> None:
    """Measure and print."""
    args = arguments()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from openclaw_rl.models.prepare import ensure_model
    from openclaw_rl.runtime.home import Home
    from openclaw_rl.serving.engines.embedded.engine import EmbeddedEngine
    from openclaw_rl.serving.engines.interface import Sampling, TextGrammar, Token
    from openclaw_rl.serving.text.template import ChatTemplate
    from openclaw_rl.v1 import turn_pb2

    folder = ensure_model(args.model, Home.default(), lambda text, share: None)
    template = ChatTemplate(folder)
    prompts = [template.chat([turn_pb2.ChatMessage(role="user", content=f"List {i + 3} things of note as JSON.")]).ids
               for i in range(BATCH)]
    engine = EmbeddedEngine(folder, max_batch=BATCH, threads=args.threads, device="cpu")
    # End tokens would make the amount of work depend on the answers.
    engine.info = type(engine.info)(**{**engine.info.__dict__, "eos_ids": ()})
    await engine.start()
    grammar = TextGrammar("json_schema", json.dumps(SCHEMA), "guided_json")

    async def rate(form: TextGrammar | None) -> float:
        async def one(index: int) -> int:
            return sum([isinstance(item, Token) async for item in engine.generate(prompts[index], Sampling(
                temperature=1, seed=index, max_tokens=args.tokens, grammar=form))])
        engine.clear_prefixes()  # prompts of the round before, which would not be computed again
        started = time.perf_counter()
        made = sum(await asyncio.gather(*(one(index) for index in range(BATCH))))
        if made != BATCH * args.tokens:
            raise SystemExit(f"{made} tokens were made instead of {BATCH * args.tokens}")
        return made / (time.perf_counter() - started)

    await rate(None)
    await rate(grammar)
    free = held = 0.0
    for _ in range(args.rounds):
        free, held = max(free, await rate(None)), max(held, await rate(grammar))
    await engine.stop()
    share = held / free
    sys.stdout.write(json.dumps({
        "bench": "constrained", "model": engine.info.model, "batch": BATCH, "tokens": args.tokens,
        "free": round(free, 1), "schema": round(held, 1), "ratio": round(share, 3), "goal": GOAL, "met": share >= GOAL,
    }) + "\n")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    asyncio.run(main())
