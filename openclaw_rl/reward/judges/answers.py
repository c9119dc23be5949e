"""Parser of a model's verdict, in any of the formats that models use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from openclaw_rl.reward.interface import VoteError
from openclaw_rl.rpc.messages import well_formed
from openclaw_rl.runtime.json import parse_json_prefix
from openclaw_rl.runtime.tagged import Tagged

_THOUGHTS = Tagged("think", "thinking", "reasoning", ignore_case=True)
_SAME = str.maketrans({"−": "-", "–": "-", "－": "-", "＋": "+", "：": ":", "１": "1", "０": "0", "【": "[", "】": "]"})
_WORDS = {
    "good": 1, "positive": 1, "satisfied": 1, "helpful": 1, "correct": 1, "好": 1, "正面": 1, "满意": 1, "正确": 1,
    "bad": -1, "negative": -1, "dissatisfied": -1, "unsatisfied": -1, "incorrect": -1, "wrong": -1, "差": -1,
    "负面": -1, "不满意": -1, "错误": -1, "坏": -1, "不好": -1,
    "neutral": 0, "unclear": 0, "ambiguous": 0, "中性": 0, "中立": 0, "一般": 0,
}
_WORD = "|".join(sorted(_WORDS, key=len, reverse=True))
#: A number that is neither part of a longer one nor the start of a list of choices ("-1, 0 or +1").
_NUMBER = r"[+-]?[01](?:\.0++)?(?![\d.]*\d|\s*(?:/|,|or\b|to\b|或|到|至)\s*[+-]?\d)"
_VALUE = rf"(?:{_NUMBER}|(?:{_WORD})(?![\w]))"
_BOXED = re.compile(rf"\\boxed\s*\{{\s*(?:\\text\s*\{{\s*)?({_VALUE})\s*\}}", re.IGNORECASE)
_LABELLED = re.compile(
    r"(?:final[ _]score|score|rating|reward|verdict|judge?ment|vote|label|grade|评分|得分|分数|打分|评价|结论|评级)"
    rf"[\s\"'*_`]*(?:is|为|是|:|=|->)+[\s\"'*_`(\[]*({_VALUE})", re.IGNORECASE)
_BRACKETED = re.compile(rf"\[\s*({_VALUE})\s*\]", re.IGNORECASE)
_ALONE = re.compile(rf"[\s\"'*_`(\[]*({_VALUE})[\s\"'*_`)\].。!]*", re.IGNORECASE)
_HINT_LINE = re.compile(r"^[ \t*_#-]*(?:hint|提示|建议)[*_]*\s*:[*_ ]*(.+)$", re.IGNORECASE | re.MULTILINE)
_HINT_BEGIN, _HINT_END = "[HINT_START]", "[HINT_END]"
#: Characters read from the end of a long answer.
_READ = 20_000
_NOTHING = {"", "none", "null", "n/a", "na", "empty", "no hint", "-", "无", "没有", "空"}
_SCORE_KEYS = ("score", "final_score", "rating", "reward", "verdict", "judgement", "judgment", "vote", "评分", "得分",
               "分数")
_REASON_KEYS = ("reason", "rationale", "reasoning", "explanation", "analysis", "理由", "原因")
_HINT_KEYS = ("hint", "提示", "建议")


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's verdict."""

    score: int
    hint: str
    rationale: str


def parse(text: str) -> Answer:
    r"""Read a model's answer.

    In this order: a JSON object with a score (bare, fenced or amid text), `\boxed{-1}`, `Score: -1` or `评分：-1`,
    `[-1]`, a line or text that is nothing but a score. A score is -1, 0 or +1, or a word such as good, bad, neutral.
    Of several in one format the last counts, since models think first. Thoughts in <think> tags are left out.

    Raises:
        VoteError: there is no score in it.
    """
    text = _THOUGHTS.remove(well_formed(text)).translate(_SAME).strip()[-_READ:]
    for data in _objects(text):
        score = next((found for key in _SCORE_KEYS if (found := _score(data.get(key))) is not None), None)
        if score is not None:
            return Answer(score, _hint(_first(data, _HINT_KEYS)), _first(data, _REASON_KEYS))
    for pattern in (_BOXED, _LABELLED, _BRACKETED):
        if values := pattern.findall(text):
            return Answer(_known(values[-1]), _written_hint(text), text)
    for line in (text, *reversed(text.splitlines())):
        if match := _ALONE.fullmatch(line):
            return Answer(_known(match[1]), _written_hint(text), text if line != text else "")
    shown = " ".join(text.split())
    raise VoteError(f"no score in the answer {shown[:200]!r}" if shown else "the answer is empty")


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Iterate over all JSON objects in the text, the last one first."""
    found = []
    text = re.sub(r"(:\s*)\+(\d)", r"\1\2", text)  # models write "+1", which is no JSON
    at = text.find("{")
    while at >= 0:
        try:
            value, end = parse_json_prefix(text, at, strict=False)
        except ValueError:
            end = at + 1
        else:
            found.append(value)
        at = text.find("{", end)
    yield from reversed(found)


def _score(value: Any) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        return int(value) if value in (-1, 0, 1) else None
    match = _ALONE.fullmatch(str(value))
    return _known(match[1]) if match else None


def _known(value: str) -> int:
    word = value.lower()
    return _WORDS[word] if word in _WORDS else int(float(word))


def _first(data: dict[str, Any], keys: tuple[str, ...]) -> str:
    return next((well_formed(data[key]) for key in keys if isinstance(data.get(key), str)), "")


def _written_hint(text: str) -> str:
    end = text.rfind(_HINT_END)
    while end >= 0:  # the last that has a beginning between the end before it and its own
        before = text.rfind(_HINT_END, 0, end)
        if (begin := text.find(_HINT_BEGIN, before + 1, end)) >= 0:
            return _hint(text[begin + len(_HINT_BEGIN):end])
        end = before
    lines = _HINT_LINE.findall(text)
    return _hint(lines[-1]) if lines else ""


def _hint(text: str) -> str:
    text = " ".join(text.split()).strip("\"'` ")
    return "" if text.lower().strip(".") in _NOTHING else text
