"""Blocking calls of the engine's SDK, in threads."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: Separate threads, so that a hanging engine blocks nothing else that runs in threads.
_threads = ThreadPoolExecutor(max_workers=16, thread_name_prefix="container-engine")


async def call(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call a function in one of 16 threads."""
    return await asyncio.get_running_loop().run_in_executor(
        _threads, functools.partial(function, *arguments, **named))
