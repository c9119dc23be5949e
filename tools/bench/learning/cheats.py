"""Answers that look as wished and say nothing, or something false. A measure that lets one pass measures nothing."""

from __future__ import annotations

import re
from collections.abc import Callable

from tools.bench.learning.items import Item

#: Highest combined score (`kept`) that a cheat may have.
LIMIT = 0.3


def _topic(item: Item) -> str:
    return re.sub(r"^(?:what (?:is|are|does|do)|how (?:do|does|can|are|is)(?: i)?|why (?:is|do|does|are))\s+", "",
                  item.prompt.rstrip("?!.？。"), flags=re.IGNORECASE)


def _key_words(item: Item) -> str:
    return " ".join([_topic(item), *(term[0] for term in item.terms)])


CHEATS: dict[str, Callable[[Item], str]] = {
    "wrong facts": lambda item: item.wrong,
    "interesting subject": lambda item: f"{_topic(item)} is an interesting subject that people around the world study.",
    "as an AI": lambda item: f"As an AI language model, {_topic(item)} is outside my knowledge.",
    "echo": lambda item: f"You asked about {_topic(item)}, and {_topic(item)} is what this answer is about.",
    "key words": _key_words,
    "one for all": lambda item: "Plants need water, light and air, and people need food, sleep and good friends.",
}
