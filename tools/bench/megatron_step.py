"""A step of the Megatron trainer against the torch back end's (`method: full`), in one process and run.

    python tools/bench/megatron_step.py [--samples 4] [--tokens 256] [--steps 2]

Both train all weights of the embedded model in fp32 on the CPU, one rank and one thread, on the same made-up samples
(a quarter prompt, the rest response; half of them with a hint), in turns, after one step that is not counted. Prints
one JSON line: medians, and `ratio`, the Megatron step's seconds by the torch one's (of the CPU's time: `cpu_ratio`,
which other load disturbs less).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from torch import distributed

from openclaw_rl.config import EMBEDDED_MODEL, TrainerConfig
from openclaw_rl.models.prepare import ensure_model
from openclaw_rl.runtime.home import Home
from openclaw_rl.training.algorithms.example import Example
from openclaw_rl.training.backends.interface import StartPoint
from openclaw_rl.training.backends.megatron.layout import Layout
from openclaw_rl.training.backends.megatron.policy import MegatronPolicy
from openclaw_rl.training.backends.torch import TorchBackend


def examples(count: int, tokens: int) -> list[Example]:
    """Samples of random tokens."""
    draw = random.Random(1)
    found = []
    for number in range(count):
        ids = [draw.randrange(100, 40_000) for _ in range(tokens)]
        prompt, response = ids[:tokens // 4], ids[tokens // 4:]
        hinted = number % 2 == 0
        found.append(Example(str(number), prompt, response, [-9.0] * len(response), [0] * len(response),
                             1 if number % 3 else -1, "hint" if hinted else "",
                             [*prompt, *prompt[:8]] if hinted else None))
    return found


def timed(backend: Any, batch: list[Example], version: int) -> tuple[float, float]:
    """Seconds of a step, on the clock and of the CPU."""
    clock, cpu = time.perf_counter(), time.process_time()
    backend.step(batch, version, lambda: False)
    return time.perf_counter() - clock, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("samples", 4), ("tokens", 256), ("steps", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    folder = ensure_model(EMBEDDED_MODEL, Home.default())
    config = TrainerConfig(method="full", device="cpu", learning_rate=1e-6, max_kl=99.0)
    batch = examples(args.samples, args.tokens)
    with tempfile.TemporaryDirectory() as store:
        distributed.init_process_group("gloo", init_method=f"file://{Path(store) / 'group'}", rank=0, world_size=1)
        backends = {"torch": TorchBackend(folder, config, StartPoint()),
                    "megatron": MegatronPolicy(folder, config, Layout(1, 1, 1), StartPoint())}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in backends}
        for step in range(args.steps + 1):
            for name, backend in backends.items():
                times[name].append(timed(backend, batch, step))
        distributed.destroy_process_group()
    medians = {name: [statistics.median(values) for values in zip(*found[1:], strict=True)]
               for name, found in times.items()}
    print(json.dumps({
        "bench": "megatron", "samples": args.samples, "tokens": args.tokens, "steps": args.steps,
        **{f"{name}_s": round(clock, 2) for name, (clock, _) in medians.items()},
        **{f"{name}_cpu_s": round(cpu, 2) for name, (_, cpu) in medians.items()},
        "ratio": round(medians["megatron"][0] / medians["torch"][0], 3),
        "cpu_ratio": round(medians["megatron"][1] / medians["torch"][1], 3)}))


if __name__ == "__main__":
    main()
