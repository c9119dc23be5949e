"""One row of the table: a policy's answers to the held-out questions, scored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tools.bench.learning.blind import wins
from tools.bench.learning.items import Item
from tools.bench.learning.scorers import Answer, Share, has_terms, length, on_topic
from tools.bench.learning.users import Wish

if TYPE_CHECKING:
    from tools.bench.learning.likelihood import Figures  # with PyTorch

SERVING, GREEDY = 0.7, 0.0
#: Tokens of an answer, at most.
MAX_TOKENS = 200


class Asked(Protocol):
    """Whatever answers."""

    async def ask(self, messages: list[dict[str, str]], *, session: str, side: bool, seed: int, max_tokens: int,
                  temperature: float = SERVING, done: bool = False) -> Answer:
        """Answer a conversation.

        Args:
            session: empty for a question by itself.
            side: nobody trains on it.
            done: it is the user's last word in the session.
        """


@dataclass(frozen=True, slots=True)
class Row:
    """What the table says of one policy, or of one cheat."""

    name: str
    texts: dict[str, dict[str, Share]]  #: by temperature ("0.7", "0.0"), the scores of answers
    kinds: dict[str, float]  #: `kept` by kind of question, at the first temperature
    figures: Figures | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


async def collect(world: Asked, questions: Sequence[Item], temperature: float, seed: int,
                  hint: str = "") -> list[Answer]:
    """Ask all questions as side turns.

    Args:
        hint: put behind each question.
    """
    return list(await asyncio.gather(*(
        world.ask([{"role": "user", "content": f"{item.prompt}\n\n{hint}".strip()}], session="", side=True,
                  seed=seed * 1000 + index, max_tokens=MAX_TOKENS, temperature=temperature)
        for index, item in enumerate(questions))))


def score(questions: Sequence[Item], wish: Wish, answers: Sequence[Answer], base: Sequence[Answer],
          seed: int = 0) -> dict[str, Share]:
    """Score answers.

    Args:
        wish: what the user wants.
        base: the base model's answers, which the blind comparison is against.
    Returns:
        `style`, `on_topic`, `terms`, `kept` (all three: the combined score) and `blind` as shares, `words` an answer.
    """
    style = [not wish.problems(answer) for answer in answers]
    topic = [on_topic(item, answer) for item, answer in zip(questions, answers, strict=True)]
    terms = [has_terms(item, answer) for item, answer in zip(questions, answers, strict=True)]
    values: dict[str, Sequence[float]] = {"style": style, "on_topic": topic, "terms": terms,
              "kept": [all(passed) for passed in zip(style, topic, terms, strict=True)],
              "blind": [wins(item, wish, answer, other, seed)
                        for item, answer, other in zip(questions, answers, base, strict=True)],
              "words": [length(answer.text) for answer in answers]}
    return {name: Share.of([float(value) for value in found]) for name, found in values.items()}


def row(name: str, questions: Sequence[Item], wish: Wish, answers: dict[str, list[Answer]],
        base: dict[str, list[Answer]], seed: int = 0, figures: Figures | None = None, **notes: Any) -> Row:
    """Make a row.

    Args:
        answers, base: by temperature.
    """
    texts = {temperature: score(questions, wish, found, base[temperature], seed)
             for temperature, found in answers.items()}
    first = next(iter(answers.values()))
    passed: dict[str, list[bool]] = {}
    for item, answer in zip(questions, first, strict=True):
        passed.setdefault(item.kind, []).append(
            not wish.problems(answer) and on_topic(item, answer) and has_terms(item, answer))
    return Row(name, texts, {kind: sum(values) / len(values) for kind, values in passed.items()}, figures, notes)
