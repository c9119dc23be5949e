#!/usr/bin/env python3
"""What the weight stream carries and costs, on this machine.

    python tools/bench/weights.py [--rounds 4] [--steps 2] [--streams 4] [--versions FOLDER]

Makes real versions first: the embedded model answers questions, the rules judge scores the users' complaints, and the
trainer takes `--steps` steps of full fine-tuning at learning rate 1e-5, and one with adapters (skipped for what
`--versions`, a folder, has already). Then, each end in a process of its own:

- `dense`: all tensors of a version over the real gRPC stream into a real receiver (CRC, digests, NaN check, fsync),
  and into one that drops them (`wire`: what the stream itself carries), against the same bytes through a raw TCP socket
  whose receiver drops them too. Rounds alternate, and the best of each counts, since other processes can only slow one
  down; the medians of the rounds' ratios are given too, as are CPU seconds, which other processes hardly change.
- `update`: bytes of the real updates against the dense version's.
- `memory`: peak at both ends above what was there before, against two chunks and the largest tensor.
- `serving`: seconds from the end of a step to the activation, with the embedded engine decoding `--streams` responses,
  and what the swap cost them.

Prints one JSON line; rates are GB/s. Takes about 5 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from openclaw_rl.config import EMBEDDED_MODEL, TrainerConfig
from openclaw_rl.models.prepare import ensure_model
from openclaw_rl.runtime.home import Home
from openclaw_rl.weights.store import VersionStore
from openclaw_rl.weights.transfer.sender import CHUNK, Transfer
from tools.bench import weights_peers as peers

GOALS = {"dense": 0.6, "update": 0.015, "memory": "2 chunks and the largest tensor"}
BATCH = 4
NAMES = {1: "dense", 2: "sparse", 3: "low_rank"}

_context = multiprocessing.get_context("spawn")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="rounds of the throughput")
    parser.add_argument("--steps", type=int, default=2, help="steps of full fine-tuning")
    parser.add_argument("--streams", type=int, default=4, help="responses that are decoded while versions arrive")
    parser.add_argument("--versions", type=Path, help="folder to keep the versions in, and to find them in again")
    return parser.parse_args()


def make_versions(root: Path, method: str, rate: float, steps: int) -> None:
    """Real steps on real answers; all versions stay."""
    from tools.bench.learning import items
    from tools.bench.learning.evaluation import MAX_TOKENS
    from tools.bench.learning.users import USERS
    from tools.bench.learning.worlds import InProcess

    async def interact(world: InProcess, index: int) -> None:
        item, session = items.train()[index], str(index)
        messages = [{"role": "user", "content": item.prompt}]
        answer = await world.ask(messages, session=session, side=False, seed=index, max_tokens=MAX_TOKENS)
        said = {"role": "user", "content": USERS["plain"].reply(item, answer, index, 0)}
        await world.ask([*messages, said], session=session, side=False, seed=index, max_tokens=1, done=True)

    async def run() -> None:
        config = TrainerConfig(method=method, learning_rate=rate, max_batch=BATCH)
        world = await InProcess.create(root, config)
        world.learner.tidy = lambda needed: None  # type: ignore[method-assign]
        for step in range(steps):
            await asyncio.gather(*(interact(world, index) for index in range(BATCH * step, BATCH * (step + 1))))
            await world.learned()
        await world.stop()

    root.mkdir(parents=True)
    asyncio.run(run())


@contextmanager
def process(target: Callable[..., None], *args: Any) -> Iterator[Connection]:
    """A process that is talked to through a pipe; waited for at the end."""
    ours, theirs = _context.Pipe()
    child = _context.Process(target=target, args=(theirs, *args))
    child.start()
    theirs.close()
    try:
        yield ours
    finally:
        if child.is_alive() and target.__name__ in ("policy_server", "dropping_server", "trainer"):
            ours.send("stop")
        child.join()


def say(text: str) -> None:
    """Tell how far it is."""
    print(text, file=sys.stderr, flush=True)


def socket_round(path: Path) -> tuple[float, float]:
    """GB/s, and CPU seconds of both ends for each GB."""
    with process(peers.socket_receiver) as receiver, process(peers.socket_sender, path) as sender:
        sender.send(receiver.recv())
        size, seconds, received = receiver.recv()
        return size / seconds / 1e9, (received + sender.recv()) / size * 1e9


def stream_round(versions: Path, base: Path, pushed: list[int], full_every: int, drop: bool = False, streams: int = 0
                 ) -> list[dict[str, float]]:
    """Send versions one after the other to a new policy server; figures of each."""
    root = Path(tempfile.mkdtemp(prefix="weights-bench-"))
    server = (peers.dropping_server, base) if drop else (peers.policy_server, root, base, streams)
    figures = []
    with process(*server) as receiver, process(peers.trainer, versions, base, receiver.recv(), full_every) as sender:
        sender.recv()
        for version in pushed:
            sender.send(version)
            sent: peers.Sent = sender.recv()
            receiver.send("cost")
            times, cpu, memory = receiver.recv()
            if sent.error:
                raise SystemExit(f"version {version} was not taken: {sent.error}")
            figures.append({
                "bytes": sent.bytes, "stream": sent.bytes / max(1e-9, times.last - times.first) / 1e9,
                "durable": sent.bytes / max(1e-9, times.staged - times.first) / 1e9,
                "cpu_per_gb": (sent.cpu + cpu) / sent.bytes * 1e9, "seconds": sent.activated - sent.offered,
                "pause_ms": sent.pause_ms, "pause_steps": sent.pause_steps,
                "sender_mb": sent.memory / 1e6, "receiver_mb": memory / 1e6})
    shutil.rmtree(root, ignore_errors=True)
    return figures


def update(store: VersionStore, version: int, base: int) -> dict[str, Any]:
    """Bytes of an update against the dense version."""
    there = {spec.name: spec.sha256 for spec in store.specs(base)}
    size: dict[str, int] = {}
    for spec in Transfer(store, version, base).offer().tensors:
        if there[spec.name] != spec.sha256:
            size[NAMES[spec.encoding]] = size.get(NAMES[spec.encoding], 0) + spec.encoded_bytes
    total = store.manifest(version).total_bytes
    return {"share": round(sum(size.values()) / total, 4), "bytes": sum(size.values()), "dense_bytes": total,
            "by_encoding": size}


def main() -> None:
    """Measure and print."""
    args = arguments()
    base = ensure_model(EMBEDDED_MODEL, Home.default())
    work = args.versions or Path(tempfile.mkdtemp(prefix="weights-bench-"))
    for method, rate, steps in (("full", 1e-5, args.steps), ("lora", 1e-3, 1)):
        if not (work / method).exists():
            say(f"{steps} steps with method {method} at learning rate {rate:g}")
            child = _context.Process(target=make_versions, args=(work / method, method, rate, steps))
            child.start()
            child.join()
    full, lora = (VersionStore(work / method / "versions", base) for method in ("full", "lora"))
    made = [version for version in full.versions() if version]
    largest = max(spec.encoded_bytes for spec in full.specs(1))
    report: dict[str, Any] = {"goals": GOALS, "chunk": CHUNK, "updates_full_1e-5": [
        update(full, version, version - 1) for version in made], "update_lora_1e-3": update(lora, 1, 0)}
    say(json.dumps(report))

    rounds: list[dict[str, float]] = []
    memory: list[dict[str, float]] = []
    for number in range(args.rounds):
        raw, raw_cpu = socket_round(full.folder(1) / "model.safetensors")
        wire = stream_round(full.root, base, made, 1, drop=True)
        whole = stream_round(full.root, base, made, 1)
        memory += [*whole, *(stream_round(full.root, base, made, 1000) if number == 0 else [])]
        rounds.append({"socket": raw, "socket_cpu_per_gb": raw_cpu,
                       "wire": max(f["stream"] for f in wire), "wire_cpu_per_gb": min(f["cpu_per_gb"] for f in wire),
                       "stream": max(f["stream"] for f in whole), "durable": max(f["durable"] for f in whole),
                       "cpu_per_gb": min(f["cpu_per_gb"] for f in whole)})
        say(json.dumps({name: round(value, 2) for name, value in rounds[-1].items()}))
    best = {name: (min if "cpu" in name else max)(r[name] for r in rounds) for name in rounds[0]}
    report["dense"] = {name: round(value, 3) for name, value in best.items()} | {
        f"{name}_ratio{suffix}": round(value, 3) for name in ("wire", "stream", "durable") for suffix, value in (
            ("", best[name] / best["socket"]), ("_median", statistics.median(r[name] / r["socket"] for r in rounds)))}
    report["memory"] = {"goal_mb": (2 * CHUNK + largest) / 1e6,
                        "sender_mb": round(max(f["sender_mb"] for f in memory), 1),
                        "receiver_mb": round(max(f["receiver_mb"] for f in memory), 1)}
    say(json.dumps({"memory": report["memory"]}))
    names = ("bytes", "seconds", "pause_ms", "pause_steps")
    report["serving"] = {}
    for kind, store, pushed, every in (("full", full, made, 1000), ("lora", lora, [1], 1000), ("dense", full, made, 1)):
        report["serving"][kind] = [
            {name: round(figures[name], 3) for name in names}
            for figures in stream_round(store.root, base, pushed, every, streams=args.streams)]
        say(json.dumps({kind: report["serving"][kind]}))
    if not args.versions:
        shutil.rmtree(work, ignore_errors=True)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
