"""What the small judge keeps."""

from __future__ import annotations

import sqlite3

from openclaw_rl.v1 import turn_pb2

_SCHEMA = """CREATE TABLE IF NOT EXISTS inbox (id TEXT PRIMARY KEY, content BLOB, judgement BLOB);
CREATE TABLE IF NOT EXISTS outbox (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT, payload BLOB);"""


class Store:
    """What the judge has taken in and what waits for the trainer."""

    def __init__(self, file: str) -> None:
        self.db = sqlite3.connect(file)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = NORMAL")  # a killed process loses nothing by it
        self.db.executescript(_SCHEMA)

    def known(self, id: str) -> bytes | None:
        """Content of a message that was taken."""
        row = self.db.execute("SELECT content FROM inbox WHERE id = ?", (id,)).fetchone()
        return row[0] if row else None

    def take(self, id: str, content: bytes, sample: turn_pb2.Sample) -> None:
        self.db.execute("INSERT INTO inbox VALUES (?, ?, ?)", (id, content, sample.judgement.SerializeToString()))
        self.db.execute("INSERT INTO outbox (id, payload) VALUES (?, ?)", (id, sample.SerializeToString()))
        self.save()

    def save(self) -> None:
        """Have on disk what was taken."""
        self.db.commit()

    def judgements(self, ids: list[str]) -> list[turn_pb2.Judgement]:
        found = []
        for id in ids:
            row = self.db.execute("SELECT judgement FROM inbox WHERE id = ?", (id,)).fetchone()
            if row:
                found.append(turn_pb2.Judgement.FromString(row[0]))
        return found

    def waiting(self, behind: int = 0) -> list[tuple[int, str, bytes]]:
        return self.db.execute("SELECT seq, id, payload FROM outbox WHERE seq > ? ORDER BY seq", (behind,)).fetchall()

    def settle(self, id: str) -> None:
        self.db.execute("DELETE FROM outbox WHERE id = ?", (id,))
        self.save()
