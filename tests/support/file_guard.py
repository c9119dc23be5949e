"""Find out who waits for a `Database` on an event loop."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from openclaw_rl.storage.database import Database


@contextmanager
def no_file_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Note each call on an event loop of what blocks for a file: where it came from."""
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
