"""State of the trainer in one SQLite file, and the transactions that span its tables.

One transaction marks a step's samples as trained and its version as the head: the atomic point of a step. Files of a
version are written before it, and deleted at the next start when it never came.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Literal

from openclaw_rl.config import TrainerConfig
from openclaw_rl.observability import turn_spans as traces
from openclaw_rl.privacy import Target, Tombstones
from openclaw_rl.runtime.failpoint import failpoint
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.salvage import Recovery
from openclaw_rl.training.buffer.episode_buffer import EpisodeBuffer
from openclaw_rl.training.buffer.groups import EpisodeGroups
from openclaw_rl.training.buffer.intake import Intake
from openclaw_rl.training.buffer.replay import Replay
from openclaw_rl.training.buffer.sample_buffer import SampleBuffer, signal_condition
from openclaw_rl.training.buffer.validation import NOT_OF_EPISODE
from openclaw_rl.training.forget import Forgetting, Forgotten
from openclaw_rl.training.tables import counters, groups, samples, scores, state, versions, voided
from openclaw_rl.training.tables.counters import Counter, CounterTable
from openclaw_rl.training.tables.groups import GroupTable
from openclaw_rl.training.tables.reasons import VersionStatus
from openclaw_rl.training.tables.samples import SampleTable
from openclaw_rl.training.tables.scores import ScoreTable
from openclaw_rl.training.tables.state import StateTable
from openclaw_rl.training.tables.versions import VersionTable
from openclaw_rl.v1 import turn_pb2, weights_pb2

SCHEMA = "".join(table.SCHEMA for table in (samples, groups, versions, voided, scores, counters, state))


#: Without all of its versions the trainer begins anew, with the turns that were not trained on yet.
RECOVERY = Recovery(
    whole=("versions", "state", "episode_groups", "episodes"),
    alone={"samples": "fate = 'pending' AND group_id IS NULL AND NOT again", "live_scores": "FALSE", "voided": "FALSE"})


class HeadMoved(Exception):
    """The version that a step began from is no longer the one to build on, or a sample of the step was forgotten; the
    step's result is void."""


class TrainerStore:
    """The trainer's state.db. Any thread.

    Args:
        tokens: token ids are trained on, so samples without them can't be; else texts.
        mesh_id: of the mesh whose turns are trained on; "" trains on those of any.

    Attributes:
        intake: takes samples.
        samples: those that wait, and their fates.
        replay: samples of earlier versions, for later steps.
        episodes: groups of episodes that wait.
        versions: all versions and the head.
        scores: of live turns, by version.
        counters, state: counts and single values.
        database: the file.

    Raises (all methods):
        StorageError: the file can't be read or written.
    """

    def __init__(self, path: Path, durability: Literal["group", "strict"], config: TrainerConfig,
                 tokens: bool = True, mesh_id: str = "") -> None:
        self.database = Database(path, durability, SCHEMA, RECOVERY)
        self.state, self.counters = StateTable(self.database), CounterTable(self.database)
        self.versions = VersionTable(self.database, self.state)
        self.scores = ScoreTable(self.database)
        self._samples = SampleTable(self.database, signal_condition(config, tokens))
        self._group_table = GroupTable(self.database)
        self._groups = EpisodeGroups(config, self._group_table, self._samples, self.versions, self.counters)
        self._tombstones = Tombstones(self.database)
        self._forgetting = Forgetting(self._samples, self._groups, self.versions, self.counters)
        self.samples = SampleBuffer(self.database, config, self._samples, self._groups, self.versions, self.counters,
                                    tokens)
        self.replay = Replay(self._samples, self.samples)
        self.episodes = EpisodeBuffer(self.database, self._groups, self._group_table, self._samples, self.samples)
        self.intake = Intake(self.database, config, self._samples, self._group_table, self.scores, self.counters,
                             self._groups, self.samples, self._tombstones, tokens, mesh_id)

    @property
    def problems(self) -> list[str]:
        """What a person should know of the file; see storage.database."""
        return self.database.problems

    def close(self) -> None:
        """Close the file."""
        self.database.close()

    def commit(self, manifest: weights_pb2.VersionManifest, files: Mapping[str, str]) -> None:
        """Keep a version and mark its turns as trained. One that the gate refused does not become the head; its turns
        are trained all the same, so that they never come again.

        Args:
            files: name of each checkpoint file and its SHA-256.

        Raises:
            HeadMoved: its parent is not the head any more, or one of its samples isn't pending; nothing was changed.
        """
        with self.database.transaction() as db:
            if self.versions.head_of(db) != manifest.parent:
                raise HeadMoved
            self.versions.add(db, manifest, files)
            if not all([self._samples.train(db, turn_id, manifest.version) for turn_id in manifest.turn_ids]):
                raise HeadMoved
            self._groups.close_finished(db, trained=True)
            self.counters.add(db, Counter.TRAINED, len(manifest.turn_ids))
            self.counters.add(db, Counter.UPDATES)
            failpoint("training.commit")
        failpoint("training.committed")

    def go_back(self, head: int, version: int, taken_back: Mapping[int, VersionStatus],
                never_served: Mapping[int, VersionStatus]) -> None:
        """Build the next step on another version.

        Args:
            head: the one that it would build on now.
            version: the other one.
            taken_back: versions that are not served any more, and why; a lasting state stands.
            never_served: versions that were made from these and never will be served, and why. Nobody learns from
                their turns by them, so the samples wait again, and their manifests name them no more, but for those
                whose content is gone.

        Raises:
            HeadMoved: `head` is not the head any more: a step has ended. Nothing was changed.
        """
        with self.database.transaction() as db:
            if self.versions.head_of(db) != head:
                raise HeadMoved
            self.versions.move_head_in(db, version, taken_back)
            if not never_served:
                return
            self._groups.reopen(db, never_served)
            there, *_ = self._samples.pend_again(db, never_served, rebuild=False)
            self.counters.add(db, Counter.TRAINED, -there)
            for number, status in never_served.items():
                self.versions.undo(db, number, status, partial(self._samples.is_of, db, number))

    def oldest(self) -> float | None:
        """Return when that was accepted, or its group ready, which has waited longest for a step, seconds since the
        epoch."""
        times = (self._samples.oldest_of_users(), self._group_table.oldest_ready())
        return min((at for at in times if at is not None), default=None)

    def forget(self, target: Target, usable: Collection[int]) -> Forgotten:
        """Delete a session's samples and take back what was learned from them; see forget.py. Blocks.

        Args:
            target: the session's turns.
            usable: versions that training can go on from, beside the base model.
        """
        with self.database.transaction() as db:
            done = self._forgetting.forget(db, target, usable)
            done.removed["set aside"] = self.samples.quarantine.forget(
                db, lambda payload: done.target.has_payload(turn_pb2.Sample, payload))
            self._tombstones.add(db, done.target)
            left = self.samples.drop_of_users(db)  # that were trained on before, and would wait again
        traces.dropped(left, str(NOT_OF_EPISODE))
        return done
