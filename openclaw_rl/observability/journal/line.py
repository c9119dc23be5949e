"""Format of journal entries: each is one line, whatever its texts contain."""

from __future__ import annotations

import time
from collections.abc import Callable
from json.encoder import encode_basestring

#: Length of the time that begins a line, in brackets.
_STAMP = 21
#: Characters that some tools take for the end of a line; JSON leaves them as they are.
_SEPARATORS = ("\x7f", "\x85", "\u2028", "\u2029")


#: What is kept until the writer makes a line of it: seconds since the epoch, session, version, what stands between the
#: version and the text, the text, and whether the text is somebody's words and stands in quotation marks. (A plain
#: tuple: making a named one would cost more than all the rest of appending.)
Entry = tuple[float, str, int, str, str, bool]


def bare(text: str) -> str:
    """A short text such as a session's id, which stands in brackets without quotation marks."""
    return encode_basestring(text)[1:-1].replace("]", "\\u005d")


def stamp(second: int) -> tuple[str, str]:
    """The local time as it begins a line, and the day as it names a file."""
    local = time.localtime(second)
    return time.strftime("[%Y-%m-%d %H:%M:%S] [SESSION: ", local), time.strftime("%Y%m%d", local)


def lines(entries: list[Entry]) -> list[tuple[str, bytes]]:
    """The entries' lines, joined for each day: (YYYYMMDD, UTF-8 text).

    Texts are JSON strings: `json.loads` gives them back.
    """
    days: list[tuple[str, list[str]]] = []
    sessions: dict[str, str] = {}
    begin, end = 0, -1
    for at, session, version, label, text, quoted in entries:
        if not begin <= at < end:
            begin = int(at)
            end = begin + 1
            start, day = stamp(begin)
            if not days or days[-1][0] != day:
                days.append((day, []))
            add = days[-1][1].append
        shown = sessions.get(session)
        if shown is None:
            shown = sessions[session] = bare(session)
        add(f"{start}{shown}] [VERSION: {version}] {label}{encode_basestring(text) if quoted else text}\n")
    return [(day, _utf8("".join(parts))) for day, parts in days]


def of_session(session: str) -> Callable[[bytes], bool]:
    """Tells a session's lines from others, whatever the texts in these say."""
    line = lines([(0.0, session, 0, "", "", False)])[0][1]
    name = line[_STAMP:-len(b"[VERSION: 0] \n")]
    return lambda line: line.startswith(name, _STAMP)


def _utf8(text: str) -> bytes:
    if not text.isascii() or "\x7f" in text:
        for character in _SEPARATORS:
            text = text.replace(character, f"\\u{ord(character):04x}")
    # Half a surrogate pair can't be UTF-8; it becomes the escape that JSON has for it.
    return text.encode("utf-8", "backslashreplace")
