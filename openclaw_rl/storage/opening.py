"""Opening of SQLite files: check, recover, or quarantine what can't be used and begin a new one."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from openclaw_rl.storage.errors import StorageError, is_damage
from openclaw_rl.storage.quarantine_files import Label, move_aside
from openclaw_rl.storage.salvage import SALVAGED, Recovery, salvage
from openclaw_rl.storage.wal import WalIndex

logger = logging.getLogger(__name__)

#: What is behind the file's name in that of an empty one, which says that damage showed while it was in use: the next
#: start looks thoroughly, or damage that a quick check misses would end one start after the other.
SUSPECTED = ".suspected"


class Unusable(Exception):
    """What is in the file can't be used, and is no damage that SQLite knows: another layout, a row without sense."""


def open_or_replace(path: Path, connect: Callable[[], sqlite3.Connection], *, label: Label, keep: int,
                    lossy: bool = False, recovery: Recovery | None = None) -> tuple[sqlite3.Connection, list[str]]:
    """Open a file; one that is damaged is moved aside, and a new one begun.

    Args:
        connect: opens the file and does what makes it usable, such as its schema. It closes what it opened when it
            raises, and raises `Unusable` for content that it can't work with.
        label, keep: see `move_aside`.
        lossy: that its newest commits were lost is nothing that a person should know.
        recovery: how to take over what can be read of a damaged file; None: nothing is.

    Returns:
        The connection, and what a person should know.

    Raises:
        sqlite3.Error, OSError: the file can't be opened, and nothing is known to be wrong with what is in it.
    """
    problems: list[str] = []
    index = None if lossy else WalIndex.read(path)
    suspected = Path(f"{path}{SUSPECTED}")
    why = ""
    try:
        if path.is_dir():
            raise Unusable("a folder stands in its place")
        connection = connect()
        try:
            if index is not None and (loss := index.lost(connection)):
                logger.error("%s: %s", path, loss)
                problems.append(f"{path}: {loss}")
            why = check(connection, thorough=suspected.exists())
        except BaseException:
            connection.close()
            raise
        if not why:
            suspected.unlink(missing_ok=True)
            return connection, problems
        connection.close()
    except (sqlite3.DatabaseError, UnicodeDecodeError, Unusable) as error:
        if not (isinstance(error, Unusable) or is_damage(error)):
            raise
        why = str(error)
        if isinstance(error, Unusable):
            recovery = None
    # Before it is moved: of who is killed meanwhile the damaged file is still there.
    fresh = Path(f"{path}{SALVAGED}")
    saved = "" if recovery is None else f": {salvage(path, fresh, recovery)}"
    aside = move_aside(path, label=label, keep=keep)
    if fresh.exists():
        os.replace(fresh, path)
    connection = connect()
    problems.append(f"{path} was damaged ({' '.join(why.split())}); it was set aside as {aside}, and a new one "
                    f"begun{saved}")
    logger.error(problems[-1])
    suspected.unlink(missing_ok=True)
    return connection, problems


def check(connection: sqlite3.Connection, thorough: bool = False) -> str:
    """What SQLite finds damaged in a file; empty when nothing is. It reads the whole file.

    Args:
        thorough: also whether the indexes have what the tables have.
    """
    name = "integrity_check" if thorough else "quick_check"
    # As bytes: it may quote damaged ones.
    verdict = connection.execute(f"SELECT CAST({name} AS BLOB) FROM pragma_{name}(1)").fetchone()[0]
    text = bytes(verdict).decode(errors="replace")
    return "" if text == "ok" else text


def check_header(path: Path, application: int, newest: int) -> None:
    """Look at a file's first bytes, without SQLite, which would change it: one of a newer release must stay as it is.

    Args:
        application: SQLite's application_id of our files.
        newest: the newest format that is known, in user_version.

    Raises:
        StorageError: a newer release wrote it.
        Unusable: another program wrote it.
    """
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except (FileNotFoundError, IsADirectoryError):
        return
    if len(head) < 100 or not head.startswith(b"SQLite format 3\0"):
        return  # empty, or what SQLite finds damaged
    # https://www.sqlite.org/fileformat2.html#database_header
    version, found = (int.from_bytes(head[at:at + 4], "big") for at in (60, 68))
    if found not in (0, application):
        raise Unusable(f"another program wrote it (application_id {found:#x})")
    if version > newest:
        raise StorageError.newer(path, version, newest)
