"""`openclaw-rl chat` in a terminal of its own, and somebody who types there."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Self

from tools.recording.cast import Cast

WIDTH, HEIGHT = 92, 26
#: Seconds for an answer, on a machine that does other things too.
ANSWER = 300.0
PROMPT = "you> "


class Terminal:
    """Runs a conversation and records what it shows; leaving its `with` ends it.

    Args:
        command: what to run.
        environment: its variables.
        key: seconds between two keys.
        think: seconds before a line is typed.

    Attributes:
        cast: what was shown until now.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, key: float = 0.0,
                 think: float = 0.0) -> None:
        self.cast = Cast(WIDTH, HEIGHT, "openclaw-rl chat")
        self._key, self._think = key, think
        self._began = time.monotonic()
        self._shown = ""
        self._changed = threading.Condition()
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
        self._process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                                         env={**environment, "TERM": "xterm-256color", "LINES": str(HEIGHT),
                                              "COLUMNS": str(WIDTH)})
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def prompt(self) -> None:
        """Wait for the first prompt."""
        self.wait(re.escape(PROMPT), ANSWER)

    def type(self, line: str) -> None:
        """Type a line, as slowly as a person."""
        time.sleep(self._think)
        for key in line:
            os.write(self._master, key.encode())
            time.sleep(self._key)
        os.write(self._master, b"\n")

    def say(self, line: str, until: str, seconds: float = ANSWER) -> str:
        """Type a line, and wait for what it brings and for the next prompt. Returns what was shown until then."""
        start = len(self._shown)
        self.type(line)
        self.wait(rf"(?s){until}.*{re.escape(PROMPT)}$", seconds, start)
        return self._shown[start:]

    def wait(self, pattern: str, seconds: float, start: int = 0) -> None:
        """Wait until something is shown, after the first `start` characters.

        Raises:
            TimeoutError: it was not.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: re.search(pattern, self._shown[start:]), seconds):
                raise TimeoutError(f"not within {seconds:.0f} s: {pattern}\n{self._shown[-2000:]}")

    def _read(self) -> None:
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # the command has ended
                return
            text = re.sub(r"\x1b\[\?2004[hl]", "", decode(data))  # readline's bracketed paste: nothing to be seen
            with self._changed:
                self._shown += text
                self.cast.events.append((time.monotonic() - self._began, text))
                self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        os.close(self._master)
