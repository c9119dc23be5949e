"""Terminal of a conversation: a prompt to type at, answers, and notes that disturb neither."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.text import Text

from openclaw_rl.cli.terminal import err, harmless, out

try:
    import readline
except ImportError:  # input() does without line editing then
    readline = None  # type: ignore[assignment]

_PROMPT = "you> "


class Screen:
    """Notes may come from any thread: while an answer is written they wait for its end, while a line is typed they are
    written above it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answering = self._typing = False
        self._waiting: list[Text] = []

    def note(self, text: str, style: str = "dim") -> None:
        """Tell something that is not part of an answer."""
        line = Text(harmless(text), style)
        with self._lock:
            if self._answering:
                self._waiting.append(line)
            else:
                self._print(line)

    def read(self) -> str:
        """Return the next line that is typed, without blanks around it.

        Raises:
            EOFError: there is none.
        """
        with self._lock:
            self._typing = True
        try:
            return input(_PROMPT).strip()
        finally:
            with self._lock:
                self._typing = False

    @contextmanager
    def answer(self) -> Iterator[None]:
        """Hold notes back until the answer that is written within is complete."""
        with self._lock:
            self._answering = True
        try:
            yield
        finally:
            with self._lock:
                self._answering = False
                for line in self._waiting:
                    self._print(line)
                self._waiting.clear()

    def write(self, piece: str) -> None:
        """Write a piece of an answer."""
        out.file.write(piece)
        out.file.flush()

    def _print(self, line: Text) -> None:
        above = self._typing and sys.stdout.isatty() and err.is_terminal and not err.is_dumb_terminal
        if above:
            self.write("\r\x1b[K")
        err.print(line, soft_wrap=True, highlight=False)
        if above:
            self.write(_PROMPT + (readline.get_line_buffer() if readline else ""))
