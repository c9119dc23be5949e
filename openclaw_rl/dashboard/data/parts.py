"""Partial results: a component that does not respond costs its part of a page, not the page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from openclaw_rl.config import ConfigError
from openclaw_rl.rpc.errors import MeshError

T = TypeVar("T")

#: Seconds for one component's part of a page.
WAIT = 10.0

#: What asking a component may raise.
FAILURES = (MeshError, ConfigError)


def reason(error: Exception) -> str:
    """What went wrong, for a person."""
    return error.message if isinstance(error, MeshError) else str(error)


async def part(ask: Callable[[], Awaitable[T]]) -> tuple[T | None, str]:
    """The answer, and "" - or None, and why there is none."""
    try:
        return await ask(), ""
    except FAILURES as error:
        return None, reason(error)
