"""What one clause of a user's message says about the answer before it."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass


class Kind(enum.Enum):
    """What kind of thing a clause is."""

    PRAISE = "praise"  #: Thanks, satisfaction, agreement.
    COMPLAINT = "complaint"  #: The answer is wrong or unwanted, without saying how it should be.
    CORRECTION = "correction"  #: The answer is wrong or unwanted, and how it should be.
    DIRECTIVE = "request to do it differently"  #: Counts only when the message asks for nothing new.
    NEGATION = "no"  #: A bare no: a complaint, or the answer to a question.
    ACKNOWLEDGEMENT = "acknowledgement"  #: Ok, no thanks, continue: says nothing about the answer.


@dataclass(frozen=True, slots=True)
class Signal:
    """A clause's kind and what a hint may keep of it."""

    kind: Kind
    phrase: str = ""  #: In the user's words as far as possible; empty when there is nothing to keep.
    manner: bool = False  #: The phrase says only how ("in one sentence"): it joins the instruction before it.
    fallback: bool = False  #: The phrase is derived from a complaint; it is left out beside a real instruction.


#: A signal in every language.
EMOJI = {
    **dict.fromkeys("👍👏❤🙏🎉💯✅😍🥰🤩", Kind.PRAISE),
    **dict.fromkeys("👎😡🤬💩❌🤮😠", Kind.COMPLAINT),
}


def any_of(*patterns: str) -> re.Pattern[str]:
    """One pattern that matches what any of these does."""
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
