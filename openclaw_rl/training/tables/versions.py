"""Versions of the policy, and the one that the next step builds on."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from openclaw_rl.storage.checksum import add_columns, crc, sound
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.quarantine import Quarantine
from openclaw_rl.training.tables.reasons import VersionState, VersionStatus
from openclaw_rl.training.tables.state import Key, StateTable
from openclaw_rl.v1 import weights_pb2

SCHEMA = """
CREATE TABLE IF NOT EXISTS versions (
    version INTEGER PRIMARY KEY, manifest BLOB NOT NULL, checkpoint TEXT NOT NULL DEFAULT '{}', activated_at REAL,
    detail TEXT NOT NULL DEFAULT '', lost INTEGER NOT NULL DEFAULT 0, crc INTEGER);
"""

#: States that a rollback does not replace.
_LASTING = {VersionState.ROLLED_BACK, VersionState.TAKEN_BACK, VersionState.REFUSED, VersionState.VOID}


@dataclass(frozen=True, slots=True)
class Version:
    """One version."""

    manifest: weights_pb2.VersionManifest
    files: dict[str, str]  #: name of each checkpoint file and its SHA-256
    activated_at: float | None  #: seconds since the epoch; None: it never answered
    status: VersionStatus
    lost: bool  #: its checkpoint is damaged: nothing can be built on it


def refused(manifest: weights_pb2.VersionManifest) -> bool:
    """Return whether the gate refused a version: it is kept, and neither served nor built on."""
    return manifest.gate.verdict == weights_pb2.GATE_VERDICT_FAILED


def parent_of(manifest: weights_pb2.VersionManifest) -> int | None:
    """Return the version that one was made from; None of the base model, and when it is not known any more."""
    return manifest.parent if manifest.HasField("parent") else None


def lineage(parents: Mapping[int, int | None], number: int) -> list[int]:
    """Return a version and its ancestors, newest first, as far as they are known.

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


def read_manifests(path: Path) -> dict[int, weights_pb2.VersionManifest]:
    """Return the manifests in a trainer's state.db, which it may have open; records that are damaged are left out.

    Raises:
        FileNotFoundError: there is none.
        sqlite3.Error: it can't be read.
    """
    if not path.exists():
        raise FileNotFoundError(path)
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=30)) as db:
        db.row_factory = sqlite3.Row
        return {row["version"]: weights_pb2.VersionManifest.FromString(row["manifest"])
                for row in db.execute("SELECT * FROM versions ORDER BY version") if _whole(row)}


class VersionTable:
    """Table `versions`. Any thread; methods that take `db` are part of the caller's transaction.

    Attributes:
        damaged: versions whose record was damaged on disk when the file was opened; see `restore`.

    Raises (all methods):
        StorageError: the file can't be read or written.
    """

    def __init__(self, database: Database, state: StateTable) -> None:
        self._database, self._state = database, state
        self._quarantine = Quarantine(database, "manifests")
        self._parents: dict[int, int | None] = {}  # of the versions read so far; they never change
        self._parents_lock = threading.Lock()
        self.damaged = self._quarantine_damaged()

    def _quarantine_damaged(self) -> list[int]:
        damaged = []
        with self._database.transaction() as db:
            add_columns(db, "versions", {"crc": "INTEGER"})
            for row in db.execute("SELECT version, manifest, checkpoint, crc, detail FROM versions").fetchall():
                if row["detail"] == VersionState.NOT_RESTORED:  # the process ended before that was settled
                    damaged.append(row["version"])
                elif not _whole(row):
                    damaged.append(row["version"])
                    self._quarantine.keep(db, f"version {row['version']}", "the version's record on the trainer's "
                                          "disk is damaged", row["manifest"])
                    db.execute("UPDATE versions SET manifest = ?, checkpoint = '{}', crc = NULL, lost = 1, detail = ?"
                               " WHERE version = ?", (weights_pb2.VersionManifest(version=row["version"])
                                                      .SerializeToString(), VersionState.NOT_RESTORED, row["version"]))
        return damaged

    def restore(self, manifest: weights_pb2.VersionManifest) -> None:
        """Replace the damaged record of a version. Nothing can be built on it, since its checkpoint's digests are gone,
        unless all its weights are on disk."""
        payload = manifest.SerializeToString()
        with self._database.transaction() as db:
            db.execute("UPDATE versions SET manifest = ?, crc = ?, lost = 0, detail = '' WHERE version = ?",
                       (payload, crc(payload), manifest.version))
        self._forget_parents()

    # The head

    @property
    def head(self) -> int:
        """Version that the next step builds on; 0 is the base model."""
        return int(self._state.get(Key.HEAD) or 0)

    @property
    def highest(self) -> int:
        """Highest version number in use anywhere; the next version's is greater."""
        return int(self._state.get(Key.HIGHEST) or 0)

    @property
    def active(self) -> int | None:
        """Version that the policy server answers with; None until it was heard from."""
        value = self._state.get(Key.ACTIVE)
        return None if value is None else int(value)

    def head_of(self, db: sqlite3.Connection) -> int:
        """Return the head as the transaction sees it."""
        return self._state.number(db, Key.HEAD)

    def set_head(self, db: sqlite3.Connection, version: int) -> None:
        """Build the next step on a version."""
        self._state.put(db, Key.HEAD, str(version))

    def move_head(self, version: int) -> None:
        """Build the next step on another version."""
        with self._database.transaction() as db:
            self.set_head(db, version)

    def move_head_in(self, db: sqlite3.Connection, version: int, taken_back: Mapping[int, VersionStatus]) -> None:
        """Build the next step on another version, since some are not served any more: why; a lasting state stands."""
        self.set_head(db, version)
        for number, status in taken_back.items():
            if self._state_of(db, number) not in _LASTING:
                self.set_status(db, number, status)

    def undo(self, db: sqlite3.Connection, version: int, status: VersionStatus, stays: Callable[[str], bool]) -> None:
        """Note that nothing will ever come of a version: it can't be built on.

        Args:
            stays: whether a turn that it was trained on stays its own, since it can't be trained on again.
        """
        row = db.execute("SELECT manifest FROM versions WHERE version = ?", (version,)).fetchone()
        manifest = weights_pb2.VersionManifest.FromString(row["manifest"])
        manifest.turn_ids[:] = [*filter(stays, manifest.turn_ids)]
        payload = manifest.SerializeToString()
        db.execute("UPDATE versions SET manifest = ?, crc = ?, lost = 1, detail = ? WHERE version = ?",
                   (payload, crc(payload), str(status), version))

    def raise_highest(self, version: int) -> None:
        """Make the next version's number greater than `version`."""
        with self._database.transaction() as db:
            self._state.raise_to(db, Key.HIGHEST, version)

    # Writing

    def add_base(self, manifest: weights_pb2.VersionManifest) -> None:
        """Keep the base model as version 0."""
        with self._database.transaction() as db:
            payload = manifest.SerializeToString()
            db.execute("INSERT OR REPLACE INTO versions (version, manifest, crc, activated_at) VALUES (0, ?, ?,"
                       " (SELECT activated_at FROM versions WHERE version = 0))", (payload, crc(payload)))
        self._forget_parents()

    def add(self, db: sqlite3.Connection, manifest: weights_pb2.VersionManifest, files: Mapping[str, str]) -> None:
        """Keep a new version; it is the head unless the gate refused it."""
        payload, status = manifest.SerializeToString(), VersionStatus(VersionState.NOT_SENT)
        if refused(manifest):
            status = VersionStatus(VersionState.REFUSED, "; ".join(manifest.gate.failures))
        else:
            self.set_head(db, manifest.version)
        db.execute("INSERT INTO versions (version, manifest, crc, checkpoint, detail) VALUES (?, ?, ?, ?, ?)",
                   (manifest.version, payload, crc(payload), json.dumps(files), str(status)))
        self._state.raise_to(db, Key.HIGHEST, manifest.version)

    def activated(self, version: int, at: float, metrics: Mapping[str, float] | None = None) -> None:
        """Note that a policy server answers with a version.

        Args:
            version: its number.
            at: since when, in seconds since the epoch; kept the first time.
            metrics: figures of the activation, added to the manifest's.
        """
        with self._database.transaction() as db:
            row = db.execute("SELECT manifest FROM versions WHERE version = ?", (version,)).fetchone()
            if row is not None and metrics:
                manifest = weights_pb2.VersionManifest.FromString(row["manifest"])
                manifest.metrics.update(metrics)
                payload = manifest.SerializeToString()
                db.execute("UPDATE versions SET manifest = ?, crc = ? WHERE version = ?",
                           (payload, crc(payload), version))
            db.execute("UPDATE versions SET activated_at = COALESCE(activated_at, ?) WHERE version = ?", (at, version))
            if self._state_of(db, version) is not VersionState.VOID:
                self.set_status(db, version, VersionStatus())
            self._state.put(db, Key.ACTIVE, str(version))

    def note(self, version: int, status: VersionStatus) -> None:
        """Note why a version is not served; one that is void stays so."""
        with self._database.transaction() as db:
            if self._state_of(db, version) is not VersionState.VOID:
                self.set_status(db, version, status)

    def lose(self, version: int, status: VersionStatus) -> None:
        """Note that nothing can be built on a version any more."""
        with self._database.transaction() as db:
            self.lose_in(db, version, status)

    def lose_in(self, db: sqlite3.Connection, version: int, status: VersionStatus) -> None:
        """`lose`, in the caller's transaction."""
        db.execute("UPDATE versions SET lost = 1, detail = ? WHERE version = ?", (str(status), version))

    def set_status(self, db: sqlite3.Connection, version: int, status: VersionStatus) -> None:
        """Replace the status of a version."""
        db.execute("UPDATE versions SET detail = ? WHERE version = ?", (str(status), version))

    # Reading

    def all(self) -> list[Version]:
        """Return all versions, ascending."""
        return self._read("ORDER BY version")

    def get(self, number: int) -> Version | None:
        """Return one version, or None."""
        return next(iter(self._read("WHERE version = ?", number)), None)

    def page(self, before: int | None, limit: int) -> list[Version]:
        """Return the newest `limit` versions, or of those below the number `before`; ascending."""
        return self._read("WHERE version < ? ORDER BY version DESC LIMIT ?", 2**63 - 1 if before is None else before,
                          limit)[::-1]

    def newest(self) -> Version | None:
        """Return the version of the highest number, or None."""
        return next(iter(self._read("ORDER BY version DESC LIMIT 1")), None)

    def newest_numbers(self, limit: int) -> list[int]:
        """Return the numbers of the newest versions, newest first."""
        return [row["version"] for row in self._database.query(
            "SELECT version FROM versions ORDER BY version DESC LIMIT ?", (limit,))]

    def newest_statuses(self, limit: int) -> list[tuple[int, VersionStatus]]:
        """Return number and status of the newest versions, newest first."""
        rows = self._database.query("SELECT version, detail FROM versions WHERE version > 0 ORDER BY version DESC"
                                    " LIMIT ?", (limit,))
        return [(row["version"], VersionStatus.parse(row["detail"])) for row in rows]

    def age(self, db: sqlite3.Connection, version: int) -> int:
        """Return how many versions were made after `version`, up to the head. Numbers that no version has don't count;
        versions that were rolled back do."""
        row = db.execute("SELECT COUNT(*) AS age FROM versions WHERE version > ? AND version <= ?",
                         (version, self.head_of(db))).fetchone()
        return int(row["age"])

    def lineage(self, number: int) -> list[int]:
        """Return a version and its ancestors, newest first, as far as they are known. Only the records of versions that
        are new since the last call are read."""
        return lineage(self._known_parents(), number)

    def made_from(self, number: int) -> list[int]:
        """Return a version and all its descendants, ascending."""
        found = {number}
        for version, parent in self._known_parents().items():  # ascending, and a parent has a lower number
            if parent in found:
                found.add(version)
        return sorted(found)

    def _read(self, condition: str, *values: object) -> list[Version]:
        return [Version(weights_pb2.VersionManifest.FromString(row["manifest"]), json.loads(row["checkpoint"]),
                        row["activated_at"], VersionStatus.parse(row["detail"]), bool(row["lost"]))
                for row in self._database.query(f"SELECT * FROM versions {condition}", values)]

    def _state_of(self, db: sqlite3.Connection, version: int) -> VersionState | None:
        row = db.execute("SELECT detail FROM versions WHERE version = ?", (version,)).fetchone()
        return VersionStatus.parse(row["detail"]).state if row else None

    def _known_parents(self) -> dict[int, int | None]:
        with self._parents_lock:
            for row in self._database.query("SELECT version, manifest FROM versions WHERE version > ? ORDER BY version",
                                            (next(reversed(self._parents), -1),)):
                self._parents[row["version"]] = parent_of(weights_pb2.VersionManifest.FromString(row["manifest"]))
            return self._parents.copy()

    def _forget_parents(self) -> None:
        with self._parents_lock:
            self._parents.clear()


def _whole(row: sqlite3.Row) -> bool:
    if not sound(row["manifest"], row["crc"]):
        return False
    try:
        json.loads(row["checkpoint"])
        return bool(weights_pb2.VersionManifest.FromString(row["manifest"]).version == row["version"])
    except (DecodeError, ValueError, TypeError):
        return False
