#!/usr/bin/env python3
"""Users beside episodes: what users wait for while the policy acts in sandboxes of all kinds, against without.

    .venv/bin/python tools/bench/episodes.py [--users 8] [--seconds 60] [--groups 2] [--group-size 4] [--parallel 4]
                                             [--types all] [--think 1.0] [--training]

Starts a mesh of its own (own folder, free ports, the embedded model). Users ask over HTTP, one streamed answer after
another with a pause to think between them: first alone for `--seconds`, then beside `episodes run` until that is over,
at least `--seconds`. Tells the seconds to the first token and of the whole answer, p50 and p95, of both phases, their
`ratio`, and failed requests (goal: none). Training waits unless `--training` is given: it takes the same processor.
Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from openclaw_rl.config import EMBEDDED_MODEL
from openclaw_rl.models.prepare import ensure_model
from openclaw_rl.runtime.home import Home, read_record

ASKED = ("What is rain?", "Name three birds.", "How do I boil an egg?", "Why is the sky blue?", "What is a heron?",
         "Tell me about rivers.", "How does a clock work?", "What do bees eat?")
MAX_TOKENS = 48


@dataclass
class Phase:
    """What users saw."""

    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        return {"requests": len(self.whole), "failed": len(self.failures), "errors": self.failures[:3],
                **{f"{name}_{label}": round(_quantile(values, at), 3)
                   for name, values in (("first_token", self.first), ("whole", self.whole))
                   for label, at in (("p50", 0.5), ("p95", 0.95))}}


async def talk(url: str, number: int, think: float, phase: Phase, until: asyncio.Event) -> None:
    """One user, until he has had enough."""
    async with httpx.AsyncClient(trust_env=False, timeout=300) as http:
        turn = 0
        while not until.is_set():
            body = {"messages": [{"role": "user", "content": ASKED[(number + turn) % len(ASKED)]}], "stream": True,
                    "max_tokens": MAX_TOKENS, "user": f"user-{number}"}
            began, first = time.perf_counter(), None
            try:
                async with http.stream("POST", f"{url}/v1/chat/completions", json=body,
                                       headers={"X-Session-Id": f"user-{number}-{turn}-{id(phase)}"}) as response:
                    if response.status_code != 200:
                        raise httpx.HTTPError(f"{response.status_code}: {(await response.aread())[:200]!r}")
                    last = ""
                    async for line in response.aiter_lines():
                        if line.startswith("data:"):
                            first = first or time.perf_counter() - began
                            last = line
                    if last != "data: [DONE]":
                        raise httpx.HTTPError(f"the stream ended with {last[:100]!r}")
                phase.first.append(first or 0.0)
                phase.whole.append(time.perf_counter() - began)
            except httpx.HTTPError as error:
                phase.failures.append(repr(error)[:300])
            turn += 1
            await asyncio.sleep(think)


async def users(url: str, options: argparse.Namespace, ends: asyncio.Event) -> Phase:
    phase = Phase()
    await asyncio.gather(*(talk(url, i, options.think, phase, ends) for i in range(options.users)))
    return phase


async def measure(url: str, env: dict[str, str], options: argparse.Namespace) -> dict[str, Any]:
    async def after(seconds: float, ends: asyncio.Event) -> None:
        await asyncio.sleep(seconds)
        ends.set()

    ends = asyncio.Event()
    alone, _ = await asyncio.gather(users(url, options, ends), after(options.seconds, ends))
    command = [_program(), "episodes", "run", "--json", "--groups", str(options.groups), "--group-size",
               str(options.group_size), "--parallel", str(options.parallel), "--seed", "1"]
    for kind in options.types.split(","):
        command += ["--type", kind]
    ends = asyncio.Event()

    async def episodes() -> dict[str, Any]:
        process = await asyncio.create_subprocess_exec(*command, env=env, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        if not output:
            raise SystemExit("episodes run told nothing")
        return dict(json.loads(output))

    running = asyncio.create_task(episodes())
    waiting = asyncio.gather(running, asyncio.sleep(options.seconds))
    waiting.add_done_callback(lambda _: ends.set())
    beside = await users(url, options, ends)
    await waiting
    result: dict[str, Any] = {"alone": alone.figures(), "beside": beside.figures(), "runs": [
        {name: run[name] for name in ("type", "over", "total", "broken", "success", "steps", "seconds", "error")}
        for run in running.result()["runs"]]}
    result["ratio"] = {name: round(result["beside"][name] / max(result["alone"][name], 1e-9), 2)
                       for name in result["alone"] if name.endswith(("p50", "p95"))}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--types", default="all", help="names with commas between")
    parser.add_argument("--think", type=float, default=1.0, help="seconds between two requests of a user")
    parser.add_argument("--training", action="store_true")
    options = parser.parse_args()
    models = Home.default().create()
    with tempfile.TemporaryDirectory(prefix="bench-episodes-") as folder:
        home = Home(Path(folder) / "home").create()
        (home.models / EMBEDDED_MODEL).symlink_to(ensure_model(EMBEDDED_MODEL, models))
        home.config_file.write_text(yaml.safe_dump({"components": {
            "policy_server": {"port": 0, "grpc_port": 0}, "env_server": {"port": 0, "episodes": {"max_tokens": 64}},
            "prm_judge": {"port": 0}, "trainer": {"port": 0}}}))
        env = {**os.environ, "OPENCLAW_RL_HOME": str(home.root)}
        subprocess.run([_program(), "local-start"], env=env, check=True, stdout=sys.stderr)
        try:
            if not options.training:
                subprocess.run([_program(), "pause"], env=env, check=True, stdout=sys.stderr)
            record = read_record(home, "policy_server")
            assert record is not None
            print(json.dumps({"bench": "episodes", "users": options.users, "cpus": os.cpu_count(),
                              **asyncio.run(measure(record.http_address, env, options))}))
        finally:
            subprocess.run([_program(), "stop-all"], env=env, check=False, stdout=sys.stderr)


def _quantile(values: list[float], at: float) -> float:
    if len(values) < 2:
        return values[0] if values else 0.0
    return statistics.quantiles(values, n=100, method="inclusive")[round(at * 100) - 1]


def _program() -> str:
    return str(Path(sys.executable).parent / "openclaw-rl")


if __name__ == "__main__":
    main()
