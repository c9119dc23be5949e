"""Replay: samples with a hint that earlier versions were trained on, which later steps are shown again.

A step sees a few turns, and what the one before it learned is not among them: four praised answers say nothing of why
they are good, and the policy drifts off. So each step on users' turns also has a few of the newest hinted samples of
its own history (experience replay; Rolnick et al., arXiv:1811.11682). They are anchors: only their distillation counts,
not their score.

What that means for a sample:
- its fate stays the version that was trained on it first; a version's manifest names what it was shown again apart from
  its turns (`settings["replayed"]`);
- it is drawn only by descendants of that version, so what was rolled back, taken back or refused by the gate does not
  come in again;
- forgetting its session deletes it here too, since this is the same row, and voids all versions that were shown it,
  since these are descendants of the one whose turn it was.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from openclaw_rl.training.buffer.sample_buffer import SampleBuffer
from openclaw_rl.training.tables.samples import SampleTable
from openclaw_rl.v1 import turn_pb2

#: Versions whose samples may be drawn; the pool rarely reaches back so far.
_HISTORY = 1000


class Replay:
    """Draws from the pool. Any thread.

    Raises (all methods):
        StorageError: the file can't be read or written.
    """

    def __init__(self, table: SampleTable, samples: SampleBuffer) -> None:
        self._table, self._samples = table, samples

    def draw(self, lineage: Sequence[int], count: int) -> list[turn_pb2.Sample]:
        """Return at most `count` samples of the pool of a version, the first of `lineage`. They are the same each time,
        so that a step that was broken off is the same when it comes again."""
        if not (rows := self._table.replayable(lineage[:_HISTORY])):
            return []
        chosen = random.Random(lineage[0]).sample(rows, min(count, len(rows)))
        return list(self._samples.read(chosen).values())
