"""Flaws of a response that are visible without a judge."""

from __future__ import annotations

from enum import StrEnum

from openclaw_rl.rollouts.tracking.next_state import as_text
from openclaw_rl.v1 import turn_pb2


class Flaw(StrEnum):
    """A flaw, as it is stored and shown; several are joined by "; "."""

    CUT_OFF = "the client cut the response off"
    ENGINE_FAILED = "the engine failed"
    TOKEN_LIMIT = "the response stopped at the token limit"
    EMPTY = "the response is empty"


_BY_FINISH_REASON = {turn_pb2.FINISH_REASON_CANCELLED: Flaw.CUT_OFF,
                     turn_pb2.FINISH_REASON_ERROR: Flaw.ENGINE_FAILED,
                     turn_pb2.FINISH_REASON_LENGTH: Flaw.TOKEN_LIMIT}


def find_flaws(turn: turn_pb2.Turn) -> list[Flaw]:
    """List the flaws of a turn's response."""
    found = [flaw] if (flaw := _BY_FINISH_REASON.get(turn.finish_reason)) else []
    if not as_text([turn.response]).strip():
        found.append(Flaw.EMPTY)
    return found
