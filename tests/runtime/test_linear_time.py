"""No input sets the time: what reads users' texts takes twice as long for twice the text, not four times.

Every pattern of the package is tried on texts that are made from the pattern itself: its beginnings, again and again,
and long runs of what it repeats, with an end that it doesn't accept. CPU time is measured, of this thread alone, and
compared with that of a quarter of the text, so that neither a slow nor a busy machine matters.
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from re import _constants as c  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

import openclaw_rl
from openclaw_rl.config import SessionAwareness
from openclaw_rl.reward.judges.answers import parse
from openclaw_rl.reward.judges.rules import RulesJudge
from openclaw_rl.rollouts.classification.classify import Classifier
from openclaw_rl.rollouts.classification.framework_text import is_framework_text, strip_framework_text
from openclaw_rl.rollouts.tracking.next_state import Outline
from openclaw_rl.runtime.redact import Redactor
from openclaw_rl.sessions.fingerprint import both_digests
from openclaw_rl.v1 import turn_pb2
from tests.reward.factory import feedback, transition

#: Modules whose patterns see texts of so many characters at most, since their callers cut them.
CUT = {"openclaw_rl.reward.judges.rules.english_patterns": 300, "openclaw_rl.reward.judges.rules.english": 300,
       "openclaw_rl.reward.judges.rules.chinese": 300, "openclaw_rl.reward.judges.rules.hints": 1200,
       "openclaw_rl.reward.judges.rules.words": 1200, "openclaw_rl.reward.judges.rules": 1200,
       "openclaw_rl.rollouts.classification.framework_text": 8000,
       "openclaw_rl.rollouts.classification.housekeeping_patterns": 7000,
       "openclaw_rl.training.backends.playbook.rules": 240}
#: Packages that see no user's text, or need what isn't here.
LEFT_OUT = ("openclaw_rl.v1", "openclaw_rl.cli", "openclaw_rl.docs", "openclaw_rl.conformance",
            "openclaw_rl.training.backends", "openclaw_rl.serving.engines", "openclaw_rl.rollouts.environments.gui")
#: In the source of a module that has patterns; others need not be imported.
_MAKES_PATTERNS = re.compile(r"\bre\.compile\(|\bTagged\(|\bany_of\(|\b_signal\(")
#: Characters of the longest text; a fourth and a sixteenth of it come before.
LONGEST = 16_384
#: Texts tried of a pattern; a pattern of hundreds of alternatives would make thousands.
MOST_ATTACKS = 20
#: CPU seconds below which nothing is compared, and by how much more four times the text may take.
SHORT, FACTOR = 0.005, 8.0


def patterns() -> Iterator[tuple[str, Callable[[str], object], re.Pattern[str]]]:
    """Every pattern that a module of the package holds, with the module's name and what is called of it."""
    source = "\n".join(path.read_text() for path in Path(openclaw_rl.__path__[0]).rglob("*.py"))
    calls: dict[str, set[str]] = {}
    for name, method in re.findall(r"\b(\w+)\.(search|match|fullmatch|sub|subn|findall|finditer|split)\(", source):
        calls.setdefault(name, set()).add(method)
    seen: set[int] = set()
    for module in pkgutil.walk_packages(openclaw_rl.__path__, "openclaw_rl."):
        if module.name.startswith(LEFT_OUT) or not _MAKES_PATTERNS.search(_source(module)):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            for pattern in _within(value, 3):
                if id(pattern) not in seen and isinstance(pattern.pattern, str):
                    seen.add(id(pattern))
                    method = calls.get(name, {"search"})
                    yield module.name, (pattern.search if method - {"match", "fullmatch"} else
                                        pattern.match if method - {"fullmatch"} else pattern.fullmatch), pattern


def _source(module: pkgutil.ModuleInfo) -> str:
    found = module.module_finder.find_spec(module.name, None)  # type: ignore[call-arg]
    return Path(found.origin).read_text() if found is not None and found.origin else ""


def _within(value: Any, depth: int) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        yield value
    elif depth and isinstance(value, dict):
        for inner in value.values():
            yield from _within(inner, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for inner in value:
            yield from _within(inner, depth - 1)
    elif depth and type(value).__module__.startswith("openclaw_rl.") and not isinstance(value, type):
        names = getattr(type(value), "__slots__", None) or getattr(value, "__dict__", {})
        for name in names:
            yield from _within(getattr(value, name, None), depth - 1)


def attacks(pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    """Beginnings, and what is repeated behind them: first of all what the pattern itself repeats."""
    tree = parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)
    plain = [("", " "), ("", "a"), ("", "\n"), ("", "1 "), ("", '"')]
    found = {attack: attack[0] == "" for attack in itertools.chain(_beginnings(tree), plain) if attack[1]}
    return sorted(found, key=lambda attack: found[attack])[:MOST_ATTACKS]


def _beginnings(items: Any, before: str = "") -> Iterator[tuple[str, str]]:
    for op, value in items:
        yield "", before
        if op in (c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT):
            _, most, inner = value
            one = sample(inner)
            if most > 8:
                yield before, one
                yield "", before + one
            yield from _beginnings(inner, before)
        elif op is c.BRANCH:
            for branch in value[1]:
                yield from _beginnings(branch, before)
                yield "", before + sample(branch)
        elif op is c.SUBPATTERN:
            yield from _beginnings(value[3], before)
        before += sample([(op, value)])


def sample(items: Any) -> str:
    """A short text that a part of a pattern matches, or nearly."""
    text = ""
    for op, value in items:
        if op is c.LITERAL:
            text += chr(value)
        elif op is c.NOT_LITERAL:
            text += "a" if value != ord("a") else "b"
        elif op is c.ANY:
            text += "a"
        elif op is c.IN:
            text += _one_of(value)
        elif op in (c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT):
            text += sample(value[2]) * (value[0] if value[1] < 8 else max(value[0], 1))
        elif op is c.SUBPATTERN:
            text += sample(value[3])
        elif op is c.ATOMIC_GROUP:
            text += sample(value)
        elif op is c.BRANCH:
            text += sample(value[1][0])
    return text


def _one_of(items: Any) -> str:
    if items[0][0] is c.NEGATE:
        return next(char for char in "ax1 ~" if not any(_accepts(item, char) for item in items[1:]))
    op, value = items[0]
    if op is c.LITERAL:
        return chr(value)
    if op is c.RANGE:
        return chr(value[0])
    return {c.CATEGORY_SPACE: " ", c.CATEGORY_DIGIT: "1", c.CATEGORY_WORD: "a", c.CATEGORY_NOT_SPACE: "a",
            c.CATEGORY_NOT_DIGIT: "a", c.CATEGORY_NOT_WORD: "!"}[value]


def _accepts(item: Any, char: str) -> bool:
    op, value = item
    if op is c.LITERAL:
        return bool(chr(value) == char)
    if op is c.RANGE:
        return bool(value[0] <= ord(char) <= value[1])
    return re.match({c.CATEGORY_SPACE: r"\s", c.CATEGORY_DIGIT: r"\d", c.CATEGORY_WORD: r"\w",
                     c.CATEGORY_NOT_SPACE: r"\S", c.CATEGORY_NOT_DIGIT: r"\D", c.CATEGORY_NOT_WORD: r"\W"}[value],
                    char) is not None


def cpu(work: Callable[[str], object], text: str) -> float:
    """CPU seconds of this thread."""
    begin = time.thread_time()
    work(text)
    return time.thread_time() - begin


def slower(work: Callable[[str], object], before: str, again: str, end: str = "\0", longest: int = LONGEST) -> str:
    """What is wrong with the time that a growing text takes; empty when nothing is."""
    for times in range(8, 33, 4):  # twice the time for each character more would never end
        if (took := cpu(work, before + again * times + end)) > 0.2:
            return f"{took:.3f} s for {times} times {again[:60]!r} behind {before[:60]!r}"
    if cpu(work, before + again * (longest // len(again)) + end) < SHORT:
        return ""
    sizes = [longest // 16, longest // 4, longest]
    texts = [before + again * (size // len(again)) + end for size in sizes]
    least = [float("inf")] * len(texts)
    for _ in range(4):  # the least of some: a disturbed measurement is repeated
        for i, text in enumerate(texts):
            least[i] = min(least[i], cpu(work, text))
            if least[i] > 2:
                break  # the longer ones would take for ever
        found = [(size, took, took / max(shorter, 1e-6)) for size, shorter, took in zip(
            sizes[1:], least, least[1:], strict=False) if took > SHORT and took > FACTOR * shorter]
        if not found:
            return ""
    size, took, factor = found[-1]
    return f"{took:.3f} s for {size} characters, {factor:.0f} times those of a quarter: {before[:60]!r} {again[:60]!r}"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_pattern_takes_time_in_proportion_to_the_text() -> None:
    found = []
    for module, work, pattern in patterns():
        longest = CUT.get(module, LONGEST)
        for before, again in attacks(pattern):
            if len(again) <= longest // 16 and (wrong := slower(work, before, again, longest=longest)):
                found.append(f"{module}: {pattern.pattern[:100]!r}: {wrong}")
                break
    assert not found, "\n".join(found)


NASTY = ["<system-reminder>", "<system-reminder ", "<chat>", "[{\"role\": \"user\"",
         "Sender (untrusted metadata):\n```json\n", "System: [12345678] ", "## a\n", "- a\n", "> ",
         "user: x\nassistant: y\n", "summary: ", "too ", "```", "`a", "“", "'ab ", "but ", "Error: ", "a.",
         "exit code 1\n", "Traceback (most recent call last)\n", "[ ", "] }", "{\"a\":", "hint\n", "[HINT_START]",
         "\\boxed{ ", "score: ", "1.0", "<think>", " ", "\n", "请", "不对，", "HEARTBEAT_OK reply ", "bearer ",
         "token=", "://a", "eyJaaaaaaaaaaa.", ",", "please ", "a\r", "\x1b]"]


def _turn(text: str) -> turn_pb2.Turn:
    return turn_pb2.Turn(api="chat.completions", messages=[turn_pb2.ChatMessage(role="system", content=text),
                                                           turn_pb2.ChatMessage(role="user", content=text)],
                         response=turn_pb2.ChatMessage(role="assistant", content=text))


def _verdict(text: str) -> None:
    with pytest.raises(Exception):  # noqa: B017 - there is none in it
        parse(text)
        raise ValueError


READERS: dict[str, Callable[[str], object]] = {
    "classify": lambda text: Classifier(SessionAwareness()).classify(_turn(text)),
    "framework text": is_framework_text,
    "next state": lambda text: strip_framework_text(turn_pb2.ChatMessage(role="user", parts=[
        turn_pb2.ContentPart(text=text), turn_pb2.ContentPart(text="and this")])),
    "outline": lambda text: Outline.of(_turn(text)),
    "digests": lambda text: both_digests([turn_pb2.ChatMessage(role="assistant", content=text)]),
    "rules": lambda text: RulesJudge().vote_now(transition(text, answer=text, request=text)),
    "rules on a tool's result": lambda text: RulesJudge().vote_now(transition(messages=[
        turn_pb2.ChatMessage(role="tool", content=text)], answer=text)),
    "rules on a comment": lambda text: RulesJudge().vote_now(transition(feedback=[feedback(-1, text)])),
    "a model's verdict": _verdict,
    "redaction": Redactor([]).text,
}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_takes_time_in_proportion_to_the_text(reader: str) -> None:
    found = [f"{again!r}: {wrong}" for again in NASTY
             if (wrong := slower(READERS[reader], "", again, longest=4 * LONGEST))]
    assert not found, "\n".join(found)
