"""Output of a program as harmless text of bounded length."""

from __future__ import annotations

import re

#: Escape sequences (cursor, colours, window titles, ...): left out.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)|[ -/]*[0-~])")
#: Characters that a terminal or a page would act on, or that are invisible: shown as their codes.
_ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"
                   "\ud800-\udfff\U000e0000-\U000e007f]")
#: Text of a line before a bare carriage return was overwritten.
_OVERWRITTEN = re.compile(r"(?m)^[^\n]*\r(?!\n)(?=[^\n])")


class Clip:
    """Keeps equally long parts of the beginning and the end of a stream."""

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
        """Remove the last bytes, which must be among those kept."""
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
        """The kept parts as text, with a mark where something was left out."""
        if not self.left_out:
            return plain(bytes(self._head + self._tail))
        return (f"{plain(bytes(self._head)).rstrip(chr(10))}\n[... {self.left_out:,} bytes are left out ...]\n"
                f"{plain(bytes(self._tail[-self._half:])).lstrip(chr(10))}")


def plain(data: bytes) -> str:
    """Decode a program's output. Invalid UTF-8 and control characters except tab and newline are shown as codes
    (`\\xff`); escape sequences are left out."""
    text = data.decode("utf-8", "backslashreplace").replace("\r\n", "\n")
    return _ACTS.sub(_code, _OVERWRITTEN.sub("", _ESCAPES.sub("", text)).replace("\r", ""))


def _code(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
