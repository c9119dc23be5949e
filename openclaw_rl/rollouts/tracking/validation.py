"""Validation of the policy server's events."""

from __future__ import annotations

from openclaw_rl.delivery.validation import RejectionCode, validate_id
from openclaw_rl.rpc.auth.callers import key_of
from openclaw_rl.runtime.rejection import Rejection
from openclaw_rl.v1 import environment_pb2


def validate_event(event: environment_pb2.PolicyEvent, event_id: str,
                   mesh_id: str = "") -> Rejection[RejectionCode] | None:
    """Check an event by itself.

    Args:
        event_id: by which it is acknowledged.
        mesh_id: of the mesh that a turn must belong to, when it names one; "" takes any.
    """
    kind = event.WhichOneof("event")
    if kind is None:
        return Rejection(RejectionCode.MALFORMED,
                         "the message has none of turn, feedback, session_end and session_active")
    if not event_id:
        return Rejection(RejectionCode.INVALID_ID, f"the {kind} has no id")
    if rejection := validate_id(f"the {kind}'s id", event_id):
        return rejection
    if kind == "turn" and mesh_id and event.turn.mesh_id not in ("", mesh_id):
        return Rejection(RejectionCode.WRONG_MESH, f"turn.mesh_id: the turn is of the mesh {event.turn.mesh_id[:80]}, "
                                                   f"and this is {mesh_id}")
    session = getattr(event, kind).session_id
    if session and (rejection := validate_id(f"{kind}.session_id", session)):
        return rejection
    if kind in ("session_end", "session_active") and not session:
        return Rejection(RejectionCode.MALFORMED, f"{kind}.session_id is empty")
    if kind == "feedback":
        if not (event.feedback.turn_id or event.feedback.session_id):
            return Rejection(RejectionCode.MALFORMED, "feedback.turn_id and feedback.session_id are empty: "
                                                      "one of them must say what is meant")
        if event.feedback.HasField("score") and not -1 <= event.feedback.score <= 1:
            return Rejection(RejectionCode.OUT_OF_RANGE,
                             f"feedback.score is {event.feedback.score:g}: must be from -1 to +1")
    return None


def keys_differ(client: str, other: str) -> bool:
    """Whether two clients (`Turn.client`) are known to have used different API keys.

    Address and user field don't count: a phone changes its address, and feedback has no user field. Without a key (no
    authentication, or the operator over gRPC) nobody is excluded.
    """
    keys = key_of(client), key_of(other)
    return all(keys) and keys[0] != keys[1]
