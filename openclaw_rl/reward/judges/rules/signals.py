"""Signals: what a clause of a user's message says about the answer before it."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass


class Kind(enum.Enum):
    """Classes of clauses."""

    PRAISE = "praise"  #: Thanks, satisfaction, agreement.
    COMPLAINT = "complaint"  #: The answer is wrong or unwanted, without a better one.
    CORRECTION = "correction"  #: The answer is wrong or unwanted, with what it should be.
    DIRECTIVE = "request to do it differently"  #: Counts only if the message requests nothing new.
    NEGATION = "no"  #: A bare no: a complaint, or the answer to a question.
    ACKNOWLEDGEMENT = "acknowledgement"  #: Ok, no thanks, continue: says nothing about the answer.


@dataclass(frozen=True, slots=True)
class Signal:
    """A clause's class and the phrase for a hint."""

    kind: Kind
    phrase: str = ""  #: In the user's words as far as possible; empty if there is none.
    manner: bool = False  #: The phrase is about manner only ("in one sentence"): it joins the instruction before it.
    fallback: bool = False  #: The phrase is derived from a complaint; it is left out beside a real instruction.


#: Signals in every language.
EMOJI = {
    **dict.fromkeys("👍👏❤🙏🎉💯✅😍🥰🤩", Kind.PRAISE),
    **dict.fromkeys("👎😡🤬💩❌🤮😠", Kind.COMPLAINT),
}


def any_of(*patterns: str) -> re.Pattern[str]:
    """Combine patterns into one that matches any of them."""
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
