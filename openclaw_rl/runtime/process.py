"""Processes that are known by a variable in their environment, whoever is their parent by now."""

from __future__ import annotations

import contextlib
import os
import time

import psutil


def marked(variable: str, value: str) -> list[psutil.Process]:
    """All processes but this one that have the variable with this value. One that has ended and was not waited for has
    no environment, so it is not among them."""
    found = []
    for process in psutil.process_iter():
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
