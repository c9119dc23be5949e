"""The arguments of a tool call that is still being written, piece by piece."""

from __future__ import annotations

import json
import re
from collections.abc import Collection

_BEGIN = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)')


class CallStream:
    """A call of which the name is known and the arguments have begun: `{"name": NAME, "arguments": {...`.

    Attributes:
        name: the function's.
        begin: where the arguments begin in the text.
        end: where they end; None while they are incomplete.
    """

    def __init__(self, name: str, begin: int) -> None:
        self.name, self.begin = name, begin
        self.end: int | None = None
        self._at = begin
        self._depth = 0
        self._quoted = self._escaped = False

    @classmethod
    def of(cls, text: str, names: Collection[str]) -> CallStream | None:
        """Return the call that a text begins; None when it is none of `names`, or not known yet."""
        match = _BEGIN.match(text)
        if match is None:
            return None
        try:
            name = json.loads(match[1])
        except ValueError:
            return None
        return cls(name, match.end()) if name in names else None

    def read(self, text: str) -> str:
        """Return the arguments that are new in a text, which has grown at its end."""
        if self.end is not None:
            return ""
        begin, at = self._at, self._at
        for at in range(begin, len(text)):
            char = text[at]
            if self._quoted:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._quoted = False
            elif char == '"':
                self._quoted = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if not self._depth:
                    self.end = at + 1
                    break
        self._at = len(text) if self.end is None else self.end
        return text[begin:self._at]
