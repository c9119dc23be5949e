"""Validation of transitions."""

from __future__ import annotations

from openclaw_rl.delivery.validation import RejectionCode, validate_id
from openclaw_rl.runtime.rejection import Rejection
from openclaw_rl.v1 import turn_pb2


def validate_transition(transition: turn_pb2.Transition) -> Rejection[RejectionCode] | None:
    """Check whether a transition can ever be judged."""
    turn = transition.turn
    if rejection := validate_id("turn.turn_id", turn.turn_id):
        return rejection
    if turn.turn_class in (turn_pb2.TURN_CLASS_SIDE, turn_pb2.TURN_CLASS_UNKNOWN):
        return Rejection(RejectionCode.WRONG_CLASS, f"turn.turn_class: {turn_pb2.TurnClass.Name(turn.turn_class)}; "
                                                    "only main turns are judged")
    return None
