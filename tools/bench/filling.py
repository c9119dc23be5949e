"""Fill the stores of a mesh with copies of what is in them: what a store of many turns costs is measured in seconds."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

#: Tables that grow with the turns: of each the rows are copied. What waits (outboxes, queues) and counts are left.
TABLES = ("turns", "sessions", "conversations", "feedback", "episodes", "episode_rewards", "judgements", "samples",
          "episode_groups", "forgotten", "inbox_events", "inbox_transitions")
#: Columns with ids and digests, which differ from copy to copy.
_NAMES = {"id", "turn", "turn_id", "session", "request", "response", "conversation", "digest", "key", "parent",
          "branch", "last_turn", "group_id", "episode_id"}


def fill(path: Path, rows: int, *, one_session: str = "") -> None:
    """Copy the rows of each table of a store that nobody has open until there are `rows` of them, at least.

    Args:
        path: the file.
        one_session: all copies are of this session; "" makes sessions of their own.
    """
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        there = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table in (table for table in TABLES if table in there):
            count = db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]
            if 0 < count < rows and not (one_session and table in ("sessions", "episodes", "episode_groups")):
                _copy(db, table, count, -(-rows // count) - 1, one_session)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _copy(db: sqlite3.Connection, table: str, count: int, times: int, one_session: str) -> None:
    columns = [row[1:3] + row[5:6] for row in db.execute(f"PRAGMA table_info({table})")]
    number = [name for name, kind, key in columns if key and kind == "INTEGER"]  # SQLite gives these
    names, values, mark = [], [], f"':{count}:' || k"  # other ids than those of a filling before
    for name, kind, _ in columns:
        if name in number:
            continue
        names.append(name)
        if name == "session" and one_session and kind == "TEXT":
            values.append(f"'{one_session}'")
        elif name in _NAMES:
            values.append(f"CASE WHEN {name} IN ('', X'') THEN {name} ELSE CAST({name} || {mark} AS {kind}) END")
        else:
            values.append(name)
    db.execute(f"WITH RECURSIVE copies(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM copies WHERE k < {times}) "
               f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(values)} FROM copies, {table}")
