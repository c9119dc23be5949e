"""What the trainer keeps in SQLite: samples and their fates, versions, where training stands.

One transaction marks a step's samples as trained and its version as the head: the atomic point of a step. Files of
a version are written before it, and deleted at the next start when it never came.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from openclaw_rl.config import TrainerConfig
from openclaw_rl.observability import turn_spans as traces
from openclaw_rl.privacy import Target
from openclaw_rl.storage.checksum import crc
from openclaw_rl.storage.database import Database
from openclaw_rl.training import forget as forgetting
from openclaw_rl.training.buffer import groups
from openclaw_rl.training.buffer.episode_samples import EpisodeSampleTable
from openclaw_rl.training.buffer.samples import MAX_ATTEMPTS, NOT_OF_EPISODE, Pending
from openclaw_rl.training.release import live_scores
from openclaw_rl.training.release.version_table import REFUSED, REJECTED, Version, VersionTable, refused
from openclaw_rl.training.tables import SCHEMA, count, raise_to, set_value
from openclaw_rl.v1 import turn_pb2, weights_pb2

__all__ = ["MAX_ATTEMPTS", "REJECTED", "HeadMoved", "Pending", "TrainerStore", "Version"]


class HeadMoved(Exception):
    """The version that a step began from is no longer the one to build on, or a sample of the step was forgotten; the
    step's result is void."""


class TrainerStore(EpisodeSampleTable, VersionTable):
    """The trainer's state.db. Any thread.

    Args:
        tokens: samples without token ids can't be trained on.

    Raises (all methods):
        StorageError: the file can't be read or written.
    """

    def __init__(self, path: Path, durability: Literal["group", "strict"], config: TrainerConfig,
                 tokens: bool = True) -> None:
        db = Database(path, durability, SCHEMA + live_scores.SCHEMA + forgetting.SCHEMA + groups.SCHEMA)
        #: How the live turns of each version were judged.
        self.live = live_scores.LiveScores(db)
        EpisodeSampleTable.__init__(self, db, config, tokens)
        VersionTable.__init__(self, db)

    @property
    def problems(self) -> list[str]:
        """See storage.database.Database."""
        return self._db.problems

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def commit(self, manifest: weights_pb2.VersionManifest, files: dict[str, str]) -> None:
        """The atomic point: the version is the head and its turns are trained. One that the gate refused does not
        become the head; its turns are trained all the same, so that they never come again.

        Raises:
            HeadMoved: its parent is not the head any more, or one of its samples isn't pending; nothing was changed.
        """
        with self._db.transaction() as db:
            head = db.execute("SELECT value FROM state WHERE name = 'head'").fetchone()
            if int(head["value"] if head else 0) != manifest.parent:
                raise HeadMoved
            payload = manifest.SerializeToString()
            db.execute("INSERT INTO versions (version, manifest, crc, checkpoint, detail) VALUES (?, ?, ?, ?, ?)",
                       (manifest.version, payload, crc(payload), json.dumps(files),
                        f"{REFUSED}{'; '.join(manifest.gate.failures)}" if refused(manifest) else "not sent yet"))
            for turn_id in manifest.turn_ids:
                # What it holds stays until the version is deleted, for a rebuild without other turns.
                done = db.execute("UPDATE samples SET fate = 'trained', version = ? WHERE turn_id = ? AND fate ="
                                  " 'pending'", (manifest.version, turn_id))
                if not done.rowcount:
                    raise HeadMoved
            self.groups.close_finished(db, trained=True)
            count(db, "trained", len(manifest.turn_ids))
            count(db, "updates", 1)
            if not refused(manifest):
                set_value(db, "head", str(manifest.version))
            raise_to(db, "highest", manifest.version)

    def forget(self, target: Target, usable: Collection[int]) -> forgetting.Forgotten:
        """Let a session's samples and what was learned from them go; see forget.py. Blocks; call it on a thread.

        Args:
            target: what is to go.
            usable: versions that training can go on from, beside the base model.
        """
        with self._db.transaction() as db:
            known = {version.manifest.version: version for version in self.versions()}
            done = forgetting.forget(db, target, known, self.head, usable, self._learnable)
            done.removed["set aside"] = self.quarantine.forget(
                db, lambda payload: done.target.has_payload(turn_pb2.Sample, payload))
            self._tombstones.add(db, done.target)
            left = self._drop_of_users(db)  # that were trained on before, and would wait again
        traces.dropped(left, NOT_OF_EPISODE)
        return done

    @property
    def file(self) -> Database:
        """The file itself."""
        return self._db
