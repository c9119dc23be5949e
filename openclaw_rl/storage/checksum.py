"""Checksums of what is kept: a flipped bit in a stored message may leave it readable, and must not be trained on."""

from __future__ import annotations

import hashlib
import sqlite3
import zlib
from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message


def crc(payload: bytes) -> int:
    """CRC-32 of a stored payload, for a column beside it."""
    return zlib.crc32(payload)


def sound(payload: Any, crc: int | None) -> bool:
    """Whether a payload is what was stored; one without a CRC (a row of before it was kept) is believed."""
    return isinstance(payload, bytes) and (crc is None or zlib.crc32(payload) == crc)


def content_key(message: Message) -> int:
    """64 bits of a message's content, signed as SQLite has them: two messages of one id are the same or they are not.
    It has nothing to do with the order in which a sender wrote the fields."""
    digest = hashlib.blake2b(message.SerializeToString(deterministic=True), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def add_columns(db: sqlite3.Connection, table: str, columns: Mapping[str, str]) -> None:
    """Add the columns (name and type) that a table of before lacks."""
    there = {row["name"] for row in db.execute(f"PRAGMA table_info({table})")}
    for name in columns.keys() - there:
        db.execute(f"ALTER TABLE {table} ADD COLUMN {name} {columns[name]}")
