"""Waiting for a condition, blocking or on an event loop."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T | None], seconds: float = 30, what: str = "", every: float = 0.05) -> T:
    """Wait until a condition holds, and return its value; `what` names it in the error. One that takes long to ask for,
    such as a command, is asked for less often than `every` seconds, and leaves two thirds of the time to others.

    Raises:
        AssertionError: it did not hold within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        asked = time.monotonic()
        if value := condition():
            return value
        now = time.monotonic()
        assert now < deadline, f"not within {seconds:.0f} s: {what or _source(condition)}"
        time.sleep(max(every, 2 * (now - asked)))


async def eventually(condition: Callable[[], T | Awaitable[T | None] | None], seconds: float = 30, what: str = "",
                     every: float = 0.005) -> T:
    """Wait on the event loop until a condition, which may be a coroutine function, holds; as `until`."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        value = await found if inspect.isawaitable(found) else found
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what or _source(condition)}"
        await asyncio.sleep(every)


def _source(condition: Callable[[], object]) -> str:
    try:
        return inspect.getsource(condition).strip()
    except (OSError, TypeError):
        return repr(condition)
