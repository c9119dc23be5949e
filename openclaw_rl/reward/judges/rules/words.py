"""Evidence of the user's words: thanks, complaints, corrections, repeated questions.

Each clause is classified by itself; they combine as follows:

- What follows a new request belongs to that request ("Write X. It should be short. Thanks!"), and a request to do
  something differently ("in one sentence") counts only in a message that asks for nothing new.
- A complaint outranks thanks ("thanks, but that's wrong"), except when the praise comes after a "but" and the complaint
  before it ("it failed at first, but now it works").
- After an answer that is a question, "no" and instructions are the reply to it.
- A request to do something differently counts beside a complaint in any case.
"""

from __future__ import annotations

import re

from openclaw_rl.reward.judges.rules import chinese, english, english_patterns, tool_text
from openclaw_rl.reward.judges.rules.evidence import Evidence, quote
from openclaw_rl.reward.judges.rules.hints import compose
from openclaw_rl.reward.judges.rules.signals import EMOJI, Kind, Signal
from openclaw_rl.reward.judges.text import MASK, Clause, asks_the_same, clauses, content, has_cjk, words

#: Characters read of a message: remarks about an answer are at its start.
READ = 1200
_LONGEST_CLAUSE = 300
_LONGEST_QUESTION = 240
_REST = re.compile(r"not |rather than |而是|是|而不是|不是")
_NEGATIVE = (Kind.COMPLAINT, Kind.CORRECTION, Kind.DIRECTIVE, Kind.NEGATION)


def read(message: str, request: str, answer: str) -> Evidence:
    """Evaluate a user's `message` after the `answer` to a `request`."""
    message, request = message[:READ], request[-READ:]
    found, asks_new = signals(message, request, answer)
    if not any(s.kind in (Kind.COMPLAINT, Kind.CORRECTION) for _, s in found):
        unsaid = [Kind.NEGATION, Kind.DIRECTIVE] if asks_back(answer) else [Kind.DIRECTIVE] if asks_new else []
        found = [(clause, s) for clause, s in found if s.kind not in unsaid]
    negative = [(clause, s) for clause, s in found if s.kind in _NEGATIVE]
    positive = [(clause, s) for clause, s in found if s.kind is Kind.PRAISE]
    recovered = any(c.after_but for c, _ in positive) and not any(c.after_but for c, _ in negative)
    if negative and not (positive and recovered):
        clause, signal = negative[0]
        return Evidence(-1, f"{signal.kind.value}: {quote(clause.original)}", compose([s for _, s in negative]))
    if positive:
        return Evidence(1, f"praise: {quote(positive[0][0].original)}")
    if line := pasted(message, answer):
        return Evidence(-1, f"an error, after an answer with code: {quote(line)}", f"Avoid this error: {line[:200]}")
    if _repeats(message, request):
        return Evidence(-1, f"the same was asked again: {quote(message)}")
    return Evidence(0, f"no opinion of the answer in {quote(message)}" if message.strip()
                    else "the user said nothing")


def pasted(message: str, answer: str) -> str:
    """The error that a user has pasted after an answer with code, without code or a question of their own."""
    if "`" not in answer or "```" in message or "?" in message or "？" in message:
        return ""
    return tool_text.pasted_error(message)


def signals(message: str, request: str, answer: str) -> tuple[list[tuple[Clause, Signal]], bool]:
    """Find the signals about the answer, and whether the message requests something new.

    The caller cuts `message` and `request` to READ characters.
    """
    pieces = clauses(message)
    known = content(request) | content(answer[:4000])
    has_code = "`" in answer
    found: list[tuple[Clause, Signal]] = []
    asks_new = False
    after_no = after_actually = -1
    for clause in pieces:
        if len(clause.text) > _LONGEST_CLAUSE:
            asks_new = True
            continue
        language = chinese if has_cjk(clause.text) else english
        if not found and language.introduces(clause):
            return [], True
        signal = language.classify(clause, has_code) or _emoji(clause)
        novel = content(clause.text.replace(MASK, " ")) - known
        if signal is None or (signal.kind is Kind.DIRECTIVE and _is_task(clause, known)):
            if asks_the_same(request, clause.text):
                continue
            if clause.text == "actually":
                after_actually = clause.sentence
            elif found and _goes_on(clause, *found[-1]):
                found.append((clause, Signal(Kind.CORRECTION, clause.original, manner=True)))
            elif not clause.question and novel and (after_no == clause.sentence or (
                    after_actually == clause.sentence and english_patterns.FACT.fullmatch(clause.text))):
                found.append((clause, Signal(Kind.CORRECTION, clause.original)))
            elif language.asks_something(clause) or len(novel) >= (9 if has_cjk(clause.text) else 4):
                if not (novel or clause.question):
                    continue
                if not asks_new and not found and _elsewhere(clause, novel):
                    return [], True
                asks_new = True
            continue
        if signal.kind is Kind.NEGATION and not asks_back(answer):
            after_no = clause.sentence
        if asks_new and signal.kind is not Kind.COMPLAINT and signal.kind is not Kind.CORRECTION:
            continue
        found.append((clause, signal))
    return found, asks_new


def _goes_on(clause: Clause, before: Clause, signal: Signal) -> bool:
    """Whether the clause belongs to the instruction before it: "it should be X", "not Y"."""
    return bool(signal.phrase) and before.sentence == clause.sentence and bool(_REST.match(clause.text))


def _elsewhere(clause: Clause, novel: frozenset[str]) -> bool:
    """Whether the message starts with something of the user's own, so that what follows is about that."""
    return bool(novel) and not any(word in ("you", "your", "that", "this", "it") for word in words(clause.text))


def _is_task(clause: Clause, known: frozenset[str]) -> bool:
    """Whether an instruction has much beside words of style, as a new task does ("summarise in one sentence: ...")."""
    cjk = has_cjk(clause.text)
    text = (chinese if cjk else english).STYLE.sub(" ", clause.text)
    return clause.opens or len(content(text) - known) > (2 if cjk else 3)


def _emoji(clause: Clause) -> Signal | None:
    return next((Signal(kind) for char in clause.text if (kind := EMOJI.get(char))), None)


def asks_back(answer: str) -> bool:
    """Whether the answer is a question to the user; a long one that merely ends with a question is not."""
    limit = _LONGEST_QUESTION // 3 if has_cjk(answer[-50:]) else _LONGEST_QUESTION
    return len(answer) <= limit and answer.rstrip(" \n*_`)）\"”").endswith(("?", "？"))


def _repeats(message: str, request: str) -> bool:
    if not request.strip():
        return False
    sentences: dict[int, list[str]] = {}
    for clause in clauses(message):
        sentences.setdefault(clause.sentence, []).append(clause.text)
    asked = words(request)
    for text in (message, *(" ".join(parts) for parts in sentences.values())):
        if (len(asked) >= 3 and words(text) == asked) or asks_the_same(request, text):
            return True
    return False
