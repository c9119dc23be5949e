"""Takes what can be read of a damaged SQLite file over into the one that is begun in its place."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: What is behind the file's name in that of the new one.
SALVAGED = ".salvaged"
#: Ranges of keys that are tried between damaged pages of a table, at most, and keys behind the last one.
_PROBES = 20_000
_BEYOND = 2**20
#: The least and the greatest key.
_FIRST, _LAST = -2**63, 2**63 - 1
_Damage = (sqlite3.DatabaseError, UnicodeDecodeError)


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a component's tables are worth when rows of them are lost."""

    whole: Sequence[str] = ()  #: tables that refer to each other: when one of them lacks a row, none is taken over
    #: then the only rows of other tables that are taken over: their condition, by table
    alone: Mapping[str, str] = field(default_factory=dict)
    repair: Sequence[str] = ()  #: statements that make the tables agree again


#: Each row that can be read is taken over.
ALL = Recovery()


@dataclass(slots=True)
class Saved:
    """Rows of one table."""

    rows: int = 0  #: that were taken over
    lost: int = 0  #: that are known to be lost
    torn: bool = False  #: that there may be others

    @property
    def complete(self) -> bool:
        """None is lost."""
        return not self.lost and not self.torn


def salvage(damaged: Path, into_file: Path, recovery: Recovery) -> str:
    """Copy the tables and their rows to a new file, which is on the disk when this returns.

    Args:
        damaged: the file, of which nobody else has a connection.
        into_file: the new one, which is there afterwards unless nothing can be read.

    Returns:
        What was saved and what is lost, for a person.
    """
    try:
        with closing(sqlite3.connect(damaged, isolation_level=None)) as source, \
                closing(sqlite3.connect(into_file, isolation_level=None)) as into:
            into.execute("PRAGMA journal_mode = MEMORY")  # nobody misses it when it breaks
            schema = source.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE "
                                    "'sqlite~_%' ESCAPE '~'").fetchall()
            tables = {name: sql for type, name, sql in schema if type == "table"}
            into.execute("BEGIN IMMEDIATE")
            saved = {name: _copy(source, into, name, sql) for name, sql in tables.items()}
            if not all(saved[name].complete for name in recovery.whole if name in saved):
                for name in {*recovery.whole, *recovery.alone} & saved.keys():
                    kept = recovery.alone.get(name, "FALSE")
                    gone = into.execute(f'DELETE FROM "{name}" WHERE NOT ({kept})').rowcount
                    saved[name].rows -= gone
                    saved[name].lost += gone
            for type, _, sql in schema:
                if type == "index":
                    into.execute(sql)
            for statement in recovery.repair:
                into.execute(statement)
            into.execute("COMMIT")
    except _Damage as error:
        into_file.unlink(missing_ok=True)
        return f"nothing that was in it could be taken over ({' '.join(str(error).split())})"
    return _told(saved)


def _told(saved: Mapping[str, Saved]) -> str:
    rows = sum(table.rows for table in saved.values())
    if all(table.complete for table in saved.values()):
        return f"all that was in it, {rows} rows, was taken over"
    lost = ", ".join(f"{table.lost or 'an unknown number'}{' or more' * (table.torn and table.lost > 0)} of {name}"
                     for name, table in saved.items() if not table.complete)
    return f"{rows} rows that were in it were taken over; lost are, by table, {lost}"


def _copy(source: sqlite3.Connection, into: sqlite3.Connection, name: str, sql: str) -> Saved:
    """Make a table and copy the rows that can be read."""
    into.execute(sql)
    saved = Saved()
    types = [row[0].upper() for row in source.execute("SELECT type FROM pragma_table_info(?)", (name,))]
    for row in _rows(source, name, "WITHOUT ROWID" in sql.upper(), saved):
        if row is not None and all(map(_fits, row, types)):
            saved.rows += into.execute(f'INSERT OR IGNORE INTO "{name}" VALUES ({", ".join("?" * len(types))})',
                                       row).rowcount
            continue
        saved.lost += 1
    if saved.torn:
        try:  # by an index, which may be sound
            there = source.execute(f'SELECT COUNT(*) FROM "{name}"').fetchone()[0]
        except _Damage:
            return saved
        saved.lost, saved.torn = max(saved.lost, there - saved.rows), there <= saved.rows
    return saved


def _fits(value: object, type: str) -> bool:
    """Whether a column of this type may have the value: SQLite reads many a garbage without complaint."""
    expected = {"INTEGER": (int, float), "REAL": (int, float), "TEXT": (str,)}.get(type, (bytes, str))
    return value is None or isinstance(value, expected)


def _rows(db: sqlite3.Connection, table: str, by_scan: bool, saved: Saved) -> Iterator[Sequence[Any] | None]:
    """The rows, None for one that can't be read.

    Args:
        by_scan: it has no rowids.
    """
    if by_scan:
        try:
            yield from db.execute(f'SELECT * FROM "{table}"')
        except _Damage:
            saved.torn = True
        return
    for key in _keys(db, table, saved):
        try:
            yield db.execute(f'SELECT * FROM "{table}" WHERE rowid = ?', (key,)).fetchone()
        except _Damage:
            yield None


def _keys(db: sqlite3.Connection, table: str, saved: Saved) -> Iterator[int]:
    """Keys of the rows that can be reached: from both ends, and between damaged pages by halves."""
    def scan(low: int, high: int, order: str = "ASC") -> tuple[list[int], bool]:
        found: list[int] = []
        whole = True
        try:
            for row in db.execute(f'SELECT rowid FROM "{table}" NOT INDEXED WHERE rowid BETWEEN ? AND ? '
                                  f"ORDER BY rowid {order}", (low, high)):
                if found and (row[0] > found[-1]) != (order == "ASC"):
                    whole = False
                    break
                found.append(row[0])
        except _Damage:
            whole = False
        while found and not whole and not there(found[-1]):  # garbage that could pass for a key
            found.pop()
        return found, whole

    def there(key: int) -> bool:
        try:
            return db.execute(f'SELECT rowid FROM "{table}" WHERE rowid = ?', (key,)).fetchone() is not None
        except _Damage:
            return False

    ahead, whole = scan(_FIRST, _LAST)
    yield from ahead
    if whole:
        return
    saved.torn = True
    back, _ = scan(ahead[-1] + 1 if ahead else _FIRST, _LAST, "DESC")
    yield from back
    if not ahead and not back:
        return
    ranges = [(ahead[-1] + 1 if ahead else back[-1] - _BEYOND, back[-1] - 1 if back else ahead[-1] + _BEYOND)]
    for _ in range(_PROBES):
        if not ranges:
            return
        low, high = ranges.pop()
        found, whole = scan(low, high)
        yield from found
        low = found[-1] + 1 if found else low
        if not whole and low < high:
            middle = (low + high) // 2
            halves = [(middle + 1, high), (low, middle)]
            ranges += halves if ahead else reversed(halves)
