"""What a program wrote, as text that does nothing and has a bounded length."""

from __future__ import annotations

import re

#: Sequences by which a program moves the cursor, colours, names windows, ...: left out.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)|[ -/]*[0-~])")
#: Characters that a terminal or a page would act on, or that can't be seen: shown as their codes.
_ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"
                   "\ud800-\udfff\U000e0000-\U000e007f]")
#: A line's text before a bare carriage return was written over.
_OVERWRITTEN = re.compile(r"(?m)^[^\n]*\r(?!\n)(?=[^\n])")


class Clip:
    """Keeps the beginning and the end of a stream, as many bytes of each."""

    def __init__(self, most: int) -> None:
        self._half = most // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.seen = 0  #: bytes in all

    def add(self, data: bytes) -> None:
        self.seen += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room < len(data) else b""
        if len(self._tail) > 4 * self._half:
            del self._tail[:-self._half]

    def cut(self, size: int) -> None:
        """Take back the last bytes; they must be among those kept."""
        self.seen -= size
        taken = min(size, len(self._tail))
        del self._tail[len(self._tail) - taken:]
        if size > taken:
            del self._head[len(self._head) - (size - taken):]

    @property
    def last(self) -> bytes:
        """The newest bytes, at most half of those kept."""
        return bytes(self._tail[-self._half:]) or bytes(self._head)

    @property
    def left_out(self) -> int:
        return max(self.seen - len(self._head) - min(len(self._tail), self._half), 0)

    def text(self) -> str:
        """As text, with a mark where something was left out."""
        if not self.left_out:
            return plain(bytes(self._head + self._tail))
        return (f"{plain(bytes(self._head)).rstrip(chr(10))}\n[... {self.left_out:,} bytes are left out ...]\n"
                f"{plain(bytes(self._tail[-self._half:])).lstrip(chr(10))}")


def plain(data: bytes) -> str:
    """Text of what a program wrote. What isn't UTF-8 comes as its codes (`\\xff`), escape sequences are left out, and
    other control characters but tab and newline come as their codes."""
    text = data.decode("utf-8", "backslashreplace").replace("\r\n", "\n")
    return _ACTS.sub(_code, _OVERWRITTEN.sub("", _ESCAPES.sub("", text)).replace("\r", ""))


def _code(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
