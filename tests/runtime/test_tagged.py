"""Parts between tags: what the pattern that it stands for finds, without its time."""

from __future__ import annotations

import random
import re

import pytest

from openclaw_rl.runtime.tagged import Tagged

PIECES = ["<a>", "</a>", "<b x=1>", "</b>", "<ab>", "</ab>", "<a <b>", "x", "\n", "<A>", "</A>", "</b", "<"]


@pytest.mark.parametrize(("tagged", "pattern"), [
    (Tagged("a", "b", attributes=r"[^>\n]{0,9}", line_end=True),
     re.compile(r"<(a|b)\b[^>\n]{0,9}>.*?</\1>\n?", re.DOTALL)),
    (Tagged("a", "ab", ignore_case=True), re.compile(r"<(a|ab)\b>.*?</\1>", re.DOTALL | re.IGNORECASE)),
])
def test_it_finds_what_the_pattern_finds(tagged: Tagged, pattern: re.Pattern[str]) -> None:
    pieces = random.Random(3)
    for _ in range(3000):
        text = "".join(pieces.choices(PIECES, k=pieces.randint(0, 12)))
        assert list(tagged.spans(text)) == [match.span() for match in pattern.finditer(text)], text
        assert tagged.remove(text, "-") == pattern.sub("-", text)
        assert tagged.remove(text) == pattern.sub("", text)
