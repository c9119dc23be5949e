"""Detection of repetition: responses that repeat one phrase, and samples of a step that repeat one another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from openclaw_rl.v1 import turn_pb2

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


def distinct(samples: Sequence[turn_pb2.Sample]) -> list[turn_pb2.Sample]:
    """Return the samples without those that say again what another of them says: the same judgement and hint on the
    same prompt, and where there is no hint, the same response too. A thousand identical complaints, from as many
    sessions, are one reason to change, not a thousand."""
    found: dict[tuple[object, ...], turn_pb2.Sample] = {}
    for sample in samples:
        turn, judgement = sample.transition.turn, sample.judgement
        hint = judgement.hint.strip()
        asked = tuple(turn.tokens.prompt_ids) or tuple((m.role, m.content) for m in turn.messages)
        said = () if hint else tuple(turn.tokens.response_ids) or turn.response.content
        found.setdefault((judgement.score, hint, asked, said), sample)
    return list(found.values())
