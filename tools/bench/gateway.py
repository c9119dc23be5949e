#!/usr/bin/env python3
"""Overhead of the HTTP entrypoint on a stream: a stub engine behind it, against the same stub called directly.

    .venv/bin/python tools/bench/gateway.py [--streams 32] [--tokens 96] [--step-ms 25] [--rounds 3]

The stub decodes in steps, as a batch engine does: every `--step-ms` each running request gets a token. `paced` compares
the seconds of a stream at that rate (a batch of 32 of the embedded model is slower than that on 2 cores);
`flat_out` has no pause between the steps, so that it measures only the entrypoint's work per token. Server and
client are two processes; the client uses plain sockets to cost little. `requests_per_s`: short streamed answers of 8
tokens, flat out, 32 at a time. Each answer is recorded in the outbox on disk, as in production, token ids and
log-probabilities included. `ratio` is gateway / direct of a paced stream (goal: at most 1.05). Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from openclaw_rl.config import EMBEDDED_MODEL
from openclaw_rl.models.prepare import ensure_model
from openclaw_rl.runtime.home import Home
from openclaw_rl.serving.engines.interface import EngineInfo, Finished, Sampling, Token

GOAL = 1.05


class StepEngine:
    """A stub of a batch engine: one token for every running request per step."""

    def __init__(self, step: float) -> None:
        self.info = EngineInfo("stub", "stub", "", 4096, 49152, (2,), False)
        self.active_version = 0
        self._step = step
        self._queues: set[asyncio.Queue[int]] = set()
        self._ticker: asyncio.Task[None] | None = None

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *,
                       session: str = "") -> AsyncIterator[Token | Finished]:
        queue: asyncio.Queue[int] = asyncio.Queue()
        self._queues.add(queue)
        if self._step and self._ticker is None:
            self._ticker = asyncio.create_task(self._tick())
        try:
            for _ in range(sampling.max_tokens):
                if self._step:
                    await queue.get()
                else:
                    await asyncio.sleep(0)
                yield Token(253, -0.5, -0.25, 0)
            yield Finished("length")
        finally:
            self._queues.discard(queue)

    async def _tick(self) -> None:
        due = time.perf_counter()
        while True:
            due += self._step
            await asyncio.sleep(due - time.perf_counter())
            for queue in self._queues:
                queue.put_nowait(0)


async def direct(step: float, streams: int, tokens: int) -> tuple[list[float], list[float]]:
    """Seconds of each stream, and to its first token."""
    engine = StepEngine(step)

    async def one() -> tuple[float, float]:
        began, first = time.perf_counter(), 0.0
        async for _ in engine.generate([1, 2, 3], Sampling(max_tokens=tokens)):
            first = first or time.perf_counter() - began
        return time.perf_counter() - began, first

    results = await asyncio.gather(*(one() for _ in range(streams)))
    return [total for total, _ in results], [first for _, first in results]


def serve(pipe: Connection, model: str, step: float) -> None:
    """Run the server's process: send its port, serve until the pipe says stop."""
    from openclaw_rl.rpc.auth.callers import client_digest
    from openclaw_rl.serving.chat_service import ChatService
    from openclaw_rl.serving.entrypoints.openai.app import create_app
    from openclaw_rl.serving.entrypoints.openai.http import HttpServer
    from openclaw_rl.serving.event_recorder import SCHEMA, TurnRecorder
    from openclaw_rl.serving.text.template import ChatTemplate
    from openclaw_rl.serving.token_policy import TokenPolicy
    from openclaw_rl.storage.database import Database
    from openclaw_rl.storage.outbox import Outbox

    async def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            store = Database(Path(folder) / "state.db", "group", SCHEMA)
            service = ChatService(TurnRecorder(store, Outbox(store, "turns")), "stub")
            service.mark_ready(TokenPolicy(StepEngine(step), ChatTemplate(Path(model))))  # type: ignore[arg-type]
            http = HttpServer("127.0.0.1", 0)
            http.start(create_app(service, client_digest))
            pipe.send(int(http.address.rpartition(":")[2]))
            await asyncio.to_thread(pipe.recv)
            await http.stop()
            store.close()

    asyncio.run(work())


async def one_stream(port: int, tokens: int) -> tuple[float, float]:
    """Seconds of one streamed answer, and to its first token; the connection is made before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"messages": [{"role": "user", "content": "Tell me about the tides."}], "stream": True,
                       "max_tokens": tokens}).encode()
    request = (b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
               b"Content-Type: application/json"
               b"\r\nContent-Length: %d\r\n\r\n" % len(body)) + body
    began, first, tail = time.perf_counter(), 0.0, b""
    writer.write(request)
    while data := await reader.read(65536):
        if not first and b'"content":"' in data:
            first = time.perf_counter() - began
        tail = (tail + data)[-200:]
        if b"[DONE]" in tail:
            break
    total = time.perf_counter() - began
    writer.close()
    if b"[DONE]" not in tail:
        raise RuntimeError(f"a stream broke off: {tail!r}")
    return total, first


async def through_gateway(port: int, streams: int, tokens: int) -> tuple[list[float], list[float]]:
    """As `direct`."""
    results = await asyncio.gather(*(one_stream(port, tokens) for _ in range(streams)))
    return [total for total, _ in results], [first for _, first in results]


async def requests_per_second(port: int, streams: int, seconds: float = 4.0) -> float:
    """Short answers, one after the other on each of the streams."""
    end, count = time.perf_counter() + seconds, 0

    async def one() -> None:
        nonlocal count
        while time.perf_counter() < end:
            await one_stream(port, 8)
            count += 1

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(streams)))
    return count / (time.perf_counter() - began)


def measure(model: str, step: float, streams: int, tokens: int, rounds: int) -> dict[str, float]:
    """One comparison; rounds alternate between the two."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, model, step))
    process.start()
    port = ours.recv()
    try:
        asyncio.run(through_gateway(port, streams, 4))  # warm up
        totals: dict[str, list[float]] = {"direct": [], "gateway": []}
        firsts: dict[str, list[float]] = {"direct": [], "gateway": []}
        for _ in range(rounds):
            for name, run in (("direct", direct(step, streams, tokens)),
                              ("gateway", through_gateway(port, streams, tokens))):
                total, first = asyncio.run(run)
                totals[name] += total
                firsts[name] += first
        result = {f"{name}_stream_s": round(statistics.mean(values), 4) for name, values in totals.items()}
        result |= {f"{name}_first_token_ms": round(1000 * statistics.median(values), 2)
                   for name, values in firsts.items()}
        result["ratio"] = round(result["gateway_stream_s"] / result["direct_stream_s"], 3)
        if not step:
            result["us_per_token"] = round(1e6 * result["gateway_stream_s"] / (tokens * streams), 1)
            result["requests_per_s"] = round(asyncio.run(requests_per_second(port, streams)), 1)
        return result
    finally:
        ours.send(None)
        process.join(10)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=32, help="streams at the same time")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of each stream")
    parser.add_argument("--step-ms", type=float, default=25.0, help="milliseconds of a decode step")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each measurement")
    args = parser.parse_args()
    model = str(ensure_model(EMBEDDED_MODEL, Home.default()))
    paced = measure(model, args.step_ms / 1000, args.streams, args.tokens, args.rounds)
    flat_out = measure(model, 0.0, args.streams, args.tokens, args.rounds)
    print(json.dumps({"bench": "gateway", "ratio": paced["ratio"], "goal": GOAL, "met": paced["ratio"] <= GOAL,
                      "streams": args.streams, "tokens": args.tokens, "step_ms": args.step_ms,
                      "requests_per_s": flat_out.pop("requests_per_s"), "paced": paced, "flat_out": flat_out}))


if __name__ == "__main__":
    main()
