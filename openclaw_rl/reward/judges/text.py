"""Text analysis shared by the judges: words, clauses, similarity of requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from openclaw_rl.v1 import turn_pb2

CJK = "\u3400-\u4dbf\u4e00-\u9fff"
_HAS_CJK = re.compile(f"[{CJK}]")
_WORD = re.compile(f"[{CJK}]|[^\\W_{CJK}]+(?:'[^\\W_{CJK}]+)*")
#: Code and quotations are not the user's words. Masked with a character that no pattern matches, keeping the length.
_FOREIGN = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`|\"[^\"\n]{2,}\"|“[^”]*”|「[^」]*」|『[^』]*』|《[^》]*》|(?<!\w)'[^'\n]{2,}'(?!\w)"
    r"|^[ \t]*>.*$", re.DOTALL | re.MULTILINE)
MASK = "\x00"
#: Clauses read of a message: remarks about an answer are at its start.
MOST_CLAUSES = 40
_SAME = str.maketrans({"’": "'", "‘": "'", "´": "'", "，": ",", "；": ";", "：": ":", "！": "!", "？": "?", "（": "(",
                       "）": ")", "\u3000": " ", "\t": " ", "\r": " "})
_END = re.compile(r"[!?;:\n。、…~～]+|[,](?!\d{3}\b)|\.(?=\s|$|\.)|[.](?=[A-Z])|\s[-–]+\s|—+|[()]")
_BUT = re.compile(r"\b(?:but|however|though|although|yet|except)\b|但是|但|不过|可是|然而|只是(?=[^不])")
_CJK_GAP = re.compile(f"(?<=[{CJK}]) +(?=[{CJK}])")


def has_cjk(text: str) -> bool:
    """Whether a text has Chinese characters."""
    return bool(_HAS_CJK.search(text))


def words(text: str) -> list[str]:
    """The words of a text in lower case; a Chinese character is a word."""
    return _WORD.findall(text.lower().translate(_SAME))


def text_of(message: turn_pb2.ChatMessage) -> str:
    """The text of a message, including that of its parts."""
    return "\n".join(text for text in (message.content, *(part.text for part in message.parts)) if text)


@dataclass(frozen=True, slots=True)
class Clause:
    """A part of a message between two stops."""

    text: str  #: In lower case, with quotations and code masked, for patterns.
    original: str  #: As the user wrote it.
    question: bool  #: Its sentence ends with a question mark.
    after_but: bool  #: A "but" came before it.
    sentence: int  #: Index of its sentence.
    opens: bool  #: It ends with a colon, so it introduces what follows.


def clauses(text: str) -> list[Clause]:
    """Split a message into clauses, at stops, commas and "but"; for Chinese at spaces too."""
    masked = _FOREIGN.sub(lambda match: MASK * len(match[0]), text).translate(_SAME)
    cuts: list[tuple[int, int, str]] = [(m.start(), m.end(), m[0]) for m in _END.finditer(masked)]
    cuts += [(m.start(), m.end(), "but") for m in _BUT.finditer(masked.lower())]
    cuts += [(m.start(), m.end(), " ") for m in _CJK_GAP.finditer(masked)]
    cuts.sort()
    cuts.append((len(masked), len(masked), "\n"))
    found: list[tuple[str, str, bool, int, bool]] = []
    questions: set[int] = set()
    begin, sentence, after_but = 0, 0, False
    for start, end, stop in cuts:
        if start < begin:
            continue
        piece = masked[begin:start]
        if piece.strip(" *#-\x00") or MASK in piece:
            found.append((piece.lower().strip(" *#-"), text[begin:start].strip(" *#-"), after_but, sentence,
                          ":" in stop))
            if len(found) == MOST_CLAUSES:
                break
        if "?" in stop:
            questions.add(sentence)
        if stop == "but":
            after_but = True
        elif stop.strip(" ,:-–—()、"):
            sentence += 1
        begin = end
    return [Clause(low, original, at in questions, but, at, opens) for low, original, but, at, opens in found]


_STOP = frozenset(re.findall(r"\S+", """
a an the of to in on at for and or is are was were be been do does did i me my you your it its this that these those we
us our can could would should will shall may might please with by from as so if then there here what which who whom
whose when where why how tell give show explain describe say know want need asking asked ask again i'm i'd you're it's
what's how's just now about one ok okay um uh hi hello hey really actually some any
的 了 吗 呢 啊 吧 呀 是 在 有 和 与 及 我 你 您 请 问 一 下 个 么 什 怎 样 到 底 就 都 给 把 被 让 想 要 能 会
说 诉 告 帮 那 这"""))


@lru_cache(maxsize=64)  # each clause is compared with the same request
def content(text: str) -> frozenset[str]:
    """The content words of a request; English ones without the plural s."""
    return frozenset(_stem(word) for word in words(text) if word not in _STOP)


def _stem(word: str) -> str:
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word


def asks_the_same(before: str, now: str) -> bool:
    """Whether `now` repeats the question of `before`: it has nothing new, and most of the old.

    A single new word makes another question ("the capital of Spain" after "the capital of France"); word order counts
    for sequences of Chinese characters and for words that only change places ("int to string" after "string to int").
    """
    old, new = content(before), content(now)
    if len(old) < 2 or len(new) < 2 or new - old or len(new) < 0.6 * len(old):
        return False
    first, second = _sequence(before, new), _sequence(now, new)
    return _common(first, second) >= 0.8 * len(second)


def _sequence(text: str, keep: frozenset[str]) -> list[str]:
    return [stem for word in words(text)[:400] if word not in _STOP and (stem := _stem(word)) in keep]


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for x in a:
        last = 0
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], last + 1 if x == y else max(row[j], row[j - 1])
    return row[-1]
