"""What was forgotten, so that a message of it which comes late is let go.

Kept are digests of the session's and its turns' ids with the moment, never the ids. A message that is still under way
somewhere in the ring was asked for before that moment; a new conversation under the same session id is newer.
"""

from __future__ import annotations

import hashlib
import math
import sqlite3

from google.protobuf.message import Message

from openclaw_rl.privacy.target import Target, parts
from openclaw_rl.storage.database import Database

#: Digests that are kept; beyond these the oldest go. Nothing stays under way in the ring for that long.
KEEP = 200_000


class Tombstones:
    """The table `forgotten` of a component's store. Any thread."""

    def __init__(self, store: Database) -> None:
        with store.transaction() as db:
            db.execute("CREATE TABLE IF NOT EXISTS forgotten (seq INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE,"
                       " before REAL NOT NULL)")
        self._store = store
        self._before: dict[bytes, float] = {
            row["digest"]: row["before"] for row in store.query("SELECT digest, before FROM forgotten")}

    def add(self, db: sqlite3.Connection, target: Target) -> None:
        """Remember, in the caller's transaction, the one that deletes."""
        marks = [(digest("session", target.session_id), target.before),
                 *((digest("turn", turn_id), math.inf) for turn_id in target.turn_ids)]
        for mark, before in marks:
            db.execute("INSERT INTO forgotten (digest, before) VALUES (?, ?) ON CONFLICT (digest) DO UPDATE SET"
                       " before = MAX(before, excluded.before)", (mark, before))
        db.execute("DELETE FROM forgotten WHERE seq <= (SELECT MAX(seq) FROM forgotten) - ?", (KEEP,))
        self._store.after_commit(lambda: self._remember(marks))

    def _remember(self, marks: list[tuple[bytes, float]]) -> None:
        for mark, before in marks:
            self._before[mark] = max(before, self._before.get(mark, 0.0))

    def cover(self, message: Message) -> bool:
        """Whether a message that comes now carries what was forgotten; see `Target.has` for the kinds."""
        if not self._before:
            return False
        return any((turn_id and digest("turn", turn_id) in self._before)
                   or at < self._before.get(digest("session", session), 0.0)
                   for turn_id, session, at in parts(message))

    def cover_payload(self, kind: type[Message], payload: bytes) -> bool:
        """The same of a serialized message."""
        return bool(self._before) and self.cover(kind.FromString(payload))


def digest(kind: str, id: str) -> bytes:
    """16 bytes that stand for an id."""
    return hashlib.blake2b(id.encode(), digest_size=16, person=kind.encode()).digest()
