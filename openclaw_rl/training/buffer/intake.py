"""Intake of judged turns: what is kept, what is dropped at once, and what is rejected."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from openclaw_rl.config import TrainerConfig
from openclaw_rl.delivery.validation import validate_id
from openclaw_rl.observability import turn_spans as traces
from openclaw_rl.privacy import Tombstones
from openclaw_rl.storage.checksum import content_key
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.inbox import IdConflict
from openclaw_rl.training.buffer.groups import EpisodeGroups
from openclaw_rl.training.buffer.sample_buffer import STALE_GROUP, SampleBuffer
from openclaw_rl.training.buffer.turns import live_score, sampled_from, truncated, turn_id
from openclaw_rl.training.buffer.validation import validate_origin, validate_quality, validate_sample, validate_use
from openclaw_rl.training.tables.counters import Counter, CounterTable
from openclaw_rl.training.tables.groups import GroupTable
from openclaw_rl.training.tables.reasons import Drop, DropReason, drop
from openclaw_rl.training.tables.samples import NewSample, SampleTable
from openclaw_rl.training.tables.scores import ScoreTable
from openclaw_rl.v1 import common_pb2, turn_pb2

FORGOTTEN_LATE = drop(DropReason.FORGOTTEN, "its session, while it was under way")

#: Samples accepted between two deletions of old fates.
_PRUNE_EVERY = 1_000

#: Turns that were dropped, and why.
_Dropped = tuple[list[str], Drop]


class Intake:
    """Takes samples from the judge. Any thread.

    Args:
        tombstones: of sessions that were forgotten.
        tokens: token ids are trained on; else texts.
        mesh_id: of the mesh whose turns are trained on; "" trains on those of any.

    Raises (all methods):
        StorageError: the file can't be read or written.
    """

    def __init__(self, database: Database, config: TrainerConfig, samples: SampleTable, group_table: GroupTable,
                 scores: ScoreTable, counters: CounterTable, groups: EpisodeGroups, buffer: SampleBuffer,
                 tombstones: Tombstones, tokens: bool, mesh_id: str = "") -> None:
        self._database, self._config, self._tokens, self._mesh_id = database, config, tokens, mesh_id
        self._samples, self._group_table, self._scores, self._counters = samples, group_table, scores, counters
        self._groups, self._buffer, self._tombstones = groups, buffer, tombstones
        self._max_tokens = config.max_tokens_per_sample if tokens else None
        self._accepted = 0  # since old fates were last deleted

    def accept(self, samples: Sequence[turn_pb2.Sample]) -> list[common_pb2.Ack]:
        """Keep new samples, in one transaction; those that can't be trained on are dropped at once. What they tell of
        episodes is taken all the same."""
        acks: list[common_pb2.Ack] = []
        dropped: list[_Dropped] = []
        with self._database.transaction() as db:
            for sample in samples:
                acks.append(self._accept(db, sample, dropped))
        fresh = {ack.id for ack in acks}  # what becomes of those is told as they are
        for turn_ids, why in dropped:
            traces.dropped([turn_id for turn_id in turn_ids if turn_id not in fresh], str(why))
        return acks

    def forgot(self, sample: turn_pb2.Sample) -> bool:
        """Return whether the sample's session was forgotten after its turn was asked for."""
        return self._tombstones.cover(sample)

    def _accept(self, db: sqlite3.Connection, sample: turn_pb2.Sample, dropped: list[_Dropped]) -> common_pb2.Ack:
        """Keep one sample.

        Args:
            dropped: gets the samples of its group that are dropped because of it.
        """
        id = turn_id(sample)
        if self._tombstones.cover(sample):
            if self._samples.insert_dropped(db, id, FORGOTTEN_LATE):
                self._counters.add(db, Counter.ACCEPTED)
                self._counters.add_dropped(db, FORGOTTEN_LATE.code)
            return common_pb2.Ack(id=id, status=common_pb2.ACK_STATUS_ACCEPTED)
        try:
            if rejection := validate_id("transition.turn.turn_id", id):
                raise IdConflict(rejection.message)
            new = self._insert(db, sample, dropped)
        except IdConflict as error:
            self._buffer.quarantine.keep(db, id, str(error), sample.SerializeToString())
            return common_pb2.Ack(id=id, status=common_pb2.ACK_STATUS_REJECTED, reason=str(error))
        return common_pb2.Ack(id=id, status=common_pb2.ACK_STATUS_ACCEPTED if new else common_pb2.ACK_STATUS_DUPLICATE)

    def _insert(self, db: sqlite3.Connection, sample: turn_pb2.Sample, dropped: list[_Dropped]) -> bool:
        """Keep one sample; return False when it is there already.

        Raises:
            IdConflict: it is there with other content.
        """
        turn, judgement, content = sample.transition.turn, sample.judgement, content_key(sample)
        foreign = validate_origin(turn, self._mesh_id)  # such a one says nothing of our episodes and versions
        of_episode = turn.HasField("episode") and foreign is None
        misfit = self._groups.validate(db, sample) if of_episode else None
        why = (foreign or validate_sample(sample, self._max_tokens) or validate_quality(turn, self._config) or misfit
               or validate_use(turn, self._config, self._tokens))
        version = None if why else sampled_from(turn)
        if version is not None:
            why = self._buffer.stale(db, version)
        score = None if foreign else live_score(sample)  # before it is changed for the training
        penalised = self._config.truncated == "penalise" and truncated(turn)
        if why is None and penalised:
            judgement.score = -1
        payload = sample.SerializeToString()
        if not self._samples.insert(db, NewSample(
                turn.turn_id, why, None if judgement.failed else judgement.score, bool(judgement.hint.strip()), payload,
                turn.session_id or turn.turn_id, turn.branch_id or turn.turn_id, version, content)):
            if self._samples.content(db, turn.turn_id) not in (None, content):
                raise IdConflict("transition.turn.turn_id: a sample of this id and another content came before; that "
                                 "one stands")
            return False
        if why is not None and why.code.quarantined:
            self._buffer.quarantine.keep(db, turn.turn_id, str(why), payload)
        if of_episode and self._tokens and (misfit is None or misfit.code is not DropReason.BAD_EPISODE):
            dropped += self._note_episode(db, sample, penalised,
                                          stale=why is not None and why.code is DropReason.STALE)
        self._prune(db)
        self._counters.add(db, Counter.ACCEPTED)
        if score is not None:
            self._scores.add(db, *score)
        if why is not None:
            self._counters.add_dropped(db, why.code)
        return True

    def _note_episode(self, db: sqlite3.Connection, sample: turn_pb2.Sample, penalised: bool,
                      stale: bool) -> list[_Dropped]:
        """Note a new sample in its group; the group's others go when they can't be trained on any more."""
        step = sample.transition.turn.episode
        dropped: list[_Dropped] = []
        if broken_off := self._groups.note(db, sample, penalised):
            turn_ids = self._samples.pending_in_episode(db, step.group_id, step.episode_id)
            dropped.append((self._buffer.drop_in(db, turn_ids, broken_off), broken_off))
        if stale:
            turn_ids = self._groups.close_stale(db, [step.group_id])
            dropped.append((self._buffer.drop_in(db, turn_ids, STALE_GROUP), STALE_GROUP))
        return dropped

    def _prune(self, db: sqlite3.Connection) -> None:
        self._accepted += 1
        if self._accepted >= _PRUNE_EVERY:
            self._accepted = 0
            self._samples.prune(db)
            self._group_table.prune(db)
            self._scores.prune(db)
