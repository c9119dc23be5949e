"""How old the policy was that gave the answers of a step."""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_rl.training.buffer.examples import sampled_from
from openclaw_rl.v1 import turn_pb2


def staleness(samples: Sequence[turn_pb2.Sample], parent: int) -> float:
    """By how many version numbers the policy that sampled lags behind `parent`, which the step builds on; the mean."""
    return sum(max(0, parent - sampled_from(sample.transition.turn)) for sample in samples) / max(1, len(samples))
