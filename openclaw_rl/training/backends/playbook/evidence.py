"""Evidence in a judged turn: what was asked and answered, what came next, and how that was judged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from openclaw_rl.training.buffer.turns import answered_by
from openclaw_rl.v1 import turn_pb2

#: Characters of each text.
_CUT = 600


@dataclass(frozen=True, slots=True)
class Evidence:
    """One judged turn."""

    turn_id: str
    version: int | None  #: that answered; None when several did
    score: int  #: +1, 0 or -1
    hint: str  #: empty when there is none
    asked: str  #: the request's last user message
    answered: str
    then: str  #: what came next

    def json(self, number: int) -> dict[str, Any]:
        """Return it as the writer sees it: without ids."""
        return {"number": number, "user_asked": self.asked, "assistant_answered": self.answered, "then": self.then,
                "score": self.score, "hint": self.hint}


def evidence(sample: turn_pb2.Sample) -> Evidence:
    """Return the evidence in a sample."""
    turn, judgement, after = sample.transition.turn, sample.judgement, sample.transition.next_state
    asked = next((_text(message) for message in reversed(turn.messages) if message.role == "user"), "")
    then = [*(f"{message.role}: {_text(message)}" for message in after.messages),
            *(f"feedback: {entry.comment}" for entry in after.feedback if entry.comment)]
    return Evidence(turn.turn_id, answered_by(turn), judgement.score, _cut(judgement.hint), _cut(asked),
                    _cut(_text(turn.response)), _cut("\n".join(then)))


def speaks(items: Iterable[Evidence]) -> list[Evidence]:
    """Return the items that say what should change: with a hint, or a bad score."""
    return [item for item in items if item.hint or item.score < 0]


def _text(message: turn_pb2.ChatMessage) -> str:
    calls = [f"[calls {call.name}]" for call in message.tool_calls]
    return "\n".join(filter(None, [message.content, *(part.text for part in message.parts), *calls]))


def _cut(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _CUT else f"{text[:_CUT]}…"
