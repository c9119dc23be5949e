"""python ADDRESS SECONDS CALLERS STREAMS [sync|async]: see ../clients.py."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from openclaw_rl.client import AsyncPolicyServiceClient, PolicyServiceClient

IDS = [0] * 16
MESSAGES = [{"role": "user", "content": "hi"}]


async def asynchronous(address: str, seconds: float, callers: int, streams: int) -> list[float]:
    async with AsyncPolicyServiceClient(address) as policy:
        async def call() -> int:
            await policy.score(token_ids=IDS)
            return 1

        async def chat() -> int:
            return sum([event.HasField("delta") async for event in policy.chat(messages=MESSAGES)])

        async def during(seconds: float, workers: int, work: Callable[[], Awaitable[int]]) -> list[float]:
            began, done = time.monotonic(), 0

            async def loop() -> None:
                nonlocal done
                while time.monotonic() - began < seconds:
                    more = await work()  # not `done += await`, which reads `done` before it waits
                    done += more

            await asyncio.gather(*(loop() for _ in range(workers)))
            return [done, time.monotonic() - began]

        await during(1, callers, call)
        await during(1, streams, chat)
        return [*await during(seconds, callers, call), *await during(seconds, streams, chat)]


def blocking(address: str, seconds: float, callers: int, streams: int) -> list[float]:
    with PolicyServiceClient(address) as policy, ThreadPoolExecutor(max(callers, streams)) as pool:
        def call() -> int:
            policy.score(token_ids=IDS)
            return 1

        def chat() -> int:
            return sum(event.HasField("delta") for event in policy.chat(messages=MESSAGES))

        def during(seconds: float, workers: int, work: Callable[[], int]) -> list[float]:
            began = time.monotonic()

            def loop(_: int) -> int:
                done = 0
                while time.monotonic() - began < seconds:
                    done += work()
                return done

            done = sum(pool.map(loop, range(workers)))
            return [done, time.monotonic() - began]

        during(1, callers, call)
        during(1, streams, chat)
        return [*during(seconds, callers, call), *during(seconds, streams, chat)]


if __name__ == "__main__":
    address, seconds, callers, streams = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    figures = (blocking(address, seconds, callers, streams) if sys.argv[5] == "sync" else
               asyncio.run(asynchronous(address, seconds, callers, streams)))
    print(json.dumps(dict(zip(("calls", "call_seconds", "deltas", "delta_seconds"), figures, strict=True))))
