"""Words and token counts of texts where there is no tokenizer."""

from __future__ import annotations

import re

_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
_PIECE = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+(?:['’][^\W_{_CJK}]+)*")


def pieces(text: str) -> list[str]:
    """Return the words of a text in lower case; a Chinese, Japanese or Korean character is a word."""
    return [word.replace("’", "'") for word in _PIECE.findall(text.lower())]


def numbers(text: str) -> list[int]:
    """Return the words as numbers, equal words as equal ones."""
    known: dict[str, int] = {}
    return [known.setdefault(word, len(known)) for word in pieces(text)]


def tokens(text: str) -> int:
    """Estimate how many tokens a model counts: one for each Chinese, Japanese or Korean character, one for each four of
    the others."""
    wide = len(re.findall(f"[{_CJK}]", text))
    return wide + -(-(len(text) - wide) // 4)
