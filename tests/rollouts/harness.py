"""A client and a session tracker for tests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openclaw_rl.config import SessionAwareness
from openclaw_rl.rollouts.tracking import tables, views
from openclaw_rl.rollouts.tracking.tracker import SessionTracker
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1.common_pb2 import AckStatus
from openclaw_rl.v1.environment_pb2 import ListTurnsRequest, PolicyEvent, TurnState, TurnSummary
from openclaw_rl.v1.turn_pb2 import ChatMessage, Feedback, NextState, SessionEnd, Transition, Turn

_clock = itertools.count(1_700_000_000)


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


def tool(text: str, call: str = "c1") -> ChatMessage:
    return ChatMessage(role="tool", content=text, tool_call_id=call)


def answer(text: str) -> ChatMessage:
    return ChatMessage(role="assistant", content=text)


def turn(turn_id: str, messages: Sequence[ChatMessage], response: ChatMessage | str, **fields: Any) -> Turn:
    """A turn as the policy server records it; requested a second after the one made before it."""
    result = Turn(**{"turn_id": turn_id, "session_id": "s", "messages": messages, "api": "chat.completions",
                     "response": answer(response) if isinstance(response, str) else response, **fields})
    if not result.HasField("requested_at"):
        result.requested_at.seconds = next(_clock)
    result.finished_at.seconds = result.requested_at.seconds + 1
    return result


class FakeJournal:
    """Keeps the lines in memory."""

    def __init__(self) -> None:
        self.lines: list[tuple[Any, ...]] = []

    def action(self, session: str, version: int, turn_class: str, text: str) -> None:
        self.lines.append((session, version, turn_class, text))

    def next_state(self, session: str, version: int, text: str) -> None:
        self.lines.append((session, version, "NextState", text))

    def forget(self, session: str) -> int:
        before = len(self.lines)
        self.lines = [line for line in self.lines if line[0] != session]
        return before - len(self.lines)


class Harness:
    """A session tracker on a store of its own."""

    def __init__(self, folder: Path, mesh_id: str = "", **config: Any) -> None:
        self.folder, self.config, self.mesh_id = folder, SessionAwareness(**config), mesh_id
        self.open()

    def open(self) -> None:
        self.store = Database(self.folder / "state.db", schema=tables.SCHEMA)
        self.outbox = Outbox(self.store, "transitions")
        self.journal = FakeJournal()
        self.tracker = SessionTracker(self.store, self.outbox, self.journal, self.config,  # type: ignore[arg-type]
                                      self.mesh_id)

    def restart(self) -> None:
        self.store.close()
        self.open()

    def tell(self, *events: Turn | Feedback | SessionEnd) -> list[AckStatus.ValueType]:
        """Hand events over in one batch; returns the statuses."""
        return [ack.status for ack in self.tracker.handle([as_event(event) for event in events])]

    def sent(self) -> dict[str, NextState]:
        """Next states of the transitions in the outbox, by turn id, in the order of sending."""
        return {transition.turn.turn_id: transition.next_state for transition in self._sent()}

    def transitions(self) -> list[Turn]:
        """Turns of the transitions in the outbox, in the order of sending."""
        return [transition.turn for transition in self._sent()]

    def _sent(self) -> list[Transition]:
        return [Transition.FromString(row.payload) for row in self.outbox.window(0, 10_000, 2**30)]

    def turns(self) -> dict[str, TurnSummary]:
        """All turns, oldest first, by id."""
        listed = views.turns(self.store, ListTurnsRequest(include_superseded=True)).turns
        return {summary.turn_id: summary for summary in reversed(listed)}

    def states(self) -> dict[str, str]:
        """Each turn's state, by id."""
        return {turn_id: TurnState.Name(summary.state).removeprefix("TURN_STATE_")
                for turn_id, summary in self.turns().items()}


def as_event(event: Turn | Feedback | SessionEnd) -> PolicyEvent:
    if isinstance(event, Turn):
        return PolicyEvent(turn=event)
    return PolicyEvent(feedback=event) if isinstance(event, Feedback) else PolicyEvent(session_end=event)
