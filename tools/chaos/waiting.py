"""Waiting for what may not happen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def happens(condition: Callable[[], Any], seconds: float, every: float = 0.05) -> bool:
    """Wait until a condition holds, and tell whether it did within so many seconds; it is asked `every` so many."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True
