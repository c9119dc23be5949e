"""What a write-ahead log should hold, so that a lost end of it is told.

SQLite takes a log that was cut or damaged for one that ends there: the commits behind that point are gone without an
error. The index beside it (`-shm`), which a killed process leaves, says how many frames were committed. A clean close
deletes the index, and there is nothing to compare then.
"""

from __future__ import annotations

import sqlite3
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class WalIndex:
    """The index of a log, as its last writer left it."""

    committed: int  #: frames of the log that are of commits
    copied: int  #: frames that a checkpoint has copied into the file already

    @classmethod
    def read(cls, path: Path) -> WalIndex | None:
        """That of the database `path`; None when there is none, or it is of another log, whose header is sound. Call it
        before the database is opened, since that makes the index anew.

        Layout: https://www.sqlite.org/walformat.html#the_wal_index_file_format
        """
        try:
            with open(f"{path}-shm", "rb") as file:
                index = file.read(100)
        except OSError:
            return None
        try:
            with open(f"{path}-wal", "rb") as file:
                head = file.read(32)
        except OSError:
            head = b""
        if len(index) < 100 or index[:48] != index[48:96] or not index[12]:
            return None  # being written, or never begun
        if _sound(head) and head[16:24] != index[32:40]:
            return None  # the log was begun anew
        return cls(int.from_bytes(index[16:20], sys.byteorder), int.from_bytes(index[96:100], sys.byteorder))

    def lost(self, db: sqlite3.Connection) -> str:
        """What is wrong with the log that `db` has just opened; empty when nothing is."""
        found = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]  # frames that SQLite takes for whole
        # What was copied of the end of a log counts only without its begin, whose older pages stand before the file's.
        missing = self.committed - (found if found > 0 else self.copied)
        if missing <= 0:
            return ""
        return (f"the end of its write-ahead log was damaged or lost: {missing} of {self.committed} pages that were "
                "committed last are gone (a power loss, or somebody changed the file); what they held is lost, all "
                "before them is there")


def _sound(head: bytes) -> bool:
    """Whether a log's header has the checksum that it says; https://www.sqlite.org/walformat.html#checksum_algorithm"""
    if len(head) < 32:
        return False
    order: Literal["big", "little"] = "big" if head[3] & 1 else "little"
    words = [int.from_bytes(head[at:at + 4], order) for at in range(0, 24, 4)]
    first = second = 0
    for one, other in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return head[24:32] == first.to_bytes(4, "big") + second.to_bytes(4, "big")
