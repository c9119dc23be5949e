"""Which messages a request to forget means."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp

from openclaw_rl.v1 import component_pb2, environment_pb2, turn_pb2


@dataclass(frozen=True, slots=True)
class Target:
    """A session's turns up to a moment."""

    session_id: str
    before: float  #: seconds since the epoch; what was asked for at this moment or later stays
    turn_ids: frozenset[str] = frozenset()  #: these go whenever they were asked for

    @classmethod
    def of(cls, request: component_pb2.ForgetRequest) -> Target:
        """What a request means; without a moment it means now."""
        before = seconds(request.before) if request.HasField("before") else time.time()
        return cls(request.session_id, before, frozenset(request.turn_ids))

    def with_turns(self, turn_ids: Iterable[str]) -> Target:
        """The same with more turns that are known to belong to it."""
        return replace(self, turn_ids=self.turn_ids.union(turn_ids))

    def has(self, message: Message) -> bool:
        """Whether a turn, feedback, a session's end or a message that carries one of these is meant."""
        return any(part_id in self.turn_ids or (session == self.session_id and at < self.before)
                   for part_id, session, at in parts(message))

    def has_payload(self, kind: type[Message], payload: bytes) -> bool:
        """The same of a serialized message. One that can't be read is meant when the session's name is in it."""
        name = self.session_id.encode()
        if name not in payload and not any(id.encode() in payload for id in self.turn_ids):
            return False
        try:
            return self.has(kind.FromString(payload))
        except DecodeError:
            return True


def parts(message: Message) -> list[tuple[str, str, float]]:
    """Turn, session and moment (seconds since the epoch, 0 when it is not known) of what a message carries."""
    match message:
        case turn_pb2.Turn():
            return [(message.turn_id, message.session_id, seconds(message.requested_at))]
        case turn_pb2.Transition():
            return parts(message.turn)
        case turn_pb2.Sample():
            return parts(message.transition.turn)
        case turn_pb2.Feedback():
            return [(message.turn_id, message.session_id, seconds(message.given_at))]
        case turn_pb2.SessionEnd():
            return [("", message.session_id, seconds(message.ended_at))]
        case turn_pb2.SessionActive():
            return [("", message.session_id, seconds(message.active_at))]
        case environment_pb2.PolicyEvent():
            kind = message.WhichOneof("event")
            return parts(getattr(message, kind)) if kind else []
    raise TypeError(f"{type(message).__name__} carries no turn")


def seconds(timestamp: Timestamp) -> float:
    """Seconds since the epoch."""
    return float(timestamp.seconds + timestamp.nanos / 1e9)
