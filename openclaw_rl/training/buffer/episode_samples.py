"""The trainer's samples of episodes: from groups that wait to what a step takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from openclaw_rl.observability import turn_spans as traces
from openclaw_rl.training.buffer.groups import Waiting
from openclaw_rl.training.buffer.samples import SampleTable
from openclaw_rl.v1 import turn_pb2

#: A sample, its advantage and its reward; None when that is not known.
Judged = tuple[turn_pb2.Sample, float, float | None]


class EpisodeSampleTable(SampleTable):
    """Those in the trainer's state.db. Any thread.

    Raises (all methods):
        StorageError: the file can't be read or written.
    """

    def settle(self, now: float) -> None:
        """Let groups of episodes that are whole, or timed out, be ready for a step.

        Args:
            now: seconds since the epoch.
        """
        dropped: list[tuple[list[str], str]] = []
        with self._db.transaction() as db:
            for reason, turn_ids in self.groups.settle(db, now).items():
                dropped.append((self._drop(db, turn_ids, reason), reason))
        for turn_ids, reason in dropped:
            traces.dropped(turn_ids, reason)

    def waiting(self) -> Waiting:
        """Groups of episodes that wait, and for what."""
        with self._db.reading() as db:
            return self.groups.waiting(db)

    def group_batches(self) -> Iterator[list[Judged]]:
        """Sample, advantage and reward of what waits in each ready group, by episode and step; the group that is ready
        for longest first. One that is stale, or not what was accepted, is dropped."""
        self.drop_stale()
        with self._db.reading() as db:
            ready = self.groups.ready(db)
        for group_id in ready:
            rows = self._db.query("SELECT turn_id, payload, crc, advantage, reward FROM samples WHERE group_id = ? AND"
                                  " fate = 'pending' ORDER BY episode_id, step", (group_id,))
            samples = self._whole_ones(rows)
            found = [(samples[row["turn_id"]], row["advantage"] or 0.0, row["reward"]) for row in rows
                     if row["turn_id"] in samples]
            if found:
                yield found

    def outcomes(self, turn_ids: Sequence[str]) -> list[float]:
        """Outcomes of all ended episodes of the groups that these turns are of."""
        marks = ",".join("?" * len(turn_ids))
        with self._db.reading() as db:
            return self.groups.outcomes(db, [row["group_id"] for row in db.execute(
                f"SELECT DISTINCT group_id FROM samples WHERE turn_id IN ({marks}) AND group_id NOT NULL", turn_ids)])
