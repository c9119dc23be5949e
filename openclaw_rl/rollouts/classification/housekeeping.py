"""Detection of a framework's own requests: titles, summaries, search queries, memories, heartbeats.

They arrive without a type, among the user's requests. Evidence is summed up; no single sign is enough, since people ask
for titles and summaries too. The weights were chosen by hand on prompts of public frameworks; the tests measure them on
requests that were written before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from openclaw_rl.rollouts.classification.housekeeping_patterns import (
    JSON_BEGIN,
    JSON_END,
    MANNERS,
    OWN_WORDS,
    QUESTION,
    SPEAKER,
    TAGGED,
    TASK_WORDS,
    TASKS,
)
from openclaw_rl.sessions.fingerprint import is_instruction, text_of
from openclaw_rl.v1 import turn_pb2

#: Sum of weights that makes a side turn, and the number of signs required ...
CERTAIN, MOST_SIGNS = 1.0, 3
#: ... and the sum from which the class is unknown.
DOUBT = 0.85
#: Characters read from the beginning and the end of a text.
_HEAD, _TAIL = 4000, 3000
#: Least characters of an answer whose quotation in a message is a sign.
_QUOTED = 30
#: Few characters beside a quoted conversation, and few tokens of an answer.
_FEW, _FEW_TOKENS = 20, 64


@dataclass(frozen=True, slots=True)
class SessionContext:
    """Facts of the session that concern a request."""

    continues: bool = False  #: it continues a conversation of the session
    others: bool = False  #: the session has main turns
    same_instructions: bool = True  #: its system messages are those of the session's latest main turn
    answers: Sequence[str] = ()  #: beginnings of the session's latest answers


@dataclass(frozen=True, slots=True)
class Evidence:
    """Signs for and against housekeeping."""

    task: str  #: what is requested; empty if it is no known task
    signs: tuple[tuple[str, float], ...]  #: each with its weight

    @property
    def total(self) -> float:
        """Sum of the weights."""
        return round(sum(weight for _, weight in self.signs), 2)

    @property
    def side(self) -> bool:
        """Whether it is housekeeping."""
        return self.total >= CERTAIN and self._enough

    @property
    def doubtful(self) -> bool:
        """Whether it may be housekeeping."""
        return DOUBT <= self.total < CERTAIN and self._enough

    @property
    def _enough(self) -> bool:
        positive = sum(weight > 0 for _, weight in self.signs)
        strong = sum(weight >= 0.5 for _, weight in self.signs)
        return bool(self.task) and (positive >= MOST_SIGNS or strong > 1)

    def __str__(self) -> str:
        signs = sorted(self.signs, key=lambda sign: -abs(sign[1]))
        return f"{self.total:.2f}: " + ", ".join(f"{name} {weight:+.2f}" for name, weight in signs)


def weigh(turn: turn_pb2.Turn, session_context: SessionContext) -> Evidence | None:
    """Weigh the evidence in a request; None if its last message is not the user's, or requests nothing of the kind."""
    if not turn.messages or turn.messages[-1].role != "user":
        return None
    last = _cut(text_of(turn.messages[-1]))
    system = _cut("\n".join(text_of(message) for message in turn.messages if is_instruction(message)))
    words, quotes = _without_quotes(last)
    # The session's own instructions are not part of this request.
    own = bool(system) and not (session_context.others and session_context.same_instructions)
    by_system = _task(system) if own else None
    found = by_system or _task(words)
    if found is None:
        return None
    task, place = found
    asked = f"{system}\n\n{words}" if own else words
    signs = [(TASKS[task].name, TASKS[task].weight)]
    signs.extend((sign.name, sign.weight) for sign in MANNERS if sign.pattern.search(asked))
    if by_system:
        signs.append(("has instructions for nothing else", 0.15))
    if quotes:
        signs.append(("quotes a conversation", 0.35))
        if len(words.strip()) < _FEW:
            signs.append(("consists of a quoted conversation", 0.15))
    if any(len(answer) >= _QUOTED and answer in last for answer in session_context.answers):
        signs.append(("quotes an answer of this session", 0.25))
    if session_context.others:
        # A conversation may continue under instructions with a new date or memory.
        if not session_context.same_instructions and (by_system or not session_context.continues):
            signs.append(("has other instructions than the session", 0.3))
        if not session_context.continues:
            signs.append(("does not continue the session's conversation", 0.15))
    if turn.sampling.HasField("temperature") and turn.sampling.temperature == 0:
        signs.append(("is sampled at temperature 0", 0.1))
    if 0 < turn.sampling.max_tokens <= _FEW_TOKENS:
        signs.append(("wants few tokens", 0.1))
    paragraph = _without_strings(_paragraph(system if by_system else words, place))
    signs.extend((sign.name, sign.weight) for sign in (OWN_WORDS, QUESTION) if sign.pattern.search(paragraph))
    return Evidence(task, tuple(signs))


@lru_cache(maxsize=512)
def _task(text: str) -> tuple[str, int] | None:
    """The task that a text requests, and where. Cached, since the same instructions recur."""
    lower = text.lower()
    if not any(word in lower for word in TASK_WORDS):
        return None
    found = [(signal.weight, task, match.start()) for task, signal in TASKS.items()
             if (match := signal.pattern.search(text))]
    return max(found, key=lambda item: item[0])[1:] if found else None


def _paragraph(text: str, place: int) -> str:
    """The paragraph at `place`."""
    end = text.find("\n\n", place)
    return text[text.rfind("\n\n", 0, place) + 1:end if end >= 0 else len(text)].strip()


def _cut(text: str) -> str:
    return text if len(text) <= _HEAD + _TAIL else f"{text[:_HEAD]}\n{text[-_TAIL:]}"


def _without_quotes(text: str) -> tuple[str, bool]:
    """Remove quoted conversations from a message; returns the rest, and whether there were any."""
    words = TAGGED.remove(text, "\n")
    words = _without_json(words)
    quoted = words != text
    speakers = list(SPEAKER.finditer(words))
    both = any(match["user"] for match in speakers) and any(match["assistant"] for match in speakers)
    if both:
        begin = speakers[0].start()
        end = words.find("\n\n", speakers[-1].end())
        if end < 0:  # no empty line behind it: the last speaker's line ends it
            end = words.find("\n", speakers[-1].end())
        words = f"{words[:begin]}\n{words[end:] if end >= 0 else ''}"
    return words, quoted or both


def _without_json(text: str) -> str:
    """Remove a conversation that is quoted as JSON: from its beginning to the last end of a list of objects."""
    if (begin := JSON_BEGIN.search(text)) is None:
        return text
    ends = [match.end() for match in JSON_END.finditer(text, begin.end())]
    return f"{text[:begin.start()]}\n{text[ends[-1]:]}" if ends else text


def _without_strings(text: str) -> str:
    """Remove what is in quotation marks: words for the answer, or examples."""
    parts = text.replace("“", '"').replace("”", '"').split('"')
    return " ".join(parts[::2])
