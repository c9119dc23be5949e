"""Child processes: tied to the life of their parent, and found again by a variable in their environment."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence

import psutil

#: Of linux/prctl.h.
_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int | None = None, number: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel send this process a signal when the thread that started it ends (prctl(2)).

    Call it first thing in a child. Without effect on systems other than Linux.

    Args:
        parent: pid of the parent; a child that finds it gone already exits. None does not look.

    Raises:
        SystemExit: the parent is gone.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        sys.exit(0)


async def end_group(process: asyncio.subprocess.Process, seconds: float, number: signal.Signals = signal.SIGTERM, *,
                    leader_only: bool = False) -> None:
    """End a process that leads a group of its own: a signal, SIGKILL after `seconds`, and SIGKILL for what is left of
    the group.

    Args:
        leader_only: the first signal goes to the leader, who ends the others in good order.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            (os.kill if leader_only else os.killpg)(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await process.wait()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def end_all(processes: Sequence[psutil.Process], seconds: float) -> None:
    """End processes that need not be children: SIGTERM, and SIGKILL after `seconds`. Blocks."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(processes, seconds)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, 5)


def all_processes() -> Iterator[psutil.Process]:
    """All processes, none left out: psutil's cache skips one whose pid it knew as another's."""
    psutil.process_iter.cache_clear()
    return psutil.process_iter()


def marked(variable: str, value: str) -> list[psutil.Process]:
    """All processes but this one that have the variable with this value. One that has ended and was not waited for has
    no environment, so it is not among them."""
    found = []
    for process in all_processes():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(variable) == value and process.pid != os.getpid():
                found.append(process)
    return found


def kill_marked(variable: str, value: str, seconds: float) -> set[int]:
    """Kill these, also those that they start meanwhile, until none is left or `seconds` have passed. Blocks.

    Returns:
        The pids of those that were killed.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and (left := marked(variable, value)):
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
            killed.add(process.pid)
        psutil.wait_procs(left, 1)
    return killed
