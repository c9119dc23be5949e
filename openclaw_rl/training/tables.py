"""What the trainer's tables share: their schema, counts and single values."""

from __future__ import annotations

import sqlite3

SCHEMA = """
CREATE TABLE IF NOT EXISTS samples (
    seq INTEGER PRIMARY KEY, turn_id TEXT NOT NULL UNIQUE, fate TEXT NOT NULL, version INTEGER,
    reason TEXT NOT NULL DEFAULT '', score INTEGER, hinted INTEGER NOT NULL, attempts INTEGER NOT NULL DEFAULT 0,
    accepted_at REAL NOT NULL, payload BLOB, session TEXT NOT NULL DEFAULT '', sampled_from INTEGER,
    branch TEXT NOT NULL DEFAULT '', crc INTEGER, content INTEGER,
    again INTEGER NOT NULL DEFAULT 0, group_id TEXT, episode_id TEXT, step INTEGER, votes REAL, step_reward REAL,
    reward REAL, advantage REAL);
CREATE INDEX IF NOT EXISTS pending ON samples (score, hinted, accepted_at) WHERE fate = 'pending';
CREATE TABLE IF NOT EXISTS versions (
    version INTEGER PRIMARY KEY, manifest BLOB NOT NULL, checkpoint TEXT NOT NULL DEFAULT '{}', activated_at REAL,
    detail TEXT NOT NULL DEFAULT '', lost INTEGER NOT NULL DEFAULT 0, crc INTEGER);
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


def count(db: sqlite3.Connection, name: str, by: int) -> None:
    """Add to a counter."""
    if by:
        db.execute("INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
                   (name, by))


def set_value(db: sqlite3.Connection, name: str, value: str) -> None:
    """Keep a single value."""
    db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, value))


def raise_to(db: sqlite3.Connection, name: str, value: int) -> None:
    """Let a single value be at least `value`."""
    row = db.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
    if row is None or int(row["value"]) < value:
        set_value(db, name, str(value))


def age_of(db: sqlite3.Connection, version: int) -> int:
    """How many versions were made after `version`, up to the one that the next step builds on. Numbers that no version
    has don't count; versions that were rolled back do."""
    row = db.execute("SELECT COUNT(*) AS age FROM versions WHERE version > ? AND version <="
                     " (SELECT CAST(value AS INTEGER) FROM state WHERE name = 'head')", (version,)).fetchone()
    return int(row["age"])
