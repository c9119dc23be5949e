"""How old the policy was that gave the answers of a step."""

from __future__ import annotations

from openclaw_rl.training.buffer.turns import staleness
from openclaw_rl.v1 import common_pb2, turn_pb2


def _sample(*versions: int) -> turn_pb2.Sample:
    spans = [common_pb2.VersionSpan(version=version, begin=i, end=i + 1) for i, version in enumerate(versions)]
    turn = turn_pb2.Turn(policy_version=versions[-1], tokens=turn_pb2.TokenRecord(spans=spans))
    return turn_pb2.Sample(transition=turn_pb2.Transition(turn=turn))


def test_it_counts_from_the_oldest_version_that_answered() -> None:
    assert staleness([_sample(5)], 5) == 0
    assert staleness([_sample(3, 5), _sample(5)], 5) == 1
    assert staleness([], 5) == 0
