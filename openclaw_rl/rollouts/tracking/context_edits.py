"""Detection of edits to a conversation: messages that the client dropped, summarised or edited.

The session's latest conversations are compared with a request message by message, by digest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from openclaw_rl.rollouts.tracking.next_state import SINGLE, Outline
from openclaw_rl.sessions.fingerprint import text_of

#: Messages at the end of a conversation that are compared; earlier ones count as unchanged.
_COMPARED = 200
_SUMMARY = re.compile(
    r"\b(?:summary|recap) of (?:the|our|this|earlier|previous|older)\b|\b(?:conversation|context|session) summary\b"
    r"|being continued from a previous conversation|<(?:conversation_|context_)?summary>|\bsummary(?: so far| below|:)"
    r"|\b(?:was|were|been) (?:compacted|summari[sz]ed)\b|(?:对话|会话|上文|历史)(?:的)?(?:摘要|总结|概要)|摘要如下",
    re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Change:
    """Difference between a request's context and the session's."""

    text: str  #: for a person
    common: int  #: messages that both have
    compacted: bool  #: messages are gone; otherwise some were edited


def compare(before: bytes, outline: Outline) -> Change | None:
    """Compare a request with an earlier conversation (`Outline.trail`); None if it continues it, is its beginning, or
    is unrelated."""
    old = [before[i:i + SINGLE] for i in range(0, len(before), SINGLE)]
    new, places = outline.singles, outline.places
    same = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    if same in (len(old), len(new)):
        return None
    skip = max(same, len(old) - _COMPARED), max(same, len(new) - _COMPARED)
    blocks = [block for block in SequenceMatcher(None, old[skip[0]:], new[skip[1]:], autojunk=False)
              .get_matching_blocks() if block.size]
    matched = sum(block.size for block in blocks)
    if not any(outline.messages[places[skip[1] + i]].role == "assistant"
               for block in blocks for i in range(block.b, block.b + block.size)):
        if same:
            return Change(f"edited: message {places[same] + 1} differs", same, compacted=False)
        if _summarised(outline, 2):
            return Change(f"compacted: all {len(old)} messages gone, a summary in their place", 0, compacted=True)
        return None
    old_end, new_end = skip[0] + blocks[-1].a + blocks[-1].size, skip[1] + blocks[-1].b + blocks[-1].size
    gone, added = old_end - same - matched, new_end - same - matched
    if gone > added:
        text = f"compacted: {gone} of {len(old)} messages gone"
        if added and _summarised(outline, same + added):
            text += ", a summary in their place"
        return Change(text, same + matched, compacted=True)
    number = places[same] + 1
    if gone == added == 1:
        text = f"edited: message {number} differs"
    elif gone == added:
        text = f"edited: {gone} messages differ, the first is message {number}"
    else:
        text = f"edited: {added - gone} messages are new, the first is message {number}"
    return Change(text, same + matched, compacted=False)


def _summarised(outline: Outline, count: int) -> bool:
    """Whether one of the first messages, or an instruction, looks like a summary."""
    first: Sequence[int] = outline.places[:count]
    end = first[-1] if first else len(outline.messages) - 1
    return any(_SUMMARY.search(text_of(message)[:4000]) for message in outline.messages[:end + 1])
