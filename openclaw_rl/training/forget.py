"""Forgetting a session in the trainer's tables: its samples go, and training goes back to before it learned from them.

The versions whose history has one of its turns are void. Training goes on from the newest version before them, and the
other samples of the void versions are pending again, in their old order: the next steps rebuild what was taken back,
without the forgotten turns, under new numbers.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from openclaw_rl.privacy import Target
from openclaw_rl.privacy.tombstones import digest
from openclaw_rl.training.buffer.groups import leave, reopen
from openclaw_rl.training.release.version_table import ROLLED_BACK, VOID, Version, lineage, parent_of
from openclaw_rl.training.tables import count, set_value
from openclaw_rl.v1 import turn_pb2

SCHEMA = """
CREATE TABLE IF NOT EXISTS voided (
    version INTEGER NOT NULL, session BLOB NOT NULL, PRIMARY KEY (version, session)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS content ON samples (version) WHERE fate = 'trained' AND payload NOT NULL;
"""

#: Class of the reason with which forgotten samples are dropped; their rows keep the id, by which one that comes again
#: is known.
FORGOTTEN = "forgotten"


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What became of it."""

    target: Target  #: with the ids of the session's turns
    removed: dict[str, int]  #: rows by kind
    void: list[int]  #: versions that are void since this session was forgotten, now or before; ascending
    base: int | None = None  #: the version that training goes on from; None when the head knew none of the turns
    again: int = 0  #: samples that are pending again
    lost: int = 0  #: samples of the versions taken back that can't be trained on again: their content is not kept
    waited: bool = False  #: some of the samples were pending, so a step may be at work on them


def forget(db: sqlite3.Connection, target: Target, known: Mapping[int, Version], head: int,
           usable: Collection[int], signal: str) -> Forgotten:
    """Do it, in the caller's transaction.

    Args:
        target: what is to go.
        known: all versions.
        head: the version that the next step would build on.
        usable: versions that training can go on from; the base model always is.
        signal: SQL condition of a sample that a step can learn from.
    """
    rows = [row for row in db.execute("SELECT seq, turn_id, fate, reason, accepted_at, payload FROM samples WHERE"
                                      " session = ?", (target.session_id,)) if _meant(row, target)]
    target = target.with_turns(row["turn_id"] for row in rows)
    rows = [row for turn_id in target.turn_ids
            if (row := db.execute("SELECT seq, fate, reason, version FROM samples WHERE turn_id = ?",
                                  (turn_id,)).fetchone())]
    fresh = [row for row in rows if not row["reason"].startswith(FORGOTTEN)]
    for row in fresh:
        _drop(db, row["seq"], row["fate"], row["reason"])
    void = _void(known, target.turn_ids, {row["version"] for row in fresh if row["fate"] == "trained"})
    for version in void:
        db.execute("INSERT OR IGNORE INTO voided VALUES (?, ?)", (version, digest("session", target.session_id)))
        db.execute("UPDATE versions SET lost = 1, detail = ? WHERE version = ?",
                   (f"{VOID}a session was forgotten that it was trained on", version))
    removed = {"samples": len(fresh)}
    waited = any(row["fate"] == "pending" for row in fresh)
    every = [row["version"] for row in db.execute("SELECT version FROM voided WHERE session = ? ORDER BY version",
                                                  (digest("session", target.session_id),))]
    line = lineage({number: parent_of(version.manifest) for number, version in known.items()}, head)
    if not void.intersection(line):
        return Forgotten(target, removed, every, waited=waited)
    first = max(line.index(version) for version in void.intersection(line))  # the oldest void one; 0 is the head
    base = next((version for version in line[first + 1:] if version in usable and not known[version].lost), 0)
    back = line[:line.index(base)] if base in line else line
    set_value(db, "head", str(base))
    for version in set(back) - void:
        db.execute("UPDATE versions SET detail = ? WHERE version = ?", (ROLLED_BACK, version))
    again, lost = _pend(db, back, signal)
    return Forgotten(target, removed, every, base, again, lost, waited)


def let_go(db: sqlite3.Connection, turn_id: str) -> None:
    """Note the fate of a sample of a forgotten session that comes late, and nothing else of it."""
    done = db.execute("INSERT OR IGNORE INTO samples (turn_id, fate, reason, hinted, accepted_at) VALUES (?, 'dropped',"
                      " ?, 0, ?)", (turn_id, f"{FORGOTTEN}: its session, while it was under way", time.time()))
    if done.rowcount:
        count(db, "accepted", 1)
        count(db, f"dropped:{FORGOTTEN}", 1)


def prune_content(db: sqlite3.Connection, kept: Collection[int]) -> None:
    """Delete what trained samples hold, but for those of the versions that are kept: only these can be rebuilt."""
    marks = ",".join("?" * len(kept))
    db.execute(f"UPDATE samples SET payload = NULL WHERE fate = 'trained' AND payload NOT NULL AND version NOT IN"
               f" ({marks})", list(kept))


def _meant(row: sqlite3.Row, target: Target) -> bool:
    """Whether a sample of the session is of a turn that was asked for before the moment."""
    if row["accepted_at"] < target.before or row["turn_id"] in target.turn_ids or row["payload"] is None:
        return True
    return target.has_payload(turn_pb2.Sample, row["payload"])


def _drop(db: sqlite3.Connection, seq: int, fate: str, reason: str) -> None:
    leave(db, seq)
    db.execute("UPDATE samples SET fate = 'dropped', reason = ?, version = NULL, score = NULL, hinted = 0, payload ="
               " NULL, session = '', branch = '', sampled_from = NULL, crc = NULL, content = NULL WHERE seq = ?",
               (f"{FORGOTTEN}: its session", seq))
    if fate == "trained":
        count(db, "trained", -1)
    elif fate == "dropped":
        count(db, f"dropped:{reason.partition(':')[0]}", -1)
    count(db, f"dropped:{FORGOTTEN}", 1)


def _void(known: Mapping[int, Version], turn_ids: Collection[str], trained: Collection[int]) -> set[int]:
    """Versions that were trained on one of these turns, and those that were made from them. One whose record was
    damaged may have been made from any before it.

    Args:
        trained: versions that trained samples of these turns name.
    """
    turn_ids = set(turn_ids)
    void: set[int] = set()
    for number in sorted(known):  # a version's parent has a lower number
        manifest = known[number].manifest
        parent = parent_of(manifest)
        if (number in trained or not turn_ids.isdisjoint(manifest.turn_ids)
                or (bool(void) if parent is None else parent in void)):
            void.add(number)
    return void


def _pend(db: sqlite3.Connection, versions: Collection[int], signal: str) -> tuple[int, int]:
    """Let the samples of versions that were taken back wait again, however stale they are; how many there are that a
    step can learn from, and how many can't come back."""
    marks = ",".join("?" * len(versions))
    trained = f"fate = 'trained' AND version IN ({marks})"
    there, lost, signals = db.execute(
        f"SELECT COUNT(payload), COUNT(*) - COUNT(payload), COUNT(payload) FILTER (WHERE {signal}) FROM samples WHERE"
        f" {trained}", list(versions)).fetchone()
    reopen(db, versions)
    db.execute("UPDATE samples SET fate = 'pending', version = NULL, attempts = 0, sampled_from = NULL, again = 1"
               f" WHERE {trained} AND payload NOT NULL", list(versions))
    count(db, "trained", -there)
    return signals, lost
