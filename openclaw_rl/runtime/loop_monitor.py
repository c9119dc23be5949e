"""Monitor of an event loop: how long it was not free, and an alarm when that was too long.

A timer measures how late it is called. Part of that lateness may be the machine's: while the loop's thread waits for a
CPU that others use, nothing of ours blocks it. The kernel counts this time (schedstat), and it is subtracted. What
is left was spent in callbacks, or in waiting for a lock, a file, or the interpreter's lock. A thread looks meanwhile at
what the loop runs, so that the alarm can name it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from openclaw_rl.runtime.alarms import Raised

logger = logging.getLogger(__name__)

_PACKAGE = "openclaw_rl"

#: Seconds between two ticks; a hold is measured short by up to that much.
INTERVAL = 0.05
#: Holds of so many seconds raise the alarm.
ALARM_SECONDS = 2.0
#: Seconds for which the longest hold counts, and an alarm lasts; up to twice as long.
WINDOW = 60.0
#: Ticks between two looks at the scheduling of the other threads, and seconds of a hold that is worth one more.
_LOOK_EVERY, _SUSPECT = 20, 0.05


class LoopMonitor:
    """Measures the running event loop from `start` to `stop`.

    Args:
        interval: seconds between two ticks.
        alarm: seconds of a hold that raise the alarm.

    Attributes:
        longest: seconds of the longest hold since the start.
        observe: called with the seconds of each hold, at every tick; 0.0 for a loop that was free.
    """

    def __init__(self, interval: float = INTERVAL, alarm: float = ALARM_SECONDS) -> None:
        self.longest = 0.0
        self.observe: Callable[[float], None] | None = None
        self._interval, self._alarm = interval, alarm
        self._window = _Window()
        self._alarming = _Window()
        self._scheduling = _Scheduling()
        self._timer: asyncio.TimerHandle | None = None
        self._sampler: _Sampler | None = None
        self._culprit = ""
        self._due = 0.0
        self._ticks = 0

    def start(self) -> None:
        """Begin, on the running loop's thread."""
        self._scheduling.begin()
        self._schedule()
        self._sampler = _Sampler(threading.get_ident(), lambda: time.monotonic() - self._due, self._alarm / 2)

    def stop(self) -> None:
        """End; the figures stay."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sampler is not None:
            self._sampler.stop()
        self._scheduling.close()

    @property
    def recent(self) -> float:
        """Seconds of the longest hold in the last minute or two."""
        return self._window.longest

    def alarms(self) -> list[Raised]:
        """The alarm, while it holds."""
        longest = self._alarming.longest
        return [("loop_blocked", f"event loop blocked for {longest * 1000:.0f} ms{self._culprit}; every request waited "
                 "meanwhile" if longest else "")]

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + self._interval
        self._timer = loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        late = asyncio.get_running_loop().time() - self._due
        hold = max(0.0, late - self._scheduling.waited())
        self._ticks += 1
        if hold >= _SUSPECT:
            # Who holds the interpreter's lock may wait for a CPU, too: an overloaded machine is no fault of ours.
            hold = max(0.0, hold - self._scheduling.others_waited())
        elif self._ticks % _LOOK_EVERY == 0:
            self._scheduling.others_waited()
        self.longest = max(self.longest, hold)
        self._window.add(hold)
        if hold >= self._alarm:
            where = self._sampler.found if self._sampler is not None else ""
            self._culprit = f" in {where}" if where else ""
            self._alarming.add(hold)
            logger.warning("event loop blocked for %.0f ms%s", hold * 1000, self._culprit)
        if self.observe is not None:
            self.observe(hold)
        if self._sampler is not None:
            self._sampler.found = ""
        self._schedule()


class _Sampler:
    """A thread that notes what another thread runs while that is late.

    Args:
        thread: to look at.
        late: seconds for which it is late.
        after: seconds from which on to look.

    Attributes:
        found: the innermost place in this package, or else of all; "" while nothing is late.
    """

    def __init__(self, thread: int, late: Callable[[], float], after: float) -> None:
        self.found = ""
        self._watched, self._late, self._after = thread, late, after
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loop monitor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(self._after / 2):
            if not self.found and self._late() > self._after:
                frame = sys._current_frames().get(self._watched)
                stack = traceback.extract_stack(frame) if frame is not None else []
                ours = [entry for entry in stack if _PACKAGE in Path(entry.filename).parts]
                for entry in (ours or stack)[-1:]:
                    self.found = f"{Path(entry.filename).name}:{entry.lineno} ({entry.name})"


class _Window:
    """The maximum of the current and of the previous window of time."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._current = self._previous = 0.0

    def add(self, value: float) -> None:
        self._turn_over()
        self._current = max(self._current, value)

    @property
    def longest(self) -> float:
        self._turn_over()
        return max(self._current, self._previous)

    def _turn_over(self) -> None:
        passed = time.monotonic() - self._began
        if passed >= WINDOW:
            self._previous = self._current if passed < 2 * WINDOW else 0.0
            self._current, self._began = 0.0, time.monotonic()


class _Scheduling:
    """Time that threads were ready to run and had no CPU, by Linux's schedstat; elsewhere always 0."""

    def __init__(self) -> None:
        self._file = -1
        self._waited = 0
        self._others_waited = 0
        self._own: Path | None = None  #: this thread's, once it has begun

    def begin(self) -> None:
        with contextlib.suppress(OSError):
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._own = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        self.waited()
        self.others_waited()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def waited(self) -> float:
        """Seconds that this thread waited for a CPU since the last call."""
        if self._file < 0:
            return 0.0
        with contextlib.suppress(OSError, ValueError, IndexError):
            before, self._waited = self._waited, int(os.pread(self._file, 128, 0).split()[1])
            return (self._waited - before) / 1e9
        return 0.0

    def others_waited(self) -> float:
        """The same of all other threads of the process together."""
        total = 0
        if self._file < 0:
            return 0.0
        for task in Path("/proc/self/task").glob("*/schedstat"):
            if task == self._own:
                continue
            with contextlib.suppress(OSError, ValueError, IndexError):
                total += int(task.read_bytes().split()[1])
        before, self._others_waited = self._others_waited, total
        return max(0.0, (total - before) / 1e9)
