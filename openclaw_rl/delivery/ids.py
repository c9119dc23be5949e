"""Ids of the ring's messages, as their receivers acknowledge them."""

from __future__ import annotations

from openclaw_rl.v1 import environment_pb2, turn_pb2

RingMessage = environment_pb2.PolicyEvent | turn_pb2.Transition | turn_pb2.Sample


def message_id(message: RingMessage) -> str:
    """The id by which `message` is acknowledged (of its turn, feedback or session's end); "" when it has none."""
    if isinstance(message, turn_pb2.Sample):
        return message.transition.turn.turn_id
    if isinstance(message, turn_pb2.Transition):
        return message.turn.turn_id
    match message.WhichOneof("event"):
        case "turn":
            return message.turn.turn_id
        case "feedback":
            return message.feedback.feedback_id
        case "session_end":
            return message.session_end.event_id
        case "session_active":
            return message.session_active.event_id
    return ""
