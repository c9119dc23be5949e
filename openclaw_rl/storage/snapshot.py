"""A consistent copy of an SQLite file that other processes may be writing."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path


def copy_database(source: Path, target: Path) -> None:
    """Copy what is committed at this moment, with SQLite's backup API; writers go on meanwhile
    (https://www.sqlite.org/backup.html).

    Raises:
        sqlite3.Error: the file is damaged, or the copy can't be written; no part of it is left.
    """
    with contextlib.closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True, timeout=30)) as db:
        try:
            with contextlib.closing(sqlite3.connect(target)) as copy:
                db.backup(copy)  # in one step, so from one snapshot
                copy.execute("PRAGMA journal_mode = DELETE")  # all of it in the one file
        except BaseException:
            target.unlink(missing_ok=True)
            raise
