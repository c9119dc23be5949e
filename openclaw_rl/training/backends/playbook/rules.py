"""Rules of a playbook: texts that may become instructions, that say the same, and that must go."""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import SequenceMatcher

from openclaw_rl.training.buffer.words import pieces, tokens
from openclaw_rl.v1.playbook_pb2 import Playbook, PlaybookEntry

#: Characters of an instruction.
SHORTEST, LONGEST = 8, 240
#: Words that are alike to this degree (Ratcliff and Obershelp's ratio) are forms of one word.
_SAME_WORD = 0.82

#: What an instruction never has: it would be of one user's conversation, or reach beyond a way to answer.
_FORBIDDEN = (
    ("an address on the web", r"https?:|www\.|\b[\w-]+\.(?:com|net|org|io|cn|de|dev|ai|app|gov|edu)\b"),
    ("an e-mail address", r"\S@\S"),
    ("a path", r"(?:^|\s)(?:~|\.{1,2})?/\w[\w.-]*/|[A-Za-z]:\\"),
    ("a network address", r"\b\d{1,3}(?:\.\d{1,3}){3}\b"),
    ("a long number", r"\d[\d\s().+-]{5,}\d"),
    ("an id or a key", r"\b(?=\w*\d)(?=\w*[A-Za-z])[\w-]{12,}|\b[0-9a-fA-F]{12,}\b"
                       r"|\b(?:sk|pk|ghp|xox\w|AKIA)[-_]?\w{8,}|[A-Za-z0-9+/]{32,}"),
    ("a secret", r"\b(?:password|passwd|passphrase|secret key|api[ _-]?key|access token|bearer)\b|密码|口令|密钥"),
    ("the form of a prompt", r"<\|?/?[\w ]+\|?>|\[/?(?:INST|SYS)\]|^\s*(?:system|assistant|user|developer)\s*:|[{}`]"),
    ("an instruction about instructions",
     r"\b(?:ignore|disregard|forget|override|bypass|reveal|repeat|print|leak)\b.{0,40}"
     r"\b(?:instruction|prompt|rule|guideline|polic|safety|previous|above)"
     r"|\b(?:you are now|act as|pretend|jailbreak|developer mode|system prompt)\b"
     r"|(?:忽略|无视|忘记|绕过|泄露).{0,20}(?:指令|提示|规则|系统)|系统提示|你现在是|假装|扮演"),
    ("a call to act", r"\b(?:send|forward|upload|transfer|pay|wire|delete|execute|download|click|visit)\b"
                      r"|转账|付款|点击|下载"),
)
_PATTERNS = [(what, re.compile(pattern, re.IGNORECASE | re.MULTILINE)) for what, pattern in _FORBIDDEN]
_NEGATIONS = {"not", "no", "never", "without", "avoid", "stop", "don't", "dont", "doesn't", "isn't", "cannot", "can't",
              "不", "别", "勿", "没", "无", "禁"}
_FILLERS = {"a", "an", "the", "please", "always", "just", "only", "your", "you", "my", "me", "i", "in", "of", "to",
            "for", "and", "with", "as", "on", "at", "be", "is", "it", "that", "this", "do", "does", "should", "must",
            "when", "answer", "answers", "respond", "response", "responses", "reply", "replies", "give", "write",
            "keep", "make", "user", "users", "very", "请", "的", "地", "得", "了", "用", "您", "你", "回", "答", "复"}


class Refused(ValueError):
    """A text can't be an instruction; the text says why."""


def clean(text: str) -> str:
    """Return the text as an instruction: on one line, without list marks and control characters.

    Raises:
        Refused: it is too short or too long, or has what no instruction may have.
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    line = re.sub(r"^(?:[-*•–]|\d{1,2}[.)])\s+", "", line).strip("\"'“”「」 ")
    least = SHORTEST // 2 if any(len(word) == 1 and ord(word) > 0x3000 for word in pieces(line)) else SHORTEST
    if not least <= len(line) <= LONGEST:
        raise Refused(f"it has {len(line)} characters; {least} to {LONGEST} are allowed")
    for what, pattern in _PATTERNS:
        if pattern.search(line):
            raise Refused(f"it has {what}")
    return line


def alike(one: str, other: str) -> bool:
    """Return whether two instructions say the same: their words are the same or forms of the same, but for fillers, and
    both forbid or both ask. A word more or another one, such as "short" for "long", makes another instruction."""
    a, b = pieces(one), pieces(other)
    if _NEGATIONS.isdisjoint(a) != _NEGATIONS.isdisjoint(b):
        return False
    mine, rest = ([word for word in dict.fromkeys(words) if word not in _FILLERS | _NEGATIONS] for words in (a, b))
    if not mine or len(mine) != len(rest):
        return a == b
    for word in mine:
        same = next((found for found in rest if found == word), None) or next(
            (found for found in rest if SequenceMatcher(None, word, found).ratio() >= _SAME_WORD), None)
        if same is None:
            return False
        rest.remove(same)
    return True


def mean_score(entry: PlaybookEntry) -> float:
    """Return the mean score of the turns that were answered under an instruction; 0 before there are any."""
    return entry.score_sum / entry.uses if entry.uses else 0.0


def fade(playbook: Playbook, min_uses: int) -> None:
    """Halve figures of many uses, so that newer turns reveal an instruction that turned bad."""
    for entry in playbook.entries:
        while entry.uses >= 4 * min_uses:
            entry.uses //= 2
            entry.score_sum = max(-entry.uses, min(entry.score_sum / 2, entry.uses))


def retire(playbook: Playbook, min_uses: int, min_score: float) -> list[PlaybookEntry]:
    """Remove instructions that don't help: turns under them, `min_uses` or more, score less than `min_score`."""
    gone = [entry for entry in playbook.entries if entry.uses >= min_uses and mean_score(entry) < min_score]
    _keep(playbook, {entry.id for entry in playbook.entries} - {entry.id for entry in gone})
    return gone


def bound(playbook: Playbook, max_tokens: int, max_entries: int, fresh: Collection[str] = ()) -> list[PlaybookEntry]:
    """Remove instructions until the rest is within bounds: the one with the lowest mean score first, of equals the
    oldest; those that are `fresh` only when they are alone too many."""
    gone = []
    while len(playbook.entries) > max_entries or size(playbook) > max_tokens:
        worst = min(playbook.entries, key=lambda entry: (entry.id in fresh, mean_score(entry), entry.added_in))
        gone.append(worst)
        _keep(playbook, {entry.id for entry in playbook.entries} - {worst.id})
    return gone


def size(playbook: Playbook) -> int:
    """Count the tokens of all instructions together; see words.tokens."""
    return sum(tokens(entry.text) + 2 for entry in playbook.entries)  # with the mark and the end of the line


def _keep(playbook: Playbook, ids: set[str]) -> None:
    kept = [entry for entry in playbook.entries if entry.id in ids]
    del playbook.entries[:]
    playbook.entries.extend(kept)
