"""The header of an SQLite file in use, so that it is missed while it can still be written anew.

In use, SQLite takes the file's first page from memory or from the log, and has no need to read it: one that somebody
overwrites is missed at the next start, when the whole file can't be read any more.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

_MAGIC = b"SQLite format 3\0"


class Header:
    """What never changes in the first 100 bytes of an open file: magic, page size, format versions, user_version.

    Layout: https://www.sqlite.org/fileformat2.html#database_header
    """

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        """Args: db: a connection to it, open as long as this is: closing any descriptor of a file gives all locks up
        that the process has on it (POSIX)."""
        page_size, version = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "user_version"))
        self._version = version
        self._begin = _MAGIC + (1 if page_size == 65536 else page_size).to_bytes(2, "big") + b"\2\2"  # 2: WAL
        self._file = os.open(path, os.O_RDONLY)

    def sound(self) -> bool:
        """Whether it stands in the file as it should.

        Raises:
            OSError: the file can't be read.
        """
        head = os.pread(self._file, 100, 0)
        return head.startswith(self._begin) and head[60:64] == self._version.to_bytes(4, "big")

    def write(self, db: sqlite3.Connection) -> None:
        """Write the first page anew, from the memory of the connection that writes, into the log.

        Raises:
            sqlite3.DatabaseError: it is not there any more.
        """
        db.execute(f"PRAGMA user_version = {self._version}")

    def close(self) -> None:
        """Close the descriptor, when the process has no connection to the file any more."""
        os.close(self._file)
