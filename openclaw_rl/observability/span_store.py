"""Store of a component's newest spans, which `openclaw-rl trace` reads without a collector.

Spans are kept as plain JSON objects (see `encoding`), found by trace, turn, session and version. Losing them costs
nothing but the spans: the file is never waited for by a request, and it doesn't survive a power loss for sure.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from openclaw_rl.observability import names
from openclaw_rl.storage.opening import Unusable, open_or_replace

#: Version of the file's layout; a file of another one is quarantined.
LAYOUT = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS spans (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, trace_id TEXT NOT NULL, start_ns INTEGER NOT NULL, turn_id TEXT,
  session_id TEXT, version INTEGER, trained INTEGER, linked INTEGER NOT NULL, payload BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS spans_trace ON spans (trace_id);
CREATE INDEX IF NOT EXISTS spans_turn ON spans (turn_id) WHERE turn_id NOT NULL;
CREATE INDEX IF NOT EXISTS spans_session ON spans (session_id) WHERE session_id NOT NULL;
CREATE INDEX IF NOT EXISTS spans_trained ON spans (trained) WHERE trained NOT NULL;
CREATE INDEX IF NOT EXISTS spans_version ON spans (version) WHERE version NOT NULL AND turn_id IS NULL;
CREATE INDEX IF NOT EXISTS spans_linked ON spans (seq) WHERE linked;
CREATE TABLE IF NOT EXISTS forgotten (session BLOB PRIMARY KEY, before_ns INTEGER NOT NULL);
"""
#: Spans written between two looks at how many there are.
_PRUNE_EVERY = 1000
#: Sessions whose late spans are still left out.
_KEEP_FORGOTTEN = 1000

Span = dict[str, Any]


class SpanStore:
    """One component's file, `HOME/telemetry/COMPONENT.db`. Any thread.

    Args:
        path: the file; a damaged one is quarantined as FILE.damaged-TIME, and `problems` says so.
        keep: newest spans that stay.

    Raises:
        OSError, sqlite3.Error: the file can't be made.
    """

    def __init__(self, path: Path, keep: int) -> None:
        self.path, self._keep = path, keep
        self._lock = threading.Lock()
        self._written = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        #: What an operator should know.
        self._db, self.problems = open_or_replace(path, self._connect, label="damaged", keep=1, lossy=True)
        self._db.executescript(_SCHEMA)
        self._db.execute(f"PRAGMA user_version = {LAYOUT}")
        self._forgotten = dict(self._db.execute("SELECT session, before_ns FROM forgotten").fetchall())
        self._prune()

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=2.0, check_same_thread=False, isolation_level=None)
        try:
            layout = db.execute("PRAGMA user_version").fetchone()[0]
            if layout not in (0, LAYOUT):
                raise Unusable(f"it is of layout {layout}, this release writes {LAYOUT}")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = OFF")  # no fsync for spans
            db.execute("PRAGMA secure_delete = ON")  # what was forgotten is overwritten
        except BaseException:
            db.close()
            raise
        return db

    def add(self, spans: Iterable[Span]) -> None:
        """Keep spans.

        Raises:
            sqlite3.Error: the file can't be written; none was kept.
        """
        rows = []
        for span in spans:
            attributes = span["attributes"]
            session = attributes.get(names.SESSION)
            if session and self._forgotten and self._forgotten.get(_digest(session), 0) > span["start"]:
                continue
            rows.append((span["trace"], span["start"], attributes.get(names.TURN), session,
                         attributes.get(names.VERSION), attributes.get(names.TRAINED), bool(span["links"]),
                         orjson.dumps(span)))
        with self._lock:
            with self._transaction() as db:
                db.executemany("INSERT INTO spans (trace_id, start_ns, turn_id, session_id, version, trained, linked,"
                               " payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            self._written += len(rows)
            if self._written >= _PRUNE_EVERY:
                self._written = 0
                self._prune()

    def forget(self, session_id: str, turn_ids: Sequence[str]) -> int:
        """Delete the spans of a session and of these turns for good, links to the turns included. Spans of the session
        that began before now and come later are left out too.

        Returns:
            Number of spans that were deleted.

        Raises:
            sqlite3.Error: the file can't be written; nothing was deleted.
        """
        moment = time.time_ns()
        gone = set(turn_ids)
        with self._lock:
            with self._transaction() as db:
                for row in db.execute("SELECT DISTINCT turn_id FROM spans WHERE session_id = ? AND turn_id NOT NULL",
                                      (session_id,)):
                    gone.add(row[0])
                deleted = db.execute("DELETE FROM spans WHERE session_id = ?", (session_id,)).rowcount
                for turn_id in gone:
                    deleted += db.execute("DELETE FROM spans WHERE turn_id = ?", (turn_id,)).rowcount
                for seq, payload in db.execute("SELECT seq, payload FROM spans WHERE linked").fetchall():
                    span = orjson.loads(payload)
                    left = [link for link in span["links"] if link["attributes"].get(names.TURN) not in gone]
                    if len(left) < len(span["links"]):
                        span["links"] = left
                        db.execute("UPDATE spans SET payload = ? WHERE seq = ?", (orjson.dumps(span), seq))
                db.execute("INSERT OR REPLACE INTO forgotten VALUES (?, ?)", (_digest(session_id), moment))
                db.execute("DELETE FROM forgotten WHERE session NOT IN (SELECT session FROM forgotten"
                           " ORDER BY before_ns DESC LIMIT ?)", (_KEEP_FORGOTTEN,))
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the log has the old pages too
            self._forgotten[_digest(session_id)] = moment
        return deleted

    def of_turn(self, turn_id: str) -> list[Span]:
        """The spans of a turn in this file, in the order in which they were written."""
        with self._lock:
            rows = self._db.execute("SELECT payload FROM spans WHERE turn_id = ? ORDER BY seq", (turn_id,)).fetchall()
        return [orjson.loads(row[0]) for row in rows]

    def count(self) -> int:
        """Number of spans in the file."""
        with self._lock:
            return int(self._db.execute("SELECT COUNT(*) FROM spans").fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def _prune(self) -> None:
        self._db.execute("DELETE FROM spans WHERE seq <= (SELECT MAX(seq) FROM spans) - ?", (self._keep,))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
            self._db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise


def _digest(session_id: str) -> bytes:
    """Return the digest that is kept of a forgotten session's id."""
    return hashlib.blake2b(session_id.encode(), digest_size=16).digest()
