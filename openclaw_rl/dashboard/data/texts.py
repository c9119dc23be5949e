"""Sanitise texts of users, tools and models for display.

That markup is no markup is the browser's part, since texts are only ever handed over as text. Here is what is left:
escape sequences of terminals, characters that turn the reading direction of what is around them, control characters,
halves of surrogate pairs, and texts of any length.
"""

from __future__ import annotations

import re

#: Characters of a text that a page shows at once.
SHOWN = 20_000

#: CSI and OSC sequences, other strings of a terminal, and two-character escapes.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|"
                      r"[ -/]*[0-~])|\x9b[0-?]*[ -/]*[@-~]")
_SPECIAL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
                      r"\ud800-\udfff\ufff9-\ufffb\U000e0000-\U000e007f]")


def inert(text: str, limit: int = SHOWN) -> str:
    """The text with nothing in it that acts: control and direction characters are shown by their numbers, line ends
    are newlines. Beyond `limit` characters it is cut, and says so."""
    cut = len(text) - limit
    if cut > 0:
        text = text[:limit]
    text = _SPECIAL.sub(_shown, text.replace("\r\n", "\n").replace("\r", "\n"))
    return f"{text}\n… (+{cut})" if cut > 0 else text


def line(text: str, limit: int = 200) -> str:
    """The text in one line of at most `limit` characters."""
    flat = " ".join(inert(text, 4 * limit).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def terminal(text: str, limit: int = SHOWN) -> str:
    """The end of a terminal's output as plain text: its escape sequences are gone, and so is what a carriage return
    let the next text overwrite."""
    plain = _ESCAPES.sub("", text[-4 * limit:])
    plain = "\n".join(row.rstrip("\r").rpartition("\r")[2] for row in plain.split("\n"))
    return inert(plain[-limit:], limit)


def _shown(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\ufffd" if 0xd800 <= code <= 0xdfff else f"⟨U+{code:04X}⟩"
