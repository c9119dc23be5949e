"""The trainer's versions, and the one that the next step builds on."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from openclaw_rl.storage.checksum import add_columns, crc, sound
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.quarantine import Quarantine
from openclaw_rl.training.tables import raise_to, set_value
from openclaw_rl.v1 import weights_pb2

#: Beginning of the detail of a version that the policy server rejected.
REJECTED = "rejected: "
#: The same of one that was taken back.
ROLLED_BACK, TAKEN_BACK = "rolled back", "taken back by the watch: "
#: The same of one that was trained on turns that were forgotten; it stays, whatever comes later.
VOID = "void: "
#: The same of one that the gate refused.
REFUSED = "refused by the gate, it never served: "
#: The detail of one whose record is damaged, and until it was found out whether it can be restored.
DAMAGED, UNRESTORED = "its record is damaged", "its record is damaged and was not restored yet"


@dataclass(frozen=True, slots=True)
class Version:
    """A version as it is known."""

    manifest: weights_pb2.VersionManifest
    files: dict[str, str]  #: name of each checkpoint file and its SHA-256
    activated_at: float | None
    detail: str
    lost: bool  #: its checkpoint is damaged: nothing can be built on it

    @property
    def rejected(self) -> bool:
        """The policy server will never take it."""
        return self.detail.startswith(REJECTED)


def refused(manifest: weights_pb2.VersionManifest) -> bool:
    """The gate refused the version: it is kept, and neither served nor built on."""
    return manifest.gate.verdict == weights_pb2.GATE_VERDICT_FAILED


def parent_of(manifest: weights_pb2.VersionManifest) -> int | None:
    """The version that it was made from; None of the base model, and when that is not known any more."""
    return manifest.parent if manifest.HasField("parent") else None


def lineage(parents: Mapping[int, int | None], number: int) -> list[int]:
    """A version and those that it was made from, newest first, as far as they are known.

    Args:
        parents: of each known version.
        number: of the version.
    """
    found: list[int] = []
    at: int | None = number
    while at is not None and at in parents and (not found or at < found[-1]):
        found.append(at)
        at = parents[at]
    return found


class VersionTable:
    """The versions and single values in the trainer's state.db. Any thread.

    Raises (all methods):
        StorageError: the file can't be read or written.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._manifests_aside = Quarantine(db, "manifests")
        self._parents: dict[int, int | None] = {}  # what was read of them; they never change
        self._parents_lock = threading.Lock()
        #: Versions whose record was damaged on disk when the file was opened; see `restore`.
        self.damaged_versions = self._set_damaged_aside()

    def _set_damaged_aside(self) -> list[int]:
        damaged = []
        with self._db.transaction() as db:
            add_columns(db, "versions", {"crc": "INTEGER"})
            for row in db.execute("SELECT version, manifest, checkpoint, crc, detail FROM versions").fetchall():
                if row["detail"] == UNRESTORED:  # the process ended before it came to that
                    damaged.append(row["version"])
                elif not _whole(row):
                    damaged.append(row["version"])
                    self._manifests_aside.keep(db, f"version {row['version']}", "the version's record on the trainer's "
                                               "disk is damaged", row["manifest"])
                    db.execute("UPDATE versions SET manifest = ?, checkpoint = '{}', crc = NULL, lost = 1, detail = ?"
                               " WHERE version = ?", (weights_pb2.VersionManifest(version=row["version"])
                                                      .SerializeToString(), UNRESTORED, row["version"]))
        return damaged

    def restore(self, manifest: weights_pb2.VersionManifest) -> None:
        """Put the manifest of a version whose record was damaged in its place. Nothing can be built on it, since its
        checkpoint's digests are gone, unless all its weights are on disk."""
        payload = manifest.SerializeToString()
        with self._db.transaction() as db:
            db.execute("UPDATE versions SET manifest = ?, crc = ?, lost = 0, detail = '' WHERE version = ?",
                       (payload, crc(payload), manifest.version))
        with self._parents_lock:
            self._parents.clear()

    @property
    def head(self) -> int:
        """The version that the next step builds on; 0 is the base model."""
        return int(self.get("head") or 0)

    @property
    def highest(self) -> int:
        """The highest version number in use anywhere; the next version's is greater."""
        return int(self.get("highest") or 0)

    def add_base(self, manifest: weights_pb2.VersionManifest) -> None:
        """Keep the base model as version 0."""
        with self._db.transaction() as db:
            payload = manifest.SerializeToString()
            db.execute("INSERT OR REPLACE INTO versions (version, manifest, crc, activated_at) VALUES (0, ?, ?,"
                       " (SELECT activated_at FROM versions WHERE version = 0))", (payload, crc(payload)))
        with self._parents_lock:
            self._parents.clear()

    def move_head(self, version: int, taken_back: Mapping[int, str] | None = None) -> None:
        """Let the next step build on another version.

        Args:
            version: its number.
            taken_back: versions that are not served any more, and why; what was told before of why stands.
        """
        told = (ROLLED_BACK, TAKEN_BACK, REFUSED, VOID)
        with self._db.transaction() as db:
            set_value(db, "head", str(version))
            for number, detail in (taken_back or {}).items():
                db.execute("UPDATE versions SET detail = ? WHERE version = ?"
                           + " AND substr(detail, 1, ?) <> ?" * len(told),
                           (detail, number, *(part for text in told for part in (len(text), text))))

    def raise_highest(self, version: int) -> None:
        """Let the next version's number be greater than `version`."""
        with self._db.transaction() as db:
            raise_to(db, "highest", version)

    def versions(self) -> list[Version]:
        """All versions, ascending."""
        return [_version(row) for row in self._db.query("SELECT * FROM versions ORDER BY version")]

    def page(self, before: int | None, limit: int) -> list[Version]:
        """The newest `limit` versions, or of those below the number `before`; ascending."""
        rows = self._db.query("SELECT * FROM versions WHERE version < ? ORDER BY version DESC LIMIT ?",
                              (2**63 - 1 if before is None else before, limit))
        return [_version(row) for row in reversed(rows)]

    def version(self, number: int) -> Version | None:
        """One version, or None."""
        rows = self._db.query("SELECT * FROM versions WHERE version = ?", (number,))
        return _version(rows[0]) if rows else None

    def newest(self) -> Version | None:
        """The version of the highest number, or None."""
        rows = self._db.query("SELECT * FROM versions ORDER BY version DESC LIMIT 1")
        return _version(rows[0]) if rows else None

    def newest_details(self, limit: int) -> list[tuple[int, str]]:
        """Number and detail of the newest versions, newest first."""
        rows = self._db.query("SELECT version, detail FROM versions WHERE version > 0 ORDER BY version DESC LIMIT ?",
                              (limit,))
        return [(row["version"], row["detail"]) for row in rows]

    def activated(self, version: int, at: float, metrics: dict[str, float] | None = None) -> None:
        """A policy server answers with a version.

        Args:
            version: its number.
            at: since when, in seconds since the epoch; kept the first time.
            metrics: figures of the activation, added to the manifest's.
        """
        with self._db.transaction() as db:
            row = db.execute("SELECT manifest FROM versions WHERE version = ?", (version,)).fetchone()
            if row is not None and metrics:
                manifest = weights_pb2.VersionManifest.FromString(row["manifest"])
                manifest.metrics.update(metrics)
                payload = manifest.SerializeToString()
                db.execute("UPDATE versions SET manifest = ?, crc = ? WHERE version = ?",
                           (payload, crc(payload), version))
            db.execute("UPDATE versions SET activated_at = COALESCE(activated_at, ?), detail = CASE WHEN"
                       " substr(detail, 1, ?) = ? THEN detail ELSE '' END WHERE version = ?",
                       (at, len(VOID), VOID, version))
            set_value(db, "active", str(version))

    def note(self, version: int, detail: str) -> None:
        """Why a version is not served."""
        with self._db.transaction() as db:
            db.execute("UPDATE versions SET detail = ? WHERE version = ? AND substr(detail, 1, ?) <> ?",
                       (detail, version, len(VOID), VOID))

    def lineage(self, number: int) -> list[int]:
        """A version and those that it was made from, newest first, as far as they are known. Cheap: only the records
        of versions that are new since the last call are read."""
        return lineage(self._known_parents(), number)

    def made_from(self, number: int) -> list[int]:
        """A version and all that were made from it, ascending."""
        found = {number}
        for version, parent in self._known_parents().items():  # ascending, and a parent has a lower number
            if parent in found:
                found.add(version)
        return sorted(found)

    def _known_parents(self) -> dict[int, int | None]:
        with self._parents_lock:
            for row in self._db.query("SELECT version, manifest FROM versions WHERE version > ? ORDER BY version",
                                      (next(reversed(self._parents), -1),)):
                self._parents[row["version"]] = parent_of(weights_pb2.VersionManifest.FromString(row["manifest"]))
            return self._parents.copy()

    def lose(self, version: int, detail: str) -> None:
        """Nothing can be built on a version any more."""
        with self._db.transaction() as db:
            db.execute("UPDATE versions SET lost = 1, detail = ? WHERE version = ?", (detail, version))

    def get(self, name: str) -> str | None:
        """A single value."""
        rows = self._db.query("SELECT value FROM state WHERE name = ?", (name,))
        return rows[0]["value"] if rows else None

    def set(self, name: str, value: str | None) -> None:
        """Keep a single value; None removes it."""
        with self._db.transaction() as db:
            if value is None:
                db.execute("DELETE FROM state WHERE name = ?", (name,))
            else:
                set_value(db, name, value)


def _whole(row: sqlite3.Row) -> bool:
    if not sound(row["manifest"], row["crc"]):
        return False
    try:
        json.loads(row["checkpoint"])
        return weights_pb2.VersionManifest.FromString(row["manifest"]).version == row["version"]
    except (DecodeError, ValueError, TypeError):
        return False


def _version(row: sqlite3.Row) -> Version:
    return Version(weights_pb2.VersionManifest.FromString(row["manifest"]), json.loads(row["checkpoint"]),
                   row["activated_at"], row["detail"], bool(row["lost"]))
