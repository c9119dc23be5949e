"""Serving while training: tokens/s and the gap between tokens while versions are trained and swapped, against idle.

    python tools/bench/serving.py [--streams 16] [--seconds 60] [--versions 3]

Starts a mesh of its own (own folder, free ports, the embedded model) and talks to it over HTTP only. 16 clients stream
answers without a pause between them. First with the trainer paused (idle), then while users' complaints keep it
training and every version is swapped in. Prints one JSON line; `failures` must be 0.

The two phases run in one process pair on the same cores, so the ratio says what learning costs the users of a small
machine: with two cores, the trainer takes up to one of them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from openclaw_rl.client import AsyncPolicyServiceClient, AsyncTrainerServiceClient
from openclaw_rl.runtime.home import Home, read_record

PROMPTS = ["What is a river?", "How do I boil an egg?", "Why is the sky blue?", "What does a bee eat?"]
COMPLAINT = "That's wrong, and far too long. Answer in one short sentence without markdown."


@dataclass
class Figures:
    """What one phase saw."""

    gaps: list[float] = field(default_factory=list)  #: seconds between two pieces of one stream
    tokens: int = 0
    answers: int = 0
    failures: list[str] = field(default_factory=list)
    versions: set[str] = field(default_factory=set)


async def stream(client: httpx.AsyncClient, messages: list[dict[str, Any]], session: str | None, turn_type: str,
                 figures: Figures) -> str:
    """One streamed answer; its pieces are timed."""
    headers = {"X-Turn-Type": turn_type} | ({"X-Session-Id": session} if session else {})
    body = {"model": "default", "messages": messages, "stream": True, "max_tokens": 96,
            "stream_options": {"include_usage": True}}
    text, last, finished = "", None, False
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
            if response.status_code != 200:
                figures.failures.append(f"{response.status_code}: {(await response.aread())[:200]!r}")
                return text
            figures.versions.add(response.headers["x-openclaw-policy-version"])
            async for line in response.aiter_lines():
                if not line.startswith("data: "):
                    continue
                if line == "data: [DONE]":
                    finished = True
                    break
                piece = json.loads(line[6:])
                if "error" in piece:
                    figures.failures.append(str(piece["error"]))
                    return text
                if piece.get("usage"):
                    figures.tokens += piece["usage"]["completion_tokens"]
                content = (piece.get("choices") or [{}])[0].get("delta", {}).get("content")
                if content:
                    now = time.perf_counter()
                    if last is not None:
                        figures.gaps.append(now - last)
                    last, text = now, text + content
    except httpx.HTTPError as error:
        figures.failures.append(f"{type(error).__name__}: {error}")
        return text
    if not finished:
        figures.failures.append("the stream ended without [DONE]")
    figures.answers += 1
    return text


async def talk(client: httpx.AsyncClient, number: int, stop: asyncio.Event, complain: bool, figures: Figures) -> None:
    """One client: asks, and in the training phase complains, until it is told to stop."""
    turn = 0
    while not stop.is_set():
        messages = [{"role": "user", "content": PROMPTS[(number + turn) % len(PROMPTS)]}]
        session = f"bench-{complain}-{number}-{turn}"
        kind = "main" if complain else "side"
        answer = await stream(client, messages, session, kind, figures)
        if complain and answer:
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": COMPLAINT}]
            await stream(client, messages, session, kind, figures)
        turn += 1


async def phase(url: str, streams: int, complain: bool, until: Awaitable[None]) -> tuple[Figures, float]:
    """All clients talk until `until` is there; what they saw and the seconds that it took."""
    figures, started, stop = Figures(), time.monotonic(), asyncio.Event()
    limits = httpx.Limits(max_connections=streams)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        clients = [asyncio.create_task(talk(client, i, stop, complain, figures)) for i in range(streams)]
        await until
        stop.set()
        await asyncio.gather(*clients)
    return figures, time.monotonic() - started


async def activated(policy: AsyncPolicyServiceClient, version: int, limit: float) -> None:
    """Wait until a version of at least this number is active, at most `limit` seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit):
            async for response in policy.watch_policy():
                if response.state.active_version >= version:
                    return


def summary(figures: Figures, elapsed: float) -> dict[str, Any]:
    gaps = sorted(figures.gaps) or [0.0]

    def at(q: float) -> float:
        return round(gaps[min(len(gaps) - 1, int(q * len(gaps)))] * 1000, 1)

    return {"tokens_per_s": round(figures.tokens / elapsed, 1), "gap_p50_ms": at(0.5), "gap_p99_ms": at(0.99),
            "gap_max_ms": at(1), "answers": figures.answers, "failures": len(figures.failures)}


async def run(home: Home, streams: int, seconds: float, wanted: int) -> dict[str, Any]:
    policy, trainer = read_record(home, "policy_server"), read_record(home, "trainer")
    assert policy and trainer
    control = AsyncTrainerServiceClient(trainer.address)
    watcher = AsyncPolicyServiceClient(policy.address)
    await control.pause(reason="benchmark")
    await phase(policy.http_address, streams, False, asyncio.sleep(5))  # warm-up
    idle, idle_s = await phase(policy.http_address, streams, False, asyncio.sleep(seconds))
    await control.resume()
    busy, busy_s = await phase(policy.http_address, streams, True, activated(watcher, wanted, 600))
    versions = await control.list_versions()
    state = (await watcher.get_policy()).state
    pauses = [v.manifest.metrics.get("pause_steps") for v in versions.versions if v.active or v.activated_at.seconds]
    return {"bench": "serving", "streams": streams, "idle": summary(idle, idle_s), "training": summary(busy, busy_s),
            "training_seconds": round(busy_s, 1),
            "ratio": round((busy.tokens / busy_s) / (idle.tokens / idle_s), 3),
            "versions_activated": state.highest_version, "versions_seen": len(busy.versions),
            "pause_steps": pauses, "failures": (idle.failures + busy.failures)[:3]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=16, help="clients that stream at the same time")
    parser.add_argument("--seconds", type=float, default=60, help="length of the idle phase")
    parser.add_argument("--versions", type=int, default=3, help="versions that end the training phase")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="openclaw-serving-") as folder:
        config = {"components": {"policy_server": {"port": 0, "grpc_port": 0, "max_batch": args.streams},
                                 "env_server": {"port": 0}, "prm_judge": {"port": 0},
                                 "trainer": {"port": 0, "update_interval": 10, "min_samples": 4, "max_batch": 4}}}
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        env = os.environ | {"OPENCLAW_RL_HOME": folder}
        command = [str(Path(sys.executable).with_name("openclaw-rl"))]
        models = Home.default().models
        if models.exists():
            (Path(folder) / "models").symlink_to(models)
        subprocess.run([*command, "local-start", "--config", str(path)], env=env, check=True, stdout=sys.stderr)
        try:
            print(json.dumps(asyncio.run(run(Home(Path(folder)), args.streams, args.seconds, args.versions))))
        finally:
            subprocess.run([*command, "stop-all"], env=env, check=False, stdout=sys.stderr)


if __name__ == "__main__":
    main()
