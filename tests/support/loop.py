"""Assertions on the event loop: the longest time that it was not free."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from openclaw_rl.runtime.loop_monitor import LoopMonitor


@contextmanager
def measured(interval: float = 0.005) -> Iterator[LoopMonitor]:
    """Measure the running loop; `longest` is there afterwards. Await something at the end of the block: a hold counts
    when the loop runs again. Times in which the machine was busy with others are left out."""
    monitor = LoopMonitor(interval)
    monitor.start()
    try:
        yield monitor
    finally:
        monitor.stop()


@contextmanager
def held_at_most(seconds: float) -> Iterator[None]:
    """Assert that nothing in the block holds the running loop for longer than `seconds`."""
    with measured() as monitor:
        yield
    assert monitor.longest <= seconds, (f"the event loop was held for {monitor.longest * 1000:.0f} ms, at most "
                                        f"{seconds * 1000:.0f} ms are allowed")
