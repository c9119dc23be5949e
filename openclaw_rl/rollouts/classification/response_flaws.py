"""What is wrong with a response, whatever anybody thinks of it."""

from __future__ import annotations

from openclaw_rl.rollouts.tracking.next_state import as_text
from openclaw_rl.v1 import turn_pb2

CUT = "the client cut the response off"
EMPTY = "the response is empty"
_FLAWS = {turn_pb2.FINISH_REASON_CANCELLED: CUT,
          turn_pb2.FINISH_REASON_ERROR: "the engine failed",
          turn_pb2.FINISH_REASON_LENGTH: "the response stopped at the token limit"}


def flaw(turn: turn_pb2.Turn) -> str:
    """What is wrong with the turn's response; empty when nothing is."""
    found = _FLAWS.get(turn.finish_reason, "")
    if not as_text([turn.response]).strip():
        found = "; ".join(filter(None, (found, EMPTY)))
    return found
