"""Untrusted text made harmless: bounded, without characters that a terminal or a page would act on."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import urlsplit, urlunsplit

#: Characters of one result shown to a policy.
MOST = 16_384

# Control characters but tab and new line (escape sequences begin with one), what turns the direction of writing, what
# can't be seen at all, and halves of surrogate pairs.
_ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"
                   "\ud800-\udfff\U000e0000-\U000e007f]")


def inert(text: str, most: int = MOST) -> str:
    """Replace harmful characters by their codes, such as `\\x1b`, and cut the end off.

    Markup stays: it is text, and whoever shows it on a page escapes it as any other.

    Args:
        most: characters kept; the text then says how many were left out.
    """
    kept = _ACTS.sub(_code, text[:most].replace("\r\n", "\n"))
    left_out = max(len(text) - most, 0)
    if len(kept) > most:  # codes are longer than what they stand for
        left_out += len(kept) - most
        kept = kept[:most]
    return f"{kept}\n[{left_out:,} more characters are left out]" if left_out else kept


def as_text(value: Any) -> str:
    """A JSON value for a model to read: strings as they are, others as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def short(value: Any, most: int = 100) -> str:
    """A value for a message, on one line and cut."""
    text = inert(json.dumps(value, ensure_ascii=False, default=repr)[:most + 1], most + 1).replace("\n", "\\n")
    return text if len(text) <= most else text[:most - 3] + "..."


def public_url(url: str) -> str:
    """An address without user, password, query and fragment."""
    split = urlsplit(url)
    return urlunsplit((split.scheme, split.netloc.rpartition("@")[2], split.path, "", ""))


def _code(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
