"""The event loop's monitor: what it counts as a hold, and when it raises the alarm."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from openclaw_rl.runtime import loop_monitor
from openclaw_rl.runtime.loop_monitor import LoopMonitor
from tests.support.loop import held_at_most, measured


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """Every CPU has more to do than it can."""
    code = "while True: pass"
    others = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2 * len(os.sched_getaffinity(0)))]
    yield
    for other in others:
        other.kill()
        other.wait()


async def test_a_callback_that_holds_the_loop_is_measured() -> None:
    with measured() as monitor:
        await asyncio.sleep(0.05)
        time.sleep(0.3)  # noqa: ASYNC251
        await asyncio.sleep(0.05)
    assert 0.25 < monitor.longest < 0.6


async def test_one_that_waits_for_a_lock_does_not_compute_and_is_measured_too() -> None:
    lock = threading.Lock()
    lock.acquire()
    threading.Timer(0.3, lock.release).start()
    with measured() as monitor:
        await asyncio.sleep(0.02)
        lock.acquire()
        await asyncio.sleep(0.02)
    assert 0.2 < monitor.longest < 0.6


async def test_a_loop_that_waits_or_works_in_small_parts_is_free() -> None:
    with held_at_most(0.05):
        await asyncio.sleep(0.2)
        await asyncio.to_thread(time.sleep, 0.2)
        for _ in range(200):
            time.sleep(0.001)  # noqa: ASYNC251
            await asyncio.sleep(0)


async def test_the_helper_names_the_hold() -> None:
    with pytest.raises(AssertionError, match=r"the event loop was held for \d+ ms, at most 50 ms are allowed"), \
            held_at_most(0.05):
        await asyncio.sleep(0.01)
        time.sleep(0.2)  # noqa: ASYNC251
        await asyncio.sleep(0.01)


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the kernel does not count waiting for a CPU")
async def test_a_loaded_machine_raises_no_alarm(busy_machine: None) -> None:
    monitor = LoopMonitor(interval=0.01, alarm=0.2)
    monitor.start()
    late = 0.0
    began = time.monotonic()
    while time.monotonic() - began < 1.5:
        before = time.monotonic()
        await asyncio.sleep(0.01)
        late = max(late, time.monotonic() - before - 0.01)
        sum(range(20_000))
    monitor.stop()
    assert not any(message for _, message in monitor.alarms()), (late, monitor.longest)
    assert monitor.longest < max(0.1, late)


async def test_the_alarm_names_the_place_and_ends_by_itself(monkeypatch: pytest.MonkeyPatch,
                                                            caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(loop_monitor, "WINDOW", 0.2)
    monitor = LoopMonitor(interval=0.01, alarm=0.1)
    seen: list[float] = []
    monitor.observe = seen.append
    monitor.start()
    await asyncio.sleep(0.02)
    time.sleep(0.3)  # noqa: ASYNC251
    await asyncio.sleep(0.02)
    ((name, message),) = monitor.alarms()
    assert name == "loop_blocked" and message.startswith("event loop blocked for ")
    assert re.search(r" ms in test_loop_monitor\.py:\d+ \(test_the_alarm", message), message
    assert message.split(";")[0] in caplog.messages
    await asyncio.sleep(0.5)
    assert monitor.alarms() == [("loop_blocked", "")] and monitor.recent < 0.1 < monitor.longest
    monitor.stop()
    assert max(seen) == monitor.longest


async def test_it_costs_next_to_nothing() -> None:
    with measured(interval=loop_monitor.INTERVAL) as monitor:
        began = time.thread_time()
        await asyncio.sleep(1)
        used = time.thread_time() - began
    assert used < 0.05, monitor.longest
