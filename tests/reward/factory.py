"""Transitions for tests."""

from __future__ import annotations

from typing import Any

from openclaw_rl.v1 import turn_pb2


def message(role: str, content: str, **fields: Any) -> turn_pb2.ChatMessage:
    return turn_pb2.ChatMessage(role=role, content=content, **fields)


def transition(said: str = "Thanks!", turn_id: str = "t1", *, request: str = "What is recursion?",
               answer: str = "A function that calls itself.", session_id: str = "s1",
               messages: list[turn_pb2.ChatMessage] | None = None, calls: list[turn_pb2.ToolCall] | None = None,
               feedback: list[turn_pb2.Feedback] | None = None,
               kind: turn_pb2.NextStateKind.ValueType = turn_pb2.NEXT_STATE_KIND_CONTINUED) -> turn_pb2.Transition:
    """A main turn and what the user said next; `messages` instead of it where there is more."""
    if messages is None:
        messages = [message("user", said)] if said else []
    return turn_pb2.Transition(
        turn=turn_pb2.Turn(turn_id=turn_id, session_id=session_id, turn_class=turn_pb2.TURN_CLASS_MAIN,
                           policy_version=7, messages=[message("user", request)],
                           response=message("assistant", answer, tool_calls=calls or [])),
        next_state=turn_pb2.NextState(kind=kind, messages=messages, feedback=feedback or []))


def feedback(score: float | None = None, comment: str = "") -> turn_pb2.Feedback:
    return turn_pb2.Feedback(feedback_id="f", turn_id="t1", score=score, comment=comment)
