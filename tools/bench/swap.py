#!/usr/bin/env python3
"""From a LoRA version on disk to its first token in the embedded engine, while responses run.

    python tools/bench/swap.py [--model FOLDER] [--streams 4] [--rounds 3]

A version as an adapter makes it (all linear maps differ, the embedding does not) is staged and activated while
`--streams` responses are decoded; measured is the time to the first token that it made, and the longest time between
two tokens of a response, against what the same responses have without a swap. `whole` is the same version with another
embedding, of which nothing can be shared. `merge_s` is the CPU time of the rest of a version's way on each side of the
weight stream: adding the adapter to the base model's matrices, and their digests. Goal: at most .5 s to the first
token. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

GOAL_S = 0.5
RANK = 16


def make_versions(base: Path, folder: Path) -> tuple[Path, Path, float]:
    """Folders of a version that an adapter made and of one that differs everywhere, and CPU seconds of the merge."""
    import numpy as np
    import torch
    from safetensors.torch import load_file, save_file

    from openclaw_rl.weights.format.digest import tensor_digest
    from openclaw_rl.weights.format.encoding import Adapter, merge

    torch.manual_seed(0)
    tensors, spent = load_file(base / "model.safetensors"), 0.0
    for name, value in tensors.items():
        if value.dim() == 2 and "embed" not in name:
            rows, columns = value.shape
            a, b = (1e-3 * torch.randn(shape).numpy() for shape in ((RANK, columns), (rows, RANK)))
            adapter = Adapter(a, b, 2.0)
            data = value.view(torch.uint8).numpy().reshape(-1).data
            started = time.process_time()
            merged = b"".join(merge(data, "BF16", adapter))
            tensor_digest(merged)
            spent += time.process_time() - started
            tensors[name] = torch.from_numpy(np.frombuffer(bytearray(merged), np.int16)).view(torch.bfloat16).view(
                rows, columns)
    made = []
    for name in ("adapter", "whole"):
        shutil.copytree(base, folder / name)
        if name == "whole":
            tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"] * 2
        save_file(tensors, folder / name / "model.safetensors")
        made.append(folder / name)
    return made[0], made[1], spent


async def bench(base: Path, streams: int, rounds: int) -> dict[str, object]:
    """Run it."""
    from openclaw_rl.serving.engines.embedded.engine import EmbeddedEngine
    from openclaw_rl.serving.engines.interface import Sampling, Token

    engine = EmbeddedEngine(base, device="cpu", max_batch=streams)
    engine.info = type(engine.info)(**{**engine.info.__dict__, "eos_ids": ()})
    await engine.start()
    first: dict[int, float] = {}
    gaps: list[float] = []

    async def respond(seed: int) -> None:
        last = 0.0
        async for item in engine.generate([seed + 1] * 8, Sampling(temperature=1, seed=seed, max_tokens=4000)):
            if isinstance(item, Token):
                now = time.perf_counter()
                first.setdefault(item.version, now)
                if last:
                    gaps.append(now - last)
                last = now

    result: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as tmp:
        adapter, whole, merge_s = await asyncio.to_thread(make_versions, base, Path(tmp))
        running = [asyncio.create_task(respond(seed)) for seed in range(streams)]
        await asyncio.sleep(2)
        gaps.clear()
        await asyncio.sleep(3)
        idle, version = max(gaps), 0
        for name, folder in (("adapter", adapter), ("whole", whole)):
            seconds, longest = [], []
            for _ in range(rounds):
                version += 2
                await engine.stage(version - 1, base)
                await engine.activate(version - 1)
                await asyncio.sleep(1)
                gaps.clear()
                started = time.perf_counter()
                await engine.stage(version, folder)
                await engine.activate(version)
                while version not in first:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                seconds.append(first[version] - started)
                longest.append(max(gaps))
            result[name] = {"first_token_s": round(statistics.median(seconds), 3), "longest_gap_ms":
                            round(1e3 * max(longest), 1)}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    await engine.stop()
    best = result["adapter"]["first_token_s"]  # type: ignore[index]
    return {"bench": "swap", **result, "idle_gap_ms": round(1e3 * idle, 1), "merge_s": round(merge_s, 3),
            "ratio": round(GOAL_S / best, 2), "goals": {"first_token_s": GOAL_S}, "met": best <= GOAL_S}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="the embedded model or a folder")
    parser.add_argument("--streams", type=int, default=4, help="responses that are decoded meanwhile")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    from openclaw_rl.models.prepare import ensure_model
    from openclaw_rl.runtime.home import Home

    print(json.dumps(asyncio.run(bench(ensure_model(args.model, Home.default()), args.streams, args.rounds))))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main()
