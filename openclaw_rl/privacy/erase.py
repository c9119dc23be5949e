"""What deleted rows leave behind: unused parts of the file, files set aside, spans, lines of the component's log."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from openclaw_rl.observability import telemetry
from openclaw_rl.privacy.target import Target
from openclaw_rl.runtime.home import Home
from openclaw_rl.storage.database import Database
from openclaw_rl.v1 import component_pb2

#: Files and folders beside a component's own that hold what could not be read, and so can't be searched.
_ASIDE = ("*.corrupt-*", "*.damaged-*", "set-aside/*")


def clean(store: Database, home: Home, component: str, target: Target) -> dict[str, int]:
    """Remove what is left of a session once a component has deleted its rows. Blocks; call it on a thread.

    Returns:
        How much was removed, by kind.

    Raises:
        StorageError, OSError, sqlite3.Error: something can't be written; what was asked for may be asked for again.
    """
    removed = {"spans": telemetry.forget(target.session_id, sorted(target.turn_ids)),
               "log lines": blank_log(home.logs, component, [target.session_id, *target.turn_ids]),
               "damaged files": erase(store) + delete_aside(home.root / "telemetry")}
    return {kind: count for kind, count in removed.items() if count}


def handler(home: Home, component: str, store: Database,
            forget: Callable[[Target], Awaitable[tuple[Target, dict[str, int]]]]
            ) -> Callable[[component_pb2.ForgetRequest], Awaitable[component_pb2.ForgetResponse]]:
    """ComponentService.Forget of a component that has nothing more to do about it than `forget`: delete the rows, and
    give the target with all its turns and what was deleted, by kind."""
    async def answer(request: component_pb2.ForgetRequest) -> component_pb2.ForgetResponse:
        target, removed = await forget(Target.of(request))
        removed |= await asyncio.to_thread(clean, store, home, component, target)
        return component_pb2.ForgetResponse(turn_ids=sorted(target.turn_ids), removed=removed)

    return answer


def erase(store: Database) -> int:
    """Rewrite the store's file without its unused parts, and delete damaged files that were set aside beside it: what
    they hold can't be told any more. Blocks; call it on a thread.

    Returns:
        Number of files that were set aside and are deleted.

    Raises:
        StorageError: the file can't be rewritten; the disk may be full.
    """
    store.rewrite()
    return delete_aside(store.path.parent)


def delete_aside(folder: Path) -> int:
    """Delete what was set aside in a folder; how many files (and folders) there were."""
    found = {path for pattern in _ASIDE for path in folder.glob(pattern)}
    for path in found:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return sum(not path.name.endswith(("-wal", "-shm")) for path in found)


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
