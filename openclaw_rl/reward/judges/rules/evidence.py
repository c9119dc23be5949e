"""Evidence found by a rule."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Evidence:
    """The finding of a rule: +1, 0 or -1, the reason, and what the answer should have done."""

    score: int
    rationale: str
    hint: str = ""
    certain: bool = False


def quote(text: str, limit: int = 120) -> str:
    """Quote a text on one line, cut to `limit` characters."""
    text = " ".join(text.split())
    return f'"{text if len(text) <= limit else text[:limit - 1] + "…"}"'
