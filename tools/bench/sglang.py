"""SGLang serving while its weights are updated, against idle: tokens/s, the longest gaps, failures. One JSON line.

    python tools/bench/sglang.py [--requests 8] [--tokens 128] [--updates 3] [--way disk|tensors] [--address URL]

Without an address it starts a server of its own for the embedded model, which takes a minute on a CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from openclaw_rl.config import EMBEDDED_MODEL, PolicyServerConfig
from openclaw_rl.models.prepare import ensure_model
from openclaw_rl.runtime.home import Home
from openclaw_rl.serving.engines.interface import EngineError, Sampling, Token
from openclaw_rl.serving.engines.sglang.engine import SglangEngine


async def run(engine: SglangEngine, requests: int, tokens: int) -> dict[str, float]:
    """All requests at once. Gaps are between two tokens of one response."""
    gaps: list[float] = []
    failed = made = 0

    async def one(number: int) -> None:
        nonlocal failed, made
        last = None
        try:
            prompt = [1, 504, 260, 3575, 282 + number]
            async for item in engine.generate(prompt, Sampling(temperature=1.0, max_tokens=tokens, seed=number)):
                now = time.perf_counter()
                if isinstance(item, Token):
                    made += 1
                    if last is not None:
                        gaps.append(now - last)
                    last = now
        except EngineError:
            failed += 1

    began = time.perf_counter()
    await asyncio.gather(*(one(i) for i in range(requests)))
    seconds = time.perf_counter() - began
    gaps.sort()
    return {"tokens_per_s": round(made / seconds, 1), "tokens": made, "failed": failed,
            "gap_ms_p50": round(statistics.median(gaps) * 1000),
            "gap_ms_p99": round(gaps[len(gaps) * 99 // 100] * 1000), "gap_ms_max": round(gaps[-1] * 1000)}


def variant(base: Path, folder: Path, scale: float) -> Path:
    """Another version of the model."""
    from safetensors.torch import load_file, save_file

    folder.mkdir(parents=True)
    tensors = load_file(base / "model.safetensors")
    name = "model.layers.3.mlp.up_proj.weight"
    tensors[name] = (tensors[name] * scale).contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


async def main(args: argparse.Namespace) -> None:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "openclaw-rl-tools/models-home"
    base = ensure_model(EMBEDDED_MODEL, Home(cache).create())
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        settings = PolicyServerConfig(
            engine="sglang", max_context=1024, max_batch=16,
            sglang={"update": args.way, "addresses": [args.address] if args.address else []})
        engine = SglangEngine(base, settings, root / "state", root / "logs")
        began = time.perf_counter()
        await engine.start()
        started = time.perf_counter() - began
        try:
            await run(engine, 2, 8)
            idle = await run(engine, args.requests, args.tokens)
            folders = [variant(base, root / f"v{i}", 1 + i / 1000) for i in range(1, args.updates + 1)]
            made = engine.status().counters["engine_tokens"]
            busy = asyncio.create_task(run(engine, args.requests, args.tokens))
            pauses = []
            for version, folder in enumerate(folders, 1):
                wanted = made + args.requests * args.tokens * version // (args.updates + 2)
                while engine.status().counters["engine_tokens"] < wanted and not busy.done():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                await engine.stage(version, folder)
                pauses.append(round((await engine.activate(version)).ms))
            print(json.dumps({"bench": "sglang", "way": args.way, "start_s": round(started, 1), "idle": idle,
                              "updating": await busy, "updates": args.updates, "pause_ms": pauses,
                              "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}))
        finally:
            await engine.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--way", choices=("disk", "tensors", "distributed"), default="disk")
    parser.add_argument("--address", help="of a server that runs; see the engine's README")
    asyncio.run(main(parser.parse_args()))
