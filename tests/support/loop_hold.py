"""How long an event loop was held, and whether a file was waited for on it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.storage.database import Database

#: Seconds for which the loop may be held at most.
LIMIT = 0.05


@dataclass
class LoopHold:
    """The longest time for which the loop was not free."""

    longest: float = 0.0


@asynccontextmanager
async def measured() -> AsyncIterator[LoopHold]:
    """Measure the loop while the block runs. Time for which other processes had the processor does not count."""
    hold = LoopHold()
    schedule = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")

    def queued() -> float:
        return int(schedule.read_text().split()[1]) / 1e9

    async def tick() -> None:
        while True:
            before, waited = time.monotonic(), queued()
            await asyncio.sleep(0.001)
            gap = time.monotonic() - before - (queued() - waited)
            hold.longest = max(hold.longest, gap - 0.001)

    task = asyncio.create_task(tick())
    try:
        yield hold
    finally:
        await asyncio.sleep(0.005)
        task.cancel()


@contextmanager
def no_file_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Note each call on an event loop of what blocks for a `Database`: where it came from."""
    import traceback

    found: list[str] = []

    def guarded(real: Callable[..., Any]) -> Callable[..., Any]:
        def method(*args: Any, **options: Any) -> Any:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                return real(*args, **options)
            frame = next(frame for frame in reversed(traceback.extract_stack()[:-1])
                         if "/storage/database.py" not in frame.filename and frame.filename != __file__)
            found.append(f"{frame.filename}:{frame.lineno} {frame.name}")
            return real(*args, **options)
        return method

    with monkeypatch.context() as patch:
        for name in ("transaction", "reading", "query", "rewrite"):
            patch.setattr(Database, name, guarded(getattr(Database, name)))
        yield found
