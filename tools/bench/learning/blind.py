"""Comparison of two answers by rules that are not told whose they are."""

from __future__ import annotations

import random

from tools.bench.learning.items import Item
from tools.bench.learning.scorers import Answer, has_terms, on_topic, term_hits
from tools.bench.learning.users import Wish

#: Terms beyond these add nothing: else the longest answer won.
_ENOUGH = 2


def worth(item: Item, wish: Wish, answer: Answer) -> tuple[bool, int, int]:
    """Rate an answer; the larger tuple is the better answer. First comes whether it is about the question and right:
    what is not is worth nothing, whatever its style. Then fewer faults of style, then up to two terms."""
    if not on_topic(item, answer) or not has_terms(item, answer):
        return False, 0, 0
    return True, -len(wish.problems(answer)), min(_ENOUGH, term_hits(item, answer))


def wins(item: Item, wish: Wish, answer: Answer, other: Answer, seed: int) -> float:
    """Return 1 when `answer` is preferred to `other`, 0 when `other` is, .5 for a tie. The judge sees both in random
    order, with nothing else about them."""
    swapped = random.Random(f"{item.prompt} {seed}").random() < 0.5
    first, second = (other, answer) if swapped else (answer, other)
    one, two = worth(item, wish, first), worth(item, wish, second)
    verdict = 0.5 if one == two else float(one > two)
    return 1 - verdict if swapped else verdict
