"""Erase what deleted rows leave behind: unused parts of the file, quarantined files, spans, lines of the log."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from openclaw_rl.observability import telemetry
from openclaw_rl.privacy.target import Target
from openclaw_rl.runtime.failpoint import failpoint
from openclaw_rl.runtime.home import Home
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.quarantine_files import delete_quarantined
from openclaw_rl.v1 import component_pb2


def clean(database: Database, home: Home, component: str, target: Target) -> dict[str, int]:
    """Remove what is left of a session once a component has deleted its rows. Blocks; call it on a thread.

    Returns:
        How much was removed, by kind.

    Raises:
        StorageError, OSError, sqlite3.Error: something can't be written; what was asked for may be asked for again.
    """
    failpoint("forgetting.erase")
    removed = {"spans": telemetry.forget(target.session_id, sorted(target.turn_ids)),
               "log lines": blank_log(home.logs, component, [target.session_id, *target.turn_ids]),
               "damaged files": erase(database) + delete_quarantined(home.root / "telemetry")}
    return {kind: count for kind, count in removed.items() if count}


def handler(home: Home, component: str, database: Database,
            forget: Callable[[Target], Awaitable[tuple[Target, dict[str, int]]]]
            ) -> Callable[[component_pb2.ForgetRequest], Awaitable[component_pb2.ForgetResponse]]:
    """ComponentService.Forget of a component that has nothing more to do about it than `forget`: delete the rows, and
    give the target with all its turns and what was deleted, by kind."""
    async def answer(request: component_pb2.ForgetRequest) -> component_pb2.ForgetResponse:
        target, removed = await forget(Target.of(request))
        removed |= await asyncio.to_thread(clean, database, home, component, target)
        return component_pb2.ForgetResponse(turn_ids=sorted(target.turn_ids), removed=removed)

    return answer


def erase(database: Database) -> int:
    """Rewrite a component's file without its unused parts, and delete what is quarantined beside it: what that holds
    can't be told any more. Blocks; call it on a thread.

    Returns:
        Number of quarantined files and folders that are deleted.

    Raises:
        StorageError: the file can't be rewritten; the disk may be full.
        OSError: a quarantined file can't be deleted.
    """
    database.rewrite()
    return delete_quarantined(database.path.parent)


def blank_log(logs: Path, component: str, ids: Iterable[str]) -> int:
    """Overwrite with `-` the lines of a component's log files that name one of these ids.

    The file is written in place and keeps its length: the supervisor goes on appending to it meanwhile.

    Returns:
        Number of lines.
    """
    names = b"|".join(re.escape(id.encode()) for id in ids if id)
    named = re.compile(rb"(?<![\w-])(?:%s)(?![\w-])" % names)
    blanked = 0
    for path in logs.glob(f"{component}.log*"):
        with path.open("r+b") as file:
            at = 0
            for line in file.readlines():
                if names and named.search(line):
                    file.seek(at)
                    file.write(b"-" * len(line.rstrip(b"\n")))
                    blanked += 1
                at += len(line)
    return blanked
