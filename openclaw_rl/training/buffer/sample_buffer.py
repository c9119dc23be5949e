"""Samples that wait for a step: which come next, and which are dropped before."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Sequence

from google.protobuf.message import DecodeError

from openclaw_rl.config import TrainerConfig
from openclaw_rl.observability import turn_spans as traces
from openclaw_rl.storage.checksum import sound
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.quarantine import Quarantine
from openclaw_rl.training.buffer import backlog
from openclaw_rl.training.buffer.groups import EpisodeGroups
from openclaw_rl.training.buffer.turns import turn_id
from openclaw_rl.training.buffer.validation import NOT_OF_EPISODE, validate_sample
from openclaw_rl.training.tables.counters import Counter, CounterTable
from openclaw_rl.training.tables.reasons import Drop, DropReason, Fate, drop
from openclaw_rl.training.tables.samples import PendingCount, SampleTable
from openclaw_rl.training.tables.versions import VersionTable
from openclaw_rl.v1 import trainer_pb2, turn_pb2

#: Steps that a sample may be part of without one of them ending: a sample that takes the process with it (out of
#: memory) must not do so for ever.
MAX_ATTEMPTS = 5

STALE_GROUP = drop(DropReason.STALE, "another sample of its group of episodes is")
NO_RIDE = drop(DropReason.NO_SIGNAL, "neither a score nor a hint, and no step came that it could ride along with")

_FATES = {Fate.PENDING: trainer_pb2.SAMPLE_FATE_PENDING, Fate.TRAINED: trainer_pb2.SAMPLE_FATE_TRAINED,
          Fate.DROPPED: trainer_pb2.SAMPLE_FATE_DROPPED}


class SampleBuffer:
    """Pending samples. Any thread; methods that take `db` are part of the caller's transaction.

    Attributes:
        quarantine: samples that can't be ours, and those that were damaged on disk.

    Raises (all methods):
        StorageError: the file can't be read or written.
    """

    def __init__(self, database: Database, config: TrainerConfig, samples: SampleTable, groups: EpisodeGroups,
                 versions: VersionTable, counters: CounterTable, tokens: bool) -> None:
        """`tokens`: token ids are trained on; else texts."""
        self._database, self._config, self._samples, self._groups = database, config, samples, groups
        self._versions, self._counters = versions, counters
        self._of_episodes_only = tokens and config.algorithm == "grpo"
        self._max_tokens = config.max_tokens_per_sample if tokens else None
        self.quarantine = Quarantine(database, "samples")
        with database.transaction() as db:
            left = self.drop_of_users(db)
        traces.dropped(left, str(NOT_OF_EPISODE))

    # What waits

    def pending(self) -> PendingCount:
        """Count the samples of users' turns that wait."""
        return self._samples.pending(self._config.max_per_session, self._config.max_per_branch)

    def rebuilding(self) -> int:
        """Count the samples with a signal that are pending again since the version that they trained was taken back."""
        return self._samples.rebuilding()

    def newest(self, limit: int) -> list[tuple[Fate, DropReason, bool]]:
        """Return fate, reason and whether the algorithm learns from it, of the newest samples."""
        return self._samples.newest(limit)

    def statuses(self, turn_ids: Sequence[str]) -> list[trainer_pb2.SampleStatus]:
        """Return the fates of these turns in this order, unknown ones left out; of all pending ones when none are
        given."""
        return [_status(row) for row in self._samples.statuses(turn_ids)]

    # The next step

    def batch(self, limit: int) -> list[turn_pb2.Sample]:
        """Return the samples of the next step on users' turns.

        At most `limit`, each kind oldest first: those with a signal, then at most as many neutral ones, which cost as
        much time and bring little. Of one branch there are at most `max_per_branch`, and of all branches of one session
        at most `max_per_session`; the oldest with a signal first. More of them while so many wait that they would be
        stale before their turn; see backlog.py. One that is stale, or damaged, is dropped.
        """
        self.drop_stale()
        found = self.limits(limit)
        signals = self._next(found, found.samples, signal=True)
        return signals + self._next(found, min(len(signals), limit - len(signals)), signal=False)

    def limits(self, limit: int) -> backlog.StepLimits:
        """Return the limits of the next step on users' turns, which usually takes `limit` samples."""
        with self._database.reading() as db:
            rows = self._samples.waiting()
            left = {version: max(self._config.max_staleness + 1 - self._versions.age(db, version), 1)
                    for version in {row["sampled_from"] for row in rows} - {None}}
        return backlog.limits(self._config, limit, (backlog.Waiting(
            row["session"], row["branch"], left.get(row["sampled_from"], self._config.max_staleness + 1), row["count"])
            for row in rows))

    def _next(self, limits: backlog.StepLimits, limit: int, *, signal: bool) -> list[turn_pb2.Sample]:
        while limit > 0:
            rows = self._samples.next_batch(limits, limit, signal=signal)
            samples = self.read(rows)
            if len(samples) == len(rows):
                return list(samples.values())
        return []

    def read(self, rows: Sequence[sqlite3.Row]) -> dict[str, turn_pb2.Sample]:
        """Return the samples of rows by turn; those that are damaged are quarantined, and dropped or, if
        trained on before, never read again."""
        decoded = {row["turn_id"]: self._decode(row) for row in rows}
        samples = {turn_id: sample for turn_id, sample in decoded.items() if sample is not None}
        if damaged := {row["turn_id"]: row["payload"] for row in rows if row["turn_id"] not in samples}:
            with self._database.transaction() as db:
                for turn_id, payload in damaged.items():
                    self.quarantine.keep(db, turn_id, "the sample's record on the trainer's disk is damaged", payload)
                self._samples.lose_content(db, damaged)
            self.drop(list(damaged), drop(DropReason.DAMAGED))
        return samples

    def _decode(self, row: sqlite3.Row) -> turn_pb2.Sample | None:
        if not sound(row["payload"], row["crc"]):
            return None
        try:
            sample = turn_pb2.Sample.FromString(row["payload"] or b"")
        except (DecodeError, TypeError):
            return None
        return sample if turn_id(sample) == row["turn_id"] and not validate_sample(sample, self._max_tokens) else None

    def attempt(self, turn_ids: Sequence[str]) -> list[str]:
        """Note that a step on these samples begins; return those that had `MAX_ATTEMPTS` without an end before."""
        with self._database.transaction() as db:
            return self._samples.attempt(db, turn_ids, MAX_ATTEMPTS)

    def undo_attempt(self, turn_ids: Sequence[str]) -> None:
        """Take an attempt back that ended for a reason that was not the samples'."""
        with self._database.transaction() as db:
            self._samples.undo_attempt(db, turn_ids)

    # Dropping

    def drop(self, turn_ids: Sequence[str], why: Drop, *, skipped_step: bool = False) -> None:
        """Drop pending samples.

        Args:
            skipped_step: a step on them made no version.
        """
        with self._database.transaction() as db:
            dropped = self.drop_in(db, turn_ids, why)
            self._counters.add(db, Counter.STEPS_SKIPPED, int(skipped_step))
        traces.dropped(dropped, str(why))

    def drop_in(self, db: sqlite3.Connection, turn_ids: Sequence[str], why: Drop) -> list[str]:
        """Drop pending samples; return the turns of those that were."""
        dropped = self._samples.drop(db, turn_ids, why)
        self._counters.add_dropped(db, why.code, len(dropped))
        self._groups.close_finished(db, trained=False)
        return dropped

    def reject(self, sample: turn_pb2.Sample, why: Drop) -> None:
        """Drop a pending sample that can't be ours, and quarantine it."""
        with self._database.transaction() as db:
            self.quarantine.keep(db, turn_id(sample), str(why), sample.SerializeToString())
        self.drop([turn_id(sample)], why)

    def drop_stale(self) -> int:
        """Drop the samples that more than `max_staleness` versions followed since, and with one of an episode its whole
        group; return how many stale ones there were."""
        with self._database.transaction() as db:
            stale = {version: why for version in self._samples.sampled_from(db) if (why := self.stale(db, version))}
            turns = {version: self._samples.pending_of_version(db, version) for version in stale}
            groups = self._samples.groups_of_versions(db, stale)
            dropped = [(self.drop_in(db, turns[version], why), why) for version, why in stale.items()]
            dropped.append((self.drop_in(db, self._groups.close_stale(db, groups), STALE_GROUP), STALE_GROUP))
        for turn_ids, why in dropped:
            traces.dropped(turn_ids, str(why))
        return sum(map(len, turns.values()))

    def stale(self, db: sqlite3.Connection, version: int) -> Drop | None:
        """Return why a sample of a version is too old to be trained on."""
        if (age := self._versions.age(db, version)) > self._config.max_staleness:
            return drop(DropReason.STALE, f"sampled from version {version}, {age} versions old")
        return None

    def drop_neutral(self, older_than: float, beyond: int) -> int:
        """Drop neutral samples that waited since before `older_than`, and the oldest of more than `beyond`. How long
        those waited that were accepted before the clock was set back isn't known: they go too."""
        future = time.time() + 1
        old = [turn_id for i, (turn_id, accepted_at) in enumerate(self._samples.neutral())
               if i >= beyond or not older_than <= accepted_at <= future]
        if old:
            self.drop(old, NO_RIDE)
        return len(old)

    def oldest_neutral(self) -> float | None:
        """Return when the neutral sample that waits for longest was accepted, seconds since the epoch."""
        return min((accepted_at for _, accepted_at in self._samples.neutral()), default=None)

    def drop_of_users(self, db: sqlite3.Connection) -> list[str]:
        """Drop the samples of users' turns that wait since another algorithm was configured, when the present one
        learns nothing from them; return their turns."""
        if not self._of_episodes_only:
            return []
        return self.drop_in(db, self._samples.pending_of_users(db), NOT_OF_EPISODE)

    def prune_content(self, kept: Collection[int]) -> None:
        """Delete the content of trained samples, but for those of the versions that are kept."""
        with self._database.transaction() as db:
            self._samples.prune_content(db, kept)


def signal_condition(config: TrainerConfig, tokens: bool) -> str:
    """Return the SQL condition of a user's sample that the algorithm learns something from.

    Args:
        tokens: token ids are trained on; of texts both score and hint are of use.
    """
    algorithm = config.algorithm if tokens else None
    rewards = algorithm in (None, "binary_rl") or (algorithm == "combine" and config.reward_weight > 0)
    hints = algorithm not in ("binary_rl", "grpo")  # grpo keeps no turns of users
    return " OR ".join(["score != 0"] * rewards + ["hinted"] * hints) or "FALSE"


def _status(row: sqlite3.Row) -> trainer_pb2.SampleStatus:
    fate = Fate(row["fate"])
    status = trainer_pb2.SampleStatus(turn_id=row["turn_id"], fate=_FATES[fate], version=row["version"],
                                      reason=row["reason"], score=row["score"],
                                      advantage=row["advantage"] if fate is Fate.TRAINED else None)
    status.accepted_at.FromNanoseconds(int(row["accepted_at"] * 1e9))
    return status
