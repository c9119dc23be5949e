"""What models answer when they are asked for a score."""

from __future__ import annotations

import pytest

from openclaw_rl.reward.interface import VoteError
from openclaw_rl.reward.judges.answers import parse

ANSWERS: list[tuple[str, int, str]] = [
    ('{"reason": "r", "score": -1, "hint": "Answer in one sentence."}', -1, "Answer in one sentence."),
    ('{"score": +1}', 1, ""),
    ('{"score": "+1", "hint": "none"}', 1, ""),
    ('{"score": 0.0, "hint": null}', 0, ""),
    ('{"score": "bad", "hint": "Use JSON."}', -1, "Use JSON."),
    ('```json\n{\n  "score": -1,\n  "hint": "Be brief"\n}\n```', -1, "Be brief"),
    ('Here is my verdict:\n{"score": 1}\nThanks.', 1, ""),
    ('{"example": 1} and {"score": -1}', -1, ""),
    ('{"score": 1} no, rather {"score": -1}', -1, ""),
    ('{"评分": -1, "提示": "用一句话回答"}', -1, "用一句话回答"),
    ('{"reason": "line one\nline two", "score": -1}', -1, ""),
    ("<think>Score: 1? no.</think>Score: -1", -1, ""),
    ("Score: -1", -1, ""),
    ("score = +1", 1, ""),
    ("**Score:** -1\n**Hint:** Answer in English.", -1, "Answer in English."),
    ("Final score: 0", 0, ""),
    ("The user complains.\nScore: −1\nHint: \"No lists.\"", -1, "No lists."),
    ("Score: 1 at first, but then Score: -1", -1, ""),
    ("评分：-1\n提示：简短回答", -1, "简短回答"),
    ("评分: 1", 1, ""),
    ("评价：差", -1, ""),
    ("结论：中性", 0, ""),
    ("\\boxed{-1}", -1, ""),
    ("The answer is \\boxed{1}.", 1, ""),
    ("$\\boxed{ +1 }$ [HINT_START]Use Go.[HINT_END]", 1, "Use Go."),
    ("\\boxed{1} [HINT_START]Use C.[HINT_END] [HINT_START]Use Go.[HINT_END] and [HINT_END]", 1, "Use Go."),
    ("\\boxed{\\text{bad}}", -1, ""),
    ("[-1]", -1, ""),
    ("I think [0] fits", 0, ""),
    ("【1】", 1, ""),
    ("+1", 1, ""),
    ("-1.", -1, ""),
    ("0", 0, ""),
    ("good", 1, ""),
    ("Bad.", -1, ""),
    ("Neutral", 0, ""),
    ("不满意", -1, ""),
    ("The user is unhappy with the length.\n\n-1", -1, ""),
    ("Verdict: negative", -1, ""),
]


@pytest.mark.parametrize(("text", "score", "hint"), ANSWERS, ids=[text[:30] for text, *_ in ANSWERS])
def test_formats(text: str, score: int, hint: str) -> None:
    found = parse(text)
    assert (found.score, found.hint) == (score, hint)


@pytest.mark.parametrize("text", [
    "", "   ", "I cannot judge this.", "Score: 10", "Score: 0.5", "Score: 1/5", "Score: 2", '{"score": 3}',
    '{"score": true}', "Score: -1, 0 or +1", "{broken", "[2]", "\\boxed{7}", "The good, the bad and the ugly.",
    "I give it 1 of 10", "{" * 5000, '{"a":' * 4000,
])
def test_no_score(text: str) -> None:
    with pytest.raises(VoteError):
        parse(text)


def test_the_reason_is_kept() -> None:
    assert parse(r'{"reason": "half \ud800", "score": -1}').rationale == "half \ufffd"
    assert parse('{"reason": "it was long", "score": -1}').rationale == "it was long"
    assert parse("It was long. Score: -1").rationale == "It was long. Score: -1"
