"""Explicit feedback: thumbs, scores, comments."""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_rl.reward.judges.rules import words
from openclaw_rl.reward.judges.rules.evidence import Evidence, quote
from openclaw_rl.reward.judges.rules.hints import from_comment
from openclaw_rl.v1 import turn_pb2

#: Scores closer to 0 than this are neutral.
NEUTRAL = 0.2


def read(feedback: Sequence[turn_pb2.Feedback], request: str, answer: str) -> Evidence | None:
    """Evaluate explicit feedback: certain if it has a score, else by the comment's words; None without any.

    The last score counts, since people who give feedback twice have changed their mind. All comments are read.
    """
    comments = [entry.comment for entry in feedback if entry.comment.strip()]
    scores = [entry.score for entry in feedback if entry.HasField("score")]
    readings = [words.read(comment, request, answer) for comment in comments]
    if not scores:
        return next((evidence for evidence in reversed(readings) if evidence.score), readings[-1] if readings else None)
    score = 0 if abs(scores[-1]) < NEUTRAL else 1 if scores[-1] > 0 else -1
    why = f"explicit feedback {scores[-1]:+g}" + (f": {quote(comments[-1])}" if comments else "")
    hint = ""
    if score < 0:
        hint = next((evidence.hint for evidence in reversed(readings) if evidence.hint), "")
        hint = hint or (from_comment(comments[-1][:words.READ]) if comments and not readings[-1].score else "")
    return Evidence(score, why, hint, certain=True)
