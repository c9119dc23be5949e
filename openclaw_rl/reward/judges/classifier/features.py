"""Features of a user's message beside its embedding: what the rules see, what it has of what came before, its form."""

from __future__ import annotations

import math
import re
import zlib

from openclaw_rl.reward.judges.rules import words
from openclaw_rl.reward.judges.rules.signals import Kind
from openclaw_rl.reward.judges.text import content, has_cjk
from openclaw_rl.reward.judges.text import words as split

#: Characters read of the answer and of its end.
_ANSWER = 4000
_ERROR = re.compile(r"Traceback|\b\w{0,40}(?:Error|Exception)\b|error:|fatal:|\bERR", re.IGNORECASE)
_ASKS = ("?", "？")
_SARCASM = re.compile(r"\b(?:wow|oh|sure|great|brilliant|genius|bravo|congrat\w*|thanks for|nice try|truly|amazing)\b"
                      r"|厉害|真行|佩服|谢谢你啊|好家伙|不愧|可真", re.IGNORECASE)


def features(message: str, request: str, answer: str) -> list[float]:
    """Compute COUNT numbers between 0 and about 2 of a `message` after the `answer` to a `request`."""
    message, request, answer = message[:words.READ], request[-words.READ:], answer[:_ANSWER]
    score = words.read(message, request, answer).score
    found, asks_new = words.signals(message, request, answer)
    kinds = {signal.kind for _, signal in found}
    new, old, given = content(message), content(request), content(answer)
    length = len(split(message))
    own, end = max(1, len(new)), message.rstrip()[-1:]
    novel = len(new - old - given)
    error, code = bool(_ERROR.search(message)), "`" in answer
    values = [
        score > 0, score < 0, *(kind in kinds for kind in Kind), asks_new,
        len(new & old) / own, len(new & given) / own, len(new & old) / max(1, len(old)), novel / own, min(novel, 8) / 8,
        min(length, 60) / 30, math.log1p(length) / 4, length <= 3, length <= 6,
        end in _ASKS and end != "", any(mark in message for mark in _ASKS), "!" in message or "！" in message,
        "..." in message or "…" in message, "\n" in message, error, code, error and code,
        has_cjk(message) == has_cjk(request), has_cjk(message), words.asks_back(answer),
        "??" in message or "？？" in message, message.isupper(), any(character.isdigit() for character in message),
        bool(_SARCASM.match(message)),
    ]
    return [float(value) for value in values]


COUNT = len(features("", "", ""))

#: Number of classes into which sequences of words are hashed.
GRAMS = 2 ** 14
_MOST_WORDS = 120


def grams(message: str) -> list[int]:
    """Hash the sequences of one to three words (Chinese characters) of a message; its ends are words, too."""
    row = ["^", *split(message[:words.READ])[:_MOST_WORDS], "$"]
    return sorted({zlib.crc32(" ".join(row[at:at + length]).encode()) % GRAMS
                   for length in (1, 2, 3) for at in range(len(row) - length + 1)})
