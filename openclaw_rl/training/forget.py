"""Deletion of a session from the trainer's tables: its samples go, and training goes back to before it learned from
them.

The versions whose history has one of its turns are void. Training goes on from the newest version before them, and the
other samples of the void versions are pending again, in their old order: the next steps rebuild what was taken back,
without the forgotten turns, under new numbers.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from openclaw_rl.privacy import Target
from openclaw_rl.privacy.tombstones import digest
from openclaw_rl.training.buffer.groups import EpisodeGroups
from openclaw_rl.training.tables.counters import Counter, CounterTable
from openclaw_rl.training.tables.reasons import DropReason, Fate, VersionState, VersionStatus, drop
from openclaw_rl.training.tables.samples import SampleTable
from openclaw_rl.training.tables.versions import Version, VersionTable, lineage, parent_of
from openclaw_rl.training.tables.voided import VoidTable
from openclaw_rl.v1 import turn_pb2

FORGOTTEN = drop(DropReason.FORGOTTEN, "its session")
VOID = VersionStatus(VersionState.VOID, "a session was forgotten that it was trained on")


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What became of a session and of the versions that learned from it."""

    target: Target  #: with the ids of the session's turns
    removed: dict[str, int]  #: rows by kind
    void: list[int]  #: versions that are void since this session was forgotten, now or before; ascending
    base: int | None = None  #: the version that training goes on from; None when the head knew none of the turns
    again: int = 0  #: samples that are pending again
    lost: int = 0  #: samples of the versions taken back that can't be trained on again: their content is not kept
    waited: bool = False  #: some of the samples were pending, so a step may be at work on them


class Forgetting:
    """Forgets sessions, in the caller's transaction."""

    def __init__(self, samples: SampleTable, groups: EpisodeGroups, versions: VersionTable,
                 counters: CounterTable) -> None:
        self._samples, self._groups, self._versions, self._counters = samples, groups, versions, counters
        self._voided = VoidTable()

    def forget(self, db: sqlite3.Connection, target: Target, usable: Collection[int]) -> Forgotten:
        """Forget a session.

        Args:
            target: the session's turns.
            usable: versions that training can go on from; the base model always is.
        """
        target = target.with_turns(row["turn_id"] for row in self._samples.of_session(db, target.session_id)
                                   if _meant(row, target))
        rows = [row for turn_id in target.turn_ids if (row := self._samples.row(db, turn_id)) is not None
                and DropReason.parse(row["reason"]) is not DropReason.FORGOTTEN]
        for row in rows:
            self._erase(db, row)
        known = {version.manifest.version: version for version in self._versions.all()}
        void = _void(known, target.turn_ids, {row["version"] for row in rows if row["fate"] == Fate.TRAINED})
        session = digest("session", target.session_id)
        self._voided.add(db, void, session)
        for version in void:
            self._versions.lose_in(db, version, VOID)
        removed, ever_void = {"samples": len(rows)}, self._voided.of(db, session)
        waited = any(row["fate"] == Fate.PENDING for row in rows)
        line = lineage({number: parent_of(version.manifest) for number, version in known.items()},
                       self._versions.head_of(db))
        if not void.intersection(line):
            return Forgotten(target, removed, ever_void, waited=waited)
        oldest = max(line.index(version) for version in void.intersection(line))
        base = next((version for version in line[oldest + 1:] if version in usable and not known[version].lost), 0)
        back = line[:line.index(base)] if base in line else line
        self._versions.set_head(db, base)
        for version in set(back) - void:
            self._versions.set_status(db, version, VersionStatus(VersionState.ROLLED_BACK))
        self._groups.reopen(db, back)
        there, again, lost = self._samples.pend_again(db, back)
        self._counters.add(db, Counter.TRAINED, -there)
        return Forgotten(target, removed, ever_void, base, again, lost, waited)

    def _erase(self, db: sqlite3.Connection, row: sqlite3.Row) -> None:
        """Delete all of a sample but its id, by which one that comes again is known."""
        if row["group_id"] is not None:
            self._groups.leave(db, row["group_id"], row["episode_id"])
        self._samples.erase(db, row["seq"], FORGOTTEN)
        if row["fate"] == Fate.TRAINED:
            self._counters.add(db, Counter.TRAINED, -1)
        elif row["fate"] == Fate.DROPPED:
            self._counters.add_dropped(db, DropReason.parse(row["reason"]), -1)
        self._counters.add_dropped(db, DropReason.FORGOTTEN)


def _meant(row: sqlite3.Row, target: Target) -> bool:
    """Whether a sample of the session is of a turn that was asked for before the moment."""
    if row["accepted_at"] < target.before or row["turn_id"] in target.turn_ids or row["payload"] is None:
        return True
    return target.has_payload(turn_pb2.Sample, row["payload"])


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
