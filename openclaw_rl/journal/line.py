"""How an entry looks. A line is a line: whatever a text holds, it can't end one or begin another."""

from __future__ import annotations

import time
from functools import lru_cache
from json.encoder import encode_basestring
from typing import NamedTuple

#: Characters that some tools take for the end of a line; JSON leaves them as they are.
_SEPARATORS = {0x7F: "\\u007f", 0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


class Entry(NamedTuple):
    """What is kept until the writer makes a line of it."""

    at: float  #: seconds since the epoch
    session: str
    version: int
    label: str  #: what stands between the version and the text
    text: str
    quoted: bool  #: the text is somebody's words, and stands in quotation marks


def quote(text: str) -> str:
    """The text as a JSON string (`json.loads` gives it back), on one line for every tool."""
    quoted = encode_basestring(text)
    return quoted if quoted.isascii() and "\x7f" not in quoted else quoted.translate(_SEPARATORS)


@lru_cache(1024)
def bare(text: str) -> str:
    """A short text such as a session's id, which stands in brackets without quotation marks."""
    return quote(text)[1:-1].replace("]", "\\u005d")


@lru_cache(4)
def stamp(second: int) -> tuple[str, str]:
    """The local time as it begins a line, and the day as it names a file."""
    local = time.localtime(second)
    return time.strftime("[%Y-%m-%d %H:%M:%S] [SESSION: ", local), time.strftime("%Y%m%d", local)


def lines(entries: list[Entry]) -> list[tuple[str, bytes]]:
    """The entries' lines, joined for each day: (YYYYMMDD, UTF-8 text)."""
    days: list[tuple[str, list[str]]] = []
    second = -1
    for at, session, version, label, text, quoted in entries:
        if int(at) != second:
            second = int(at)
            start, day = stamp(second)
            if not days or days[-1][0] != day:
                days.append((day, []))
            add = days[-1][1].append
        add(f"{start}{bare(session)}] [VERSION: {version}] {label}{quote(text) if quoted else text}\n")
    # Half a surrogate pair can't be UTF-8; it becomes the escape that JSON has for it.
    return [(day, "".join(text).encode("utf-8", "backslashreplace")) for day, text in days]
