"""Replace an SQLite file by a copy without its unused parts, while it is in use.

The copy is made from a snapshot, beside the writer. Triggers note the keys of rows that change meanwhile, and those
rows are brought up to date in the copy in rounds that get shorter. Only the last round and the swap of the files hold
the writer up. Whenever the process is killed, the file's name has the old content or the new one, whole.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

#: What is behind the file's name in that of its copy.
REWRITTEN = ".rewritten"
#: Changed rows that the last round, which holds the writer up, may have; and rounds before it at most.
_LAST_ROUND, _ROUNDS = 32, 20
#: Seconds for which other processes that have the file open are waited for.
_WAIT = 10.0

_Key = tuple[str, tuple[Any, ...]]  # table, values of its primary key


def rewrite(path: Path, on_writer: Callable[[Callable[[sqlite3.Connection], Any]], Any],
            swap: Callable[[Callable[[sqlite3.Connection], bool]], bool]) -> None:
    """Do it, on a thread that may block.

    Args:
        path: the file.
        on_writer: runs a function with the writer's connection, between transactions.
        swap: called on the writer's thread; gives a function the only connection of this process, and opens all
            others anew. The function returns whether it has replaced the file, and then has closed the connection.

    Raises:
        sqlite3.Error, OSError: the file is as it was.
    """
    copy = Path(f"{path}{REWRITTEN}")
    copy.unlink(missing_ok=True)
    changes = _Changes()
    try:
        on_writer(changes.watch)
        with closing(_connect(path)) as source:
            source.execute("VACUUM INTO ?", (str(copy),))
            with closing(_connect(copy)) as target:
                target.execute("PRAGMA journal_mode = OFF")  # nobody misses it when it breaks
                target.execute("PRAGMA synchronous = OFF")
                target.execute("PRAGMA secure_delete = ON")
                for _ in range(_ROUNDS):
                    keys = on_writer(lambda _: changes.take())
                    changes.bring(keys, source, target)
                    if len(keys) <= _LAST_ROUND:
                        break
                _sync(copy)
                source.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                source.close()
                deadline = time.monotonic() + _WAIT
                while not on_writer(lambda _: swap(lambda db: _replace(path, copy, changes, db, target))):
                    if time.monotonic() > deadline:
                        raise sqlite3.OperationalError("another process has the file open; stop that one and repeat")
                    time.sleep(0.05)
    finally:
        copy.unlink(missing_ok=True)
        with suppress(sqlite3.ProgrammingError):  # the file was closed meanwhile
            on_writer(changes.unwatch)


def _replace(path: Path, copy: Path, changes: _Changes, db: sqlite3.Connection, target: sqlite3.Connection) -> bool:
    """Bring the copy up to date a last time and let it take the file's place; False, and nothing has happened, when
    another process has the file open."""
    try:
        db.execute("PRAGMA busy_timeout = 0")
        # Nobody else has the file open when this works, and its log and index are gone: they would be taken for those
        # of the file that comes into its place.
        if db.execute("PRAGMA journal_mode = DELETE").fetchone()[0] != "delete":
            return False
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
            return False
        raise
    finally:
        db.execute("PRAGMA busy_timeout = 5000")
    changes.bring(changes.take(), db, target)
    changes.copy_sequences(db, target)
    target.close()
    _sync(copy)
    db.close()
    os.replace(copy, path)
    _sync(path.parent)
    return True


@dataclass(frozen=True, slots=True)
class _Table:
    name: str
    key: tuple[str, ...]  #: columns of the primary key

    @property
    def where(self) -> str:
        """The condition of one row."""
        return " AND ".join(f'"{column}" IS ?' for column in self.key)

    def noting(self, row: str) -> str:
        """The statement that notes a row: `new` or `old`."""
        values = ", ".join(f'{row}."{column}"' for column in self.key)
        return f"SELECT note_change('{self.name}', {values})"


class _Changes:
    """Keys of the rows that were changed since `watch`. On the writer's thread, or while that waits."""

    def __init__(self) -> None:
        self._keys: set[_Key] = set()
        self._tables: dict[str, _Table] = {}

    def watch(self, db: sqlite3.Connection) -> None:
        """Begin."""
        names = [row[0] for row in db.execute(
            "SELECT name FROM main.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~'")]
        for name in names:
            keys = db.execute("SELECT name FROM pragma_table_info(?) WHERE pk ORDER BY pk", (name,)).fetchall()
            if not keys:
                raise sqlite3.OperationalError(f"table {name} has no primary key")
            self._tables[name] = _Table(name, tuple(row[0] for row in keys))
        db.create_function("note_change", -1, self._note)
        db.execute("PRAGMA recursive_triggers = ON")  # or a row that REPLACE deletes would not be noted
        for table in self._tables.values():
            for event, rows in (("INSERT", ("new",)), ("UPDATE", ("old", "new")), ("DELETE", ("old",))):
                db.execute(f'CREATE TEMP TRIGGER "note_{event}_{table.name}" AFTER {event} ON main."{table.name}" '
                           f"BEGIN {'; '.join(table.noting(row) for row in rows)}; END")

    def unwatch(self, db: sqlite3.Connection) -> None:
        """End, on a connection where `watch` began or on another one."""
        for (name,) in db.execute("SELECT name FROM temp.sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f'DROP TRIGGER temp."{name}"')
        db.execute("PRAGMA recursive_triggers = OFF")

    def take(self) -> set[_Key]:
        """The keys that were noted since the last time."""
        keys, self._keys = self._keys, set()
        return keys

    def bring(self, keys: Iterable[_Key], source: sqlite3.Connection, target: sqlite3.Connection) -> None:
        """Make rows of the copy what they are in the file.

        The file may change meanwhile: a unique value that a row is read with may still be that of another row in the
        copy. That row has changed then, is noted, and is brought in the next round; here it gives way.
        """
        keys = list(keys)
        target.execute("BEGIN")
        for name, key in keys:  # all of them first: a value that must be unique may have gone from one row to another
            target.execute(f'DELETE FROM "{name}" WHERE {self._tables[name].where}', key)
        for name, key in keys:
            for row in source.execute(f'SELECT * FROM "{name}" WHERE {self._tables[name].where}', key):
                target.execute(f'INSERT OR REPLACE INTO "{name}" VALUES ({", ".join("?" * len(row))})', tuple(row))
        target.execute("COMMIT")

    @staticmethod
    def copy_sequences(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
        """Let AUTOINCREMENT go on where it is."""
        if target.execute("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_sequence'").fetchone():
            target.execute("BEGIN")
            target.execute("DELETE FROM sqlite_sequence")
            target.executemany("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)",
                               [tuple(row) for row in source.execute("SELECT name, seq FROM sqlite_sequence")])
            target.execute("COMMIT")

    def _note(self, table: str, *key: Any) -> None:
        self._keys.add((table, key))


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
