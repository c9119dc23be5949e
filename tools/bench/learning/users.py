"""Simulated users: what they want, and what they say about an answer."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tools.bench.learning import items
from tools.bench.learning.items import Item
from tools.bench.learning.scorers import Answer, has_terms, length, on_topic

MAX_WORDS = 60
MARKDOWN = re.compile(r"\*\*|__|`|^\s*#+\s|^\s*[-*+]\s|^\s*\d+[.)]\s|\|.*\|", re.MULTILINE)
_POINT = re.compile(r"^\s*(?:[-*+•]|\d+[.)、．])\s*\S", re.MULTILINE)
_INFORMAL = re.compile(r"!|！|\b\w+'(?:m|re|ve|ll|d|t)\b|\b(?:hey|yeah|okay|gonna|wanna|stuff|guys|awesome)\b",
                       re.IGNORECASE)
#: Chances of a complaint about an answer that was all right, of a correction of facts where only these were wrong, and
#: of Chinese about an English answer.
UNFAIR, CORRECTS, FOREIGN = 0.05, 0.5, 0.1


@dataclass(frozen=True, slots=True)
class Wish:
    """A style."""

    name: str
    hint: str  #: what the teacher is told
    problems: Callable[[Answer], list[str]]  #: what is wrong with an answer, the worst first; keys of complaints.yaml


def _plain(answer: Answer) -> list[str]:
    found = {"long": length(answer.text) > MAX_WORDS, "markdown": bool(MARKDOWN.search(answer.text)),
             "unfinished": not answer.finished}
    return [name for name, holds in found.items() if holds]


def _lists(answer: Answer) -> list[str]:
    found = {"no_list": len(_POINT.findall(answer.text)) < 3, "informal": bool(_INFORMAL.search(answer.text)),
             "unfinished": not answer.finished}
    return [name for name, holds in found.items() if holds]


PLAIN = Wish("plain", "Answer briefly in plain words, in one sentence.", _plain)
LISTS = Wish("lists", "Answer formally, with a numbered list of three short points.", _lists)


@dataclass(frozen=True, slots=True)
class User:
    """A user, who may change his mind."""

    name: str
    wishes: Sequence[tuple[int, Wish]]  #: from which interaction on

    def wish(self, interaction: int) -> Wish:
        """Return what is wanted at an interaction, counted from 0."""
        return next(wish for since, wish in reversed(self.wishes) if interaction >= since)

    def reply(self, item: Item, answer: Answer, interaction: int, seed: int) -> str:
        """Return the next message. The same arguments give the same words."""
        dice = random.Random(f"{self.name} {seed} {interaction}")
        wish, words = self.wish(interaction), _words()
        problems = wish.problems(answer)
        unfair, corrects, foreign = (dice.random() < chance for chance in (UNFAIR, CORRECTS, FOREIGN))
        if problems:
            said = words[wish.name][problems[0]]
        elif not on_topic(item, answer):
            said = words["off_topic"]
        elif not has_terms(item, answer) and corrects:
            said = words["facts"]
        else:
            said = words["unfair" if unfair else "praise"]
        language = "zh" if item.kind == "chinese" or foreign else "en"
        return str(dice.choice(said[language])).format(good=item.right)


@functools.cache
def _words() -> Any:
    return items.read("complaints")


USERS = {user.name: user for user in (
    User("plain", [(0, PLAIN)]),
    User("formal", [(0, LISTS)]),
    User("changer", [(0, PLAIN), (20, LISTS)]),
)}
