"""Groups of episodes that wait for a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from openclaw_rl.observability import turn_spans as traces
from openclaw_rl.storage.database import Database
from openclaw_rl.training.buffer.groups import EpisodeGroups, WaitingGroups
from openclaw_rl.training.buffer.sample_buffer import SampleBuffer
from openclaw_rl.training.tables.groups import GroupTable
from openclaw_rl.training.tables.samples import SampleTable
from openclaw_rl.v1 import turn_pb2

#: A sample, its advantage and its reward; None when that is not known.
Judged = tuple[turn_pb2.Sample, float, float | None]


class EpisodeBuffer:
    """Groups from their first sample to the step that takes them. Any thread.

    Raises (all methods):
        StorageError: the file can't be read or written.
    """

    def __init__(self, database: Database, groups: EpisodeGroups, group_table: GroupTable, samples: SampleTable,
                 buffer: SampleBuffer) -> None:
        self._database, self._groups, self._group_table = database, groups, group_table
        self._samples, self._buffer = samples, buffer

    @property
    def blind_votes(self) -> str:
        """Judges that are not shown the task and whose votes count in full, for a person; empty if there is none."""
        return ", ".join(sorted(self._groups.blind_votes))

    def settle(self, now: float) -> None:
        """Make groups that are whole, or timed out, ready for a step.

        Args:
            now: seconds since the epoch.
        """
        with self._database.transaction() as db:
            dropped = [(self._buffer.drop_in(db, turn_ids, why), why)
                       for why, turn_ids in self._groups.settle(db, now).items()]
        for turn_ids, why in dropped:
            traces.dropped(turn_ids, str(why))

    def waiting(self) -> WaitingGroups:
        """Return what is known of groups that are not closed."""
        with self._database.reading() as db:
            return self._groups.waiting(db)

    def batches(self) -> Iterator[list[Judged]]:
        """Yield what waits in each ready group, by episode and step; the group that is ready for longest first. Samples
        that are stale or damaged are dropped."""
        self._buffer.drop_stale()
        with self._database.reading() as db:
            ready = self._group_table.ready(db)
        for group in ready:
            rows = self._samples.ready_in_group(group.group_id)
            samples = self._buffer.read(rows)
            found = [(samples[row["turn_id"]], row["advantage"] or 0.0, row["reward"]) for row in rows
                     if row["turn_id"] in samples]
            if found:
                yield found

    def outcomes(self, turn_ids: Sequence[str]) -> list[float]:
        """Return the outcomes of all ended episodes of the groups that these turns are of."""
        groups = self._samples.groups_of(turn_ids)
        with self._database.reading() as db:
            return self._group_table.outcomes(db, groups)
