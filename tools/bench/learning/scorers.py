"""Scores of an answer's text that hold for every user: whether it is readable, about the question, and right."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tools.bench.learning.items import Item

STOP_WORDS = frozenset(re.findall(r"\w+", """
a an the is are was were be been do does did how what why when where which who whom that this these those it its of
to in on at by for from with as and or but not no we you your they their them he she i me my our us can could will
would should may might must have has had if then than so such there here when into about up out over work works made
make makes keep keeps find cause causes called known way ways one use used using also more most other many some any
because while after before through very only both until"""))
#: Of a readable answer, the largest part of its four-word sequences that repeat, and the most words in a row without a
#: function word among them.
REPEATED, RUN = 0.2, 5
_CJK = re.compile(r"[\u4e00-\u9fff]")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    text: str
    finished: bool  #: ended by the model, not by the limit


@dataclass(frozen=True, slots=True)
class Share:
    """A mean of values with its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Share:
        """Compute both; the error of one value, or of values that are all alike, is 0."""
        n, mean = len(values), sum(values) / len(values)
        return cls(mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1) / n) if n > 1 else 0.0)


def length(text: str) -> int:
    """Words of a text; of Chinese, two characters count as one."""
    return len(_CJK.sub(" ", text).split()) + len(_CJK.findall(text)) // 2


def content_words(text: str) -> set[str]:
    """Lower-case words that carry meaning, cut to a stem of at most 6 letters; of Chinese, pairs of characters."""
    words = {word[:6].rstrip("s") for word in re.findall(r"[a-z]+", text.lower())
             if len(word) > 2 and word not in STOP_WORDS}
    return words | {run[i:i + 2] for run in re.findall(r"[\u4e00-\u9fff]+", text) for i in range(len(run) - 1)}


def readable(answer: Answer) -> bool:
    """Whether it is language: says something, does not go round in circles, is more than a list of key words."""
    words = re.findall(r"\w+", answer.text.lower())
    fours = [tuple(words[i:i + 4]) for i in range(len(words) - 3)]
    if not words or len(fours) - len(set(fours)) > REPEATED * len(fours):
        return False
    if _CJK.search(answer.text):
        return True
    runs = itertools.groupby(words, lambda word: word in STOP_WORDS)
    return not any(len(list(run)) > RUN for functional, run in runs if not functional)


def on_topic(item: Item, answer: Answer) -> bool:
    """Whether it is readable, about the question (by a word of the question or a term of its answers), and adds three
    content words of its own. In chat it may be about something else, and ask back."""
    asked, said = content_words(item.prompt), content_words(answer.text)
    if not readable(answer) or len(said - asked) < min(3, len(content_words(item.right) - asked)):
        return False
    return item.kind == "chat" or (
        bool(asked & said or term_hits(item, answer)) and not re.search(r"[?？]", answer.text))


def term_hits(item: Item, answer: Answer) -> int:
    """Count the terms of a right answer that it has; words that the question itself has are no merit."""
    asked = set(_words(item.prompt))
    words = [word for word in _words(answer.text) if word not in asked]

    def found(option: str) -> bool:
        if _CJK.search(option):
            return option in answer.text and option not in item.prompt
        return any(word.startswith(option) for word in words)

    return sum(any(map(found, term)) for term in item.terms)


def has_terms(item: Item, answer: Answer) -> bool:
    """At least two terms, or all when there are fewer."""
    return term_hits(item, answer) >= min(2, len(item.terms))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())
