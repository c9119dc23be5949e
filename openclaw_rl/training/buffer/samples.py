"""The trainer's samples: those that wait for a step, and the fate of each."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from openclaw_rl.config import TrainerConfig
from openclaw_rl.delivery.validation import validate_id
from openclaw_rl.observability import turn_spans as traces
from openclaw_rl.privacy import Tombstones
from openclaw_rl.storage.checksum import content_key, crc, sound
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.inbox import IdConflict
from openclaw_rl.storage.quarantine import Quarantine
from openclaw_rl.training.buffer import groups
from openclaw_rl.training.buffer.examples import problem, sampled_from, truncated, unwanted
from openclaw_rl.training.buffer.groups import Groups
from openclaw_rl.training.buffer.retention import prune
from openclaw_rl.training.forget import let_go, prune_content
from openclaw_rl.training.release import live_scores
from openclaw_rl.training.tables import age_of, count
from openclaw_rl.v1 import common_pb2, trainer_pb2, turn_pb2

logger = logging.getLogger(__name__)

#: Steps that a sample may be part of without one of them ending: a sample that takes the process with it (out of
#: memory) must not do so for ever.
MAX_ATTEMPTS = 5

#: Columns that came later, for files of before. What is not known of their samples limits nothing.
_NEW_COLUMNS = {"session": "TEXT NOT NULL DEFAULT ''", "sampled_from": "INTEGER", "branch": "TEXT NOT NULL DEFAULT ''",
                "crc": "INTEGER", "content": "INTEGER", "again": "INTEGER NOT NULL DEFAULT 0", **groups.COLUMNS}

#: Classes of reasons for which a sample is kept aside: it does not fit together, or belongs to another model.
_ASIDE = {"bad token record", "bad score", "bad episode"}
#: Samples accepted between two deletions of old fates.
_PRUNE_EVERY = 1_000

#: Columns that a status is made of: not the payload, which may be large.
_STATUS = "turn_id, fate, version, reason, score, accepted_at, advantage"

#: Turns that were dropped, and why.
_Gone = tuple[list[str], str]

NOT_OF_EPISODE = "not of an episode: algorithm grpo learns from episodes only"

_FATES = {"pending": trainer_pb2.SAMPLE_FATE_PENDING, "trained": trainer_pb2.SAMPLE_FATE_TRAINED,
          "dropped": trainer_pb2.SAMPLE_FATE_DROPPED}


@dataclass(frozen=True, slots=True)
class Pending:
    """Samples of users' turns that wait for a step."""

    total: int
    signal: int  #: those that a step can learn from, of one session and of one branch at most as many as it takes
    oldest_signal: float | None  #: when the oldest of those was accepted, seconds since the epoch
    held: int = 0  #: those that the next step can't take, since it takes enough others of their sessions or branches


class SampleTable:
    """The samples in the trainer's state.db. Any thread.

    Raises (all methods):
        StorageError: the file can't be read or written.
    """

    def __init__(self, db: Database, config: TrainerConfig, tokens: bool = True) -> None:
        """`tokens`: samples without token ids can't be trained on."""
        self._db = db
        self._add_columns()
        self._tombstones = Tombstones(db)
        self.quarantine = Quarantine(db, "samples")  #: samples that can't be ours, and those that were damaged on disk
        self._accepted = 0  # since old fates were last deleted
        self._config, self._tokens = config, tokens
        self.groups = Groups(config)  #: of episodes
        self._max_tokens = config.max_tokens_per_sample if tokens else None
        # Of texts both are of use; `grpo` keeps no turns of users.
        algorithm = config.algorithm if tokens else None
        rewards = algorithm in (None, "binary_rl") or (algorithm == "combine" and config.reward_weight > 0)
        hints = algorithm not in ("binary_rl", "grpo")
        #: Condition of a user's sample that the algorithm learns something from, beside staying close to the base
        #: model.
        self._signal = " OR ".join(["score != 0"] * rewards + ["hinted"] * hints) or "FALSE"
        #: The same of any sample: of an episode's, its group decides.
        self._learnable = f"group_id NOT NULL OR {self._signal}"
        with db.transaction() as transaction:
            left = self._drop_of_users(transaction)
        traces.dropped(left, NOT_OF_EPISODE)

    def _add_columns(self) -> None:
        there = {row["name"] for row in self._db.query("PRAGMA table_info(samples)")}
        with self._db.transaction() as db:
            for name in _NEW_COLUMNS.keys() - there:
                db.execute(f"ALTER TABLE samples ADD COLUMN {name} {_NEW_COLUMNS[name]}")
            # A sample without a session is one of its own; the same of a branch.
            for name in ("session", "branch"):
                db.execute(f"UPDATE samples SET {name} = turn_id WHERE {name} = '' AND fate = 'pending'")
            db.execute(groups.INDEX)

    def accept(self, samples: Sequence[turn_pb2.Sample]) -> list[common_pb2.Ack]:
        """Keep new samples, in one transaction; those that can't be trained on are dropped at once. What they tell of
        episodes is taken all the same."""
        acks: list[common_pb2.Ack] = []
        gone: list[_Gone] = []
        with self._db.transaction() as db:
            for sample in samples:
                turn_id = sample.transition.turn.turn_id
                if self._tombstones.cover(sample):
                    let_go(db, turn_id)
                    acks.append(common_pb2.Ack(id=turn_id, status=common_pb2.ACK_STATUS_ACCEPTED))
                    continue
                try:
                    if rejection := validate_id("transition.turn.turn_id", turn_id):
                        raise IdConflict(rejection.message)
                    new = self._insert(db, turn_id, sample, gone)
                except IdConflict as error:
                    self.quarantine.keep(db, turn_id, str(error), sample.SerializeToString())
                    acks.append(common_pb2.Ack(id=turn_id, status=common_pb2.ACK_STATUS_REJECTED, reason=str(error)))
                    continue
                acks.append(common_pb2.Ack(id=turn_id, status=common_pb2.ACK_STATUS_ACCEPTED if new
                                           else common_pb2.ACK_STATUS_DUPLICATE))
        fresh = {ack.id for ack in acks}  # what becomes of those is told as they are
        for turn_ids, reason in gone:
            traces.dropped([turn_id for turn_id in turn_ids if turn_id not in fresh], reason)
        return acks

    def _insert(self, db: sqlite3.Connection, turn_id: str, sample: turn_pb2.Sample, gone: list[_Gone]) -> bool:
        """Keep one; false when it is there already.

        Args:
            gone: gets the samples of its group that are dropped because of it.
        """
        turn, judgement, content = sample.transition.turn, sample.judgement, content_key(sample)
        of_episode = turn.HasField("episode")
        misfit = self.groups.misfit(db, sample) if of_episode else None
        reason = problem(sample, self._max_tokens) or unwanted(turn, self._config) or misfit or self._of_no_use(turn)
        version = None if reason else sampled_from(turn)
        if version is not None and (age := age_of(db, version)) > self._config.max_staleness:
            reason = _stale(version, age)
        said = live_scores.opinion(sample)  # before the score is changed for the training
        penalised = self._config.truncated == "penalise" and truncated(turn)
        if not reason and penalised:
            judgement.score = -1
        payload = sample.SerializeToString()
        done = db.execute(
            "INSERT OR IGNORE INTO samples (turn_id, fate, reason, score, hinted, accepted_at, payload, session,"
            " sampled_from, branch, crc, content) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (turn_id, "dropped" if reason else "pending", reason or "", None if judgement.failed else judgement.score,
             bool(judgement.hint.strip()), time.time(), None if reason else payload,
             turn.session_id or turn_id, version, turn.branch_id or turn_id, crc(payload), content))
        if not done.rowcount:
            first = db.execute("SELECT content FROM samples WHERE turn_id = ?", (turn_id,)).fetchone()["content"]
            if first not in (None, content):
                raise IdConflict("transition.turn.turn_id: a sample of this id and another content came before; "
                                 "that one stands")
            return False
        if reason and _reason_class(reason) in _ASIDE:
            self.quarantine.keep(db, turn_id, reason, payload)
        if of_episode and self._tokens and not (misfit or "").startswith("bad episode"):
            gone += self._note_episode(db, sample, penalised, stale=_reason_class(reason or "") == "stale")
        self._accepted += 1
        if self._accepted >= _PRUNE_EVERY:
            self._accepted = 0
            prune(db)
            groups.prune_groups(db)
        count(db, "accepted", 1)
        live_scores.note(db, said)
        if reason:
            count(db, f"dropped:{_reason_class(reason)}", 1)
        return True

    def _of_no_use(self, turn: turn_pb2.Turn) -> str | None:
        """Why nothing that is configured learns from such a turn."""
        if turn.HasField("episode"):
            return None if self._tokens else "of an episode: the playbook of an API model does not learn from episodes"
        if self._tokens and self._config.algorithm == "grpo":
            return NOT_OF_EPISODE
        return None

    def _drop_of_users(self, db: sqlite3.Connection) -> list[str]:
        """Drop the samples of users' turns that wait since another algorithm was configured, when the present one
        learns nothing from them."""
        if not self._tokens or self._config.algorithm != "grpo":
            return []
        return self._drop(db, [row["turn_id"] for row in db.execute(
            "SELECT turn_id FROM samples WHERE fate = 'pending' AND group_id IS NULL")], NOT_OF_EPISODE)

    def _note_episode(self, db: sqlite3.Connection, sample: turn_pb2.Sample, penalised: bool,
                      stale: bool) -> list[_Gone]:
        """Let the group know of a new sample; its others go when they can't be trained on any more."""
        step = sample.transition.turn.episode
        gone: list[_Gone] = []
        if broken := self.groups.heard(db, sample, penalised):
            gone.append((self._drop(db, [row["turn_id"] for row in db.execute(
                "SELECT turn_id FROM samples WHERE group_id = ? AND episode_id = ? AND fate = 'pending'",
                (step.group_id, step.episode_id))], broken), broken))
        if stale:
            gone.append((self._drop(db, self.groups.close_stale(db, [step.group_id]), _STALE_GROUP), _STALE_GROUP))
        return gone

    def oldest(self) -> float | None:
        """When that was accepted, or its group ready, which has waited longest for a step, seconds since the epoch."""
        at = self._db.query("SELECT MIN(accepted_at) AS at FROM samples WHERE fate = 'pending' AND group_id IS NULL"
                            " UNION SELECT MIN(ready_at) FROM episode_groups WHERE state = 'ready'")
        return min((row["at"] for row in at if row["at"] is not None), default=None)

    def newest_samples(self, limit: int) -> list[tuple[str, str, bool]]:
        """Fate, class of its reason and whether the algorithm learns from it, of the newest samples."""
        rows = self._db.query(f"SELECT fate, reason, IFNULL({self._learnable}, 0) AS signal FROM samples ORDER BY seq"
                              " DESC LIMIT ?", (limit,))
        return [(row["fate"], _reason_class(row["reason"]), bool(row["signal"])) for row in rows]

    def forgot(self, sample: turn_pb2.Sample) -> bool:
        """Whether the sample's session was forgotten after its turn was asked for."""
        return self._tombstones.cover(sample)

    def rebuilding(self) -> int:
        """Samples with a signal that are pending again since the version that they trained was taken back."""
        return int(self._db.query("SELECT COUNT(*) AS n FROM samples WHERE fate = 'pending' AND again AND"
                                  f" ({self._learnable})")[0]["n"])

    def prune_content(self, kept: Collection[int]) -> None:
        """Delete what trained samples hold, but for those of the versions that are kept."""
        with self._db.transaction() as db:
            prune_content(db, kept)

    def pending(self) -> Pending:
        """How many samples of users' turns wait, and since when."""
        limits = {"session": self._config.max_per_session, "branch": self._config.max_per_branch}
        row = self._db.query(
            "SELECT IFNULL(SUM(total), 0) AS total, IFNULL(SUM(MIN(signals, :session)), 0) AS signal, MIN(oldest) AS"
            " oldest, IFNULL(SUM(total - MIN(takes, :session)), 0) AS held FROM (SELECT SUM(count) AS total,"
            " SUM(MIN(count, :branch)) AS takes, SUM(MIN(signals, :branch)) AS signals, MIN(oldest) AS oldest FROM"
            f" (SELECT session, COUNT(*) AS count, COUNT(*) FILTER (WHERE {self._signal}) AS signals, MIN(accepted_at)"
            f" FILTER (WHERE {self._signal}) AS oldest FROM samples WHERE fate = 'pending' AND group_id IS NULL"
            " GROUP BY session, branch) GROUP BY session)", limits)[0]
        return Pending(row["total"], row["signal"], row["oldest"], row["held"])

    def batch(self, limit: int) -> list[turn_pb2.Sample]:
        """Samples of the next step on users' turns, at most `limit`, each kind oldest first: those with a signal, then
        at most as many neutral ones, which cost as much time and bring little. Of one branch there are at most
        `max_per_branch`, and of all branches of one session at most `max_per_session`; the oldest with a signal first.
        One that is stale, or not what was accepted, is dropped."""
        self.drop_stale()

        def some(condition: str, limit: int) -> list[turn_pb2.Sample]:
            while True:
                rows = self._db.query(
                    f"WITH ranked AS (SELECT seq, session, NOT ({self._signal}) AS neutral, ROW_NUMBER() OVER"
                    f" (PARTITION BY session, branch ORDER BY NOT ({self._signal}), seq) AS in_branch FROM samples"
                    " WHERE fate = 'pending' AND group_id IS NULL), taken AS (SELECT seq AS place, ROW_NUMBER() OVER"
                    " (PARTITION BY session ORDER BY neutral, seq) AS in_session FROM ranked WHERE in_branch <= ?)"
                    " SELECT turn_id, payload, crc FROM samples JOIN taken ON seq = place WHERE in_session <= ? AND"
                    f" {condition} ORDER BY seq LIMIT ?",
                    (self._config.max_per_branch, self._config.max_per_session, limit))
                samples = self._whole_ones(rows)
                if len(samples) == len(rows):
                    return list(samples.values())

        signals = some(f"({self._signal})", limit)
        return signals + some(f"NOT ({self._signal})", min(len(signals), limit - len(signals)))

    def _whole_ones(self, rows: Sequence[sqlite3.Row]) -> dict[str, turn_pb2.Sample]:
        """The samples of rows, by turn; those that are damaged are kept aside and dropped."""
        read = {row["turn_id"]: self._read(row["turn_id"], row["payload"], row["crc"]) for row in rows}
        samples = {turn_id: sample for turn_id, sample in read.items() if sample is not None}
        if damaged := {row["turn_id"]: row["payload"] for row in rows if row["turn_id"] not in samples}:
            self._keep_aside(damaged)
            self.drop(list(damaged), "damaged on disk")
        return samples

    def _keep_aside(self, damaged: dict[str, bytes]) -> None:
        with self._db.transaction() as db:
            for turn_id, payload in damaged.items():
                self.quarantine.keep(db, turn_id, "the sample's record on the trainer's disk is damaged", payload)

    def refuse(self, sample: turn_pb2.Sample, reason: str) -> None:
        """Drop a pending sample that can't be ours, and keep it aside."""
        turn_id = sample.transition.turn.turn_id
        with self._db.transaction() as db:
            self.quarantine.keep(db, turn_id, reason, sample.SerializeToString())
        self.drop([turn_id], reason)

    def _read(self, turn_id: str, payload: bytes | None, crc: int | None) -> turn_pb2.Sample | None:
        """The sample of a row; None when its bytes are damaged."""
        if not sound(payload, crc):
            return None
        try:
            sample = turn_pb2.Sample.FromString(payload or b"")
        except (DecodeError, TypeError):
            return None
        fits = sample.transition.turn.turn_id == turn_id and not problem(sample, self._max_tokens)
        return sample if fits else None

    def attempt(self, turn_ids: Sequence[str]) -> list[str]:
        """Note that a step on these samples begins; gives those that had `MAX_ATTEMPTS` without an end before."""
        marks = ",".join("?" * len(turn_ids))
        with self._db.transaction() as db:
            worn = [row["turn_id"] for row in db.execute(
                f"SELECT turn_id FROM samples WHERE turn_id IN ({marks}) AND attempts >= {MAX_ATTEMPTS}", turn_ids)]
            db.execute(f"UPDATE samples SET attempts = attempts + 1 WHERE turn_id IN ({marks})", turn_ids)
        return worn

    def forgive(self, turn_ids: Sequence[str]) -> None:
        """Take an attempt back that ended for a reason that was not the samples'."""
        with self._db.transaction() as db:
            db.executemany("UPDATE samples SET attempts = attempts - 1 WHERE turn_id = ? AND attempts > 0",
                           [(turn_id,) for turn_id in turn_ids])

    def drop(self, turn_ids: Sequence[str], reason: str, *, skipped_step: bool = False) -> None:
        """Give pending samples their fate; what stands before a colon is the reason's class in `dropped`."""
        with self._db.transaction() as db:
            dropped = self._drop(db, turn_ids, reason)
            count(db, "steps_skipped", int(skipped_step))
        traces.dropped(dropped, reason)

    def _drop(self, db: sqlite3.Connection, turn_ids: Sequence[str], reason: str) -> list[str]:
        dropped: list[str] = []
        for turn_id in turn_ids:
            done = db.execute("UPDATE samples SET fate = 'dropped', reason = ?, payload = NULL"
                              " WHERE turn_id = ? AND fate = 'pending'", (reason, turn_id))
            count(db, f"dropped:{_reason_class(reason)}", done.rowcount)
            dropped += [turn_id] * done.rowcount
        self.groups.close_finished(db, trained=False)
        return dropped

    def drop_stale(self) -> int:
        """Drop the samples that more than `max_staleness` versions followed since, and with one of an episode its whole
        group; how many stale ones there were."""
        with self._db.transaction() as db:
            ages = {row["sampled_from"]: age_of(db, row["sampled_from"]) for row in db.execute(
                "SELECT DISTINCT sampled_from FROM samples WHERE fate = 'pending' AND sampled_from NOT NULL")}
            stale = {version: age for version, age in ages.items() if age > self._config.max_staleness}
            turns = {version: [row["turn_id"] for row in db.execute(
                "SELECT turn_id FROM samples WHERE fate = 'pending' AND sampled_from = ?", (version,))]
                for version in stale}
            hit = [row["group_id"] for row in db.execute(
                f"SELECT DISTINCT group_id FROM samples WHERE fate = 'pending' AND group_id NOT NULL AND sampled_from"
                f" IN ({','.join('?' * len(stale))})", list(stale))]
            gone = [(self._drop(db, turns[version], _stale(version, age)), _stale(version, age))
                    for version, age in stale.items()]
            gone.append((self._drop(db, self.groups.close_stale(db, hit), _STALE_GROUP), _STALE_GROUP))
        for turn_ids, reason in gone:
            traces.dropped(turn_ids, reason)
        return sum(map(len, turns.values()))

    def drop_neutral(self, older_than: float, beyond: int) -> int:
        """Drop neutral samples that waited since before `older_than`, and the oldest of more than `beyond`. How long
        those waited that were accepted before the clock was set back isn't known: they go too."""
        future = time.time() + 1
        rows = self._db.query("SELECT turn_id, accepted_at FROM samples WHERE fate = 'pending' AND group_id IS NULL AND"
                              f" NOT ({self._signal}) ORDER BY seq DESC")
        stale = [row["turn_id"] for i, row in enumerate(rows)
                 if i >= beyond or not older_than <= row["accepted_at"] <= future]
        if stale:
            self.drop(stale, "no signal: neither a score nor a hint, and no step came that it could ride along with")
        return len(stale)

    def statuses(self, turn_ids: Sequence[str]) -> list[trainer_pb2.SampleStatus]:
        """Fates of these turns in this order, unknown ones left out; all pending ones when none are given."""
        if not turn_ids:
            rows = self._db.query(f"SELECT {_STATUS} FROM samples WHERE fate = 'pending' ORDER BY seq")
        else:
            found = {row["turn_id"]: row for row in self._db.query(
                f"SELECT {_STATUS} FROM samples WHERE turn_id IN ({','.join('?' * len(turn_ids))})", list(turn_ids))}
            rows = [found[turn_id] for turn_id in turn_ids if turn_id in found]
        return [_status(row) for row in rows]

    def counters(self) -> dict[str, int]:
        """All counts: accepted, trained, updates, steps_skipped, and "dropped:REASON"."""
        return {row["name"]: row["value"] for row in self._db.query("SELECT name, value FROM counters")}


#: Of what is not stale itself.
_STALE_GROUP = "stale: another sample of its group of episodes is"


def _stale(version: int, age: int) -> str:
    return f"stale: sampled from version {version}, {age} versions old"


def _reason_class(reason: str) -> str:
    return reason.partition(":")[0]


def _status(row: sqlite3.Row) -> trainer_pb2.SampleStatus:
    status = trainer_pb2.SampleStatus(turn_id=row["turn_id"], fate=_FATES[row["fate"]], version=row["version"],
                                      reason=row["reason"], score=row["score"],
                                      advantage=row["advantage"] if row["fate"] == "trained" else None)
    status.accepted_at.FromNanoseconds(int(row["accepted_at"] * 1e9))
    return status
