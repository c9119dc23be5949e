"""What a rule found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Evidence:
    """One rule's finding: +1, 0 or -1, why, and what the answer should have done."""

    score: int
    rationale: str
    hint: str = ""
    certain: bool = False


def quote(text: str, limit: int = 120) -> str:
    """The text on one line, cut to `limit` characters, in quotation marks."""
    text = " ".join(text.split())
    return f'"{text if len(text) <= limit else text[:limit - 1] + "…"}"'
