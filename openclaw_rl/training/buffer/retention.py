"""How many fates the trainer keeps."""

from __future__ import annotations

import sqlite3

#: Settled samples (id, fate, reason, version) that are kept. A sample can come again only while its sender lacks an
#: acknowledgement, and the judge knows the last 200,000 turns that it sent; so a fate that is deleted is never needed
#: to tell a duplicate. At 570 bytes each (measured, index and gaps included) they take 170 MB.
KEEP_FATES = 300_000


def prune(db: sqlite3.Connection, keep: int = KEEP_FATES) -> int:
    """Delete the oldest fates beyond `keep`, within the caller's transaction. What is pending stays, and the counts
    too, which are kept by themselves; a version's manifest names its turns for ever.

    Returns:
        How many went.
    """
    return db.execute("DELETE FROM samples WHERE seq <= (SELECT MAX(seq) FROM samples) - ? AND fate <> 'pending'",
                      (keep,)).rowcount
