"""What can't be taken of what the policy server tells, and whose feedback counts."""

from __future__ import annotations

from openclaw_rl.delivery.ids import bad_id
from openclaw_rl.rpc.auth.callers import key_of
from openclaw_rl.v1 import environment_pb2


def refusal(event: environment_pb2.PolicyEvent, event_id: str) -> str:
    """Why an event can't be taken; empty when it can."""
    kind = event.WhichOneof("event")
    if kind is None:
        return "the message has none of turn, feedback, session_end and session_active"
    if not event_id:
        return f"the {kind} has no id"
    if reason := bad_id(f"the {kind}'s id", event_id):
        return reason
    session = getattr(event, kind).session_id
    if session and (reason := bad_id(f"{kind}.session_id", session)):
        return reason
    if kind in ("session_end", "session_active") and not getattr(event, kind).session_id:
        return f"{kind}.session_id is empty"
    if kind == "feedback":
        if not (event.feedback.turn_id or event.feedback.session_id):
            return "feedback.turn_id and feedback.session_id are empty: one of them must say what is meant"
        if event.feedback.HasField("score") and not -1 <= event.feedback.score <= 1:
            return f"feedback.score is {event.feedback.score:g}: must be from -1 to +1"
    return ""


def stranger(client: str, other: str) -> bool:
    """Whether two clients (`Turn.client`) are known to have shown different API keys.

    Address and user field don't count: a person's phone has another address, and feedback has no user field. Without a
    key (an open door, or the operator's gRPC) everybody may speak.
    """
    keys = key_of(client), key_of(other)
    return all(keys) and keys[0] != keys[1]
