"""Signals in English clauses about the answer before them.

Patterns are anchored at the clause's start and require a subject that means the answer ("that", "it", "your code"), so
that a task which merely mentions errors or bad things ("write a review: the food was terrible") is no signal.
"""

from __future__ import annotations

import re

from openclaw_rl.reward.judges.rules import english_patterns as p
from openclaw_rl.reward.judges.rules.signals import Kind, Signal
from openclaw_rl.reward.judges.text import Clause

#: Words about the manner of an answer, not its subject.
STYLE = re.compile(rf"\b(?:{p.MANNER_WORD}|{p.SAY}|without|plain|any|only|use|using|don't|never|stop|avoid|keep|make"
                   r"|clear|clearly|direct|directly|single|exactly|nothing|everyday|common|normal)\b")


def classify(clause: Clause, answer_has_code: bool = False) -> Signal | None:
    """Classify a clause; None if it says nothing about the answer."""
    text = p.FILLER.sub("", clause.text).rstrip(p.SYMBOLS)
    if p.ACKNOWLEDGE.fullmatch(text):
        return Signal(Kind.ACKNOWLEDGEMENT)
    text = p.POLITE_END.sub("", text)
    if not text:
        return None
    if without := p.NO_PLEASE.fullmatch(clause.text):
        return Signal(Kind.DIRECTIVE, "without " + _tail(clause.original, clause.text, without[1]), manner=True)
    own = _tail(clause.original, clause.text, text)
    if text in ("no", "nope", "nah", "no no", "noo", "not really"):
        return Signal(Kind.NEGATION)
    if not clause.question and (actually := p.ACTUALLY.fullmatch(text)):
        return Signal(Kind.CORRECTION, _tail(own, text, actually["a"] or text))
    return (_asking(clause, text, own) or _negative(text, own, answer_has_code) or _directive(text, own)
            or _positive(clause, text))


def _asking(clause: Clause, text: str, own: str) -> Signal | None:
    """A request to change the answer, phrased as a question."""
    ask = p.ASK_YOU.fullmatch(text)
    if ask and not p.ANOTHER_TASK.search(text):
        rest = ask["rest"].removeprefix("not ")
        signal = _directive(rest, _tail(own, text, rest))
        if signal and rest != ask["rest"]:
            return Signal(signal.kind, f"Don't {signal.phrase}")
        return signal
    return None


def _negative(text: str, own: str, answer_has_code: bool) -> Signal | None:
    if p.NOT_COMPLAINT.match(text):
        return None
    if too := (p.TOO_ANCHORED.fullmatch(text) and p.TOO_PATTERN.fullmatch(text)) or p.MANY_BULLETS.fullmatch(text):
        how = too["how"].strip()
        if re.match(r"many|much", how) and not re.match(r"much (?:text|detail|information)|many words", how):
            return Signal(Kind.CORRECTION, "Use fewer " + how.split(maxsplit=1)[1] if " " in how else "", fallback=True)
        phrase = next((say for pattern, say in p.ANTONYM if re.match(rf"(?:{pattern})\b", how)),
                      f"Be less {how.split()[0]}")
        return Signal(Kind.CORRECTION, phrase, fallback=True)
    if forgot := p.FORGOT.fullmatch(text):
        rest = forgot["do"] or forgot["what"] or ""
        if rest in ("", "it", "that", "me", "my question", "the question"):
            return Signal(Kind.CORRECTION, "Answer my question" if "question" in rest else "")
        return Signal(Kind.CORRECTION, f"Don't forget {'to ' if forgot['do'] else ''}{_tail(own, text, rest)}")
    if (did_not := p.DID_NOT.fullmatch(text)) and not text.startswith(("you never know", "you didn't have")):
        rest = _tail(own, text, did_not["do"])
        infinitive = not text.startswith("you never") and "haven't" not in text
        if not infinitive:
            return Signal(Kind.CORRECTION, own if " " in rest else "")
        alone = {"answer": "answer the question", "finish": "finish the answer"}
        return Signal(Kind.CORRECTION, rest if " " in rest else alone.get(rest, ""))
    if unwanted := p.UNWANTED.fullmatch(text):
        return Signal(Kind.CORRECTION, f"without {_tail(own, text, unwanted['what'])}", manner=True)
    if p.CORRECTION.fullmatch(text):
        return Signal(Kind.CORRECTION, own)
    if p.COMPLAINT.fullmatch(text):
        return Signal(Kind.COMPLAINT)
    if answer_has_code and p.GOT_ERROR.fullmatch(text):
        return Signal(Kind.COMPLAINT)
    return None



def _directive(text: str, own: str) -> Signal | None:
    rest = p.POLITE_START.sub("", text)
    own = _tail(own, text, rest)
    if re.search(r"\bas well\b|\balso\b|\banother one\b", rest) or p.ABOUT_SOMETHING.search(rest):
        return None
    if not p.DIRECTIVE.fullmatch(rest):
        return None
    if rest.startswith("no "):
        return Signal(Kind.DIRECTIVE, "without" + own[2:], manner=True)
    if re.match(r"(?:in|as|with|without|using)\b", rest):
        return Signal(Kind.DIRECTIVE, own, manner=True)
    if re.match(r"(?!make|keep|be)(?:\w+ ){0,2}(?:shorter|longer|simpler|briefer|clearer)\b", rest):
        return Signal(Kind.DIRECTIVE, f"Make the answer {own}")
    return Signal(Kind.DIRECTIVE, own)


def _positive(clause: Clause, text: str) -> Signal | None:
    if clause.question and p.QUESTION_WORD.match(text):
        return None
    if re.search(r"\b(?:would|could|might|if|unless|only|sometimes|at first|partially)\b", text) and not re.match(
            r"thank|exactly|couldn't|it couldn't", text):
        return None
    return Signal(Kind.PRAISE) if p.PRAISE.fullmatch(text) else None


def asks_something(clause: Clause) -> bool:
    """Whether the clause looks like a request: a question, or it starts with a verb of command."""
    text = p.POLITE_START.sub("", p.FILLER.sub("", clause.text))
    return bool(p.QUESTION_WORD.match(text) or p.TASK.match(text) or clause.question)



def introduces(clause: Clause) -> bool:
    """Whether the clause presents something of the user's own, so that what follows is about that."""
    return bool(p.OWN.match(p.FILLER.sub("", clause.text)))



def _tail(original: str, before: str, after: str) -> str:
    """The part of `original` that corresponds to `after` in `before`, its lower-case version."""
    at = before.find(after)
    if at < 0 or len(original) != len(before):
        return after
    return original[at:at + len(after)]
