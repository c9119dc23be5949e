"""Detection of responses that repeat one phrase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

#: A phrase counts as repeated from so many tokens on; short answers repeat themselves by chance.
REPETITION_TOKENS = 16
#: Tokens of a phrase.
PHRASE = 4


def looping(ids: Sequence[int]) -> bool:
    """Return whether one repeated phrase makes up over half of the tokens."""
    ids = list(ids)
    # Nearly all responses are done here: what occurs so rarely can't cover so much.
    phrases = Counter(zip(*(ids[at:] for at in range(PHRASE)), strict=False))
    covered = PHRASE * max(phrases.values(), default=0)
    if covered < REPETITION_TOKENS or 2 * covered <= len(ids):
        return False
    repeated = repetition(ids)
    return repeated >= REPETITION_TOKENS and 2 * repeated > len(ids)


def repetition(ids: Sequence[int]) -> int:
    """Return how many of the tokens belong to the 4-gram that covers most of them."""
    last: dict[tuple[int, ...], int] = {}
    covered: Counter[tuple[int, ...]] = Counter()
    for at in range(len(ids) - PHRASE + 1):
        phrase = tuple(ids[at:at + PHRASE])
        covered[phrase] += min(PHRASE, at - last.get(phrase, -PHRASE))
        last[phrase] = at
    return max(covered.values(), default=0)
