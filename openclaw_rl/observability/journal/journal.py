"""Asynchronous writer of the journal: appending costs about a microsecond, a thread does the rest."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from pathlib import Path
from typing import Literal

from openclaw_rl.config import JournalConfig
from openclaw_rl.observability.journal.file import JournalFile
from openclaw_rl.observability.journal.line import Entry, bare, lines, of_session

logger = logging.getLogger(__name__)

#: Bytes in memory, about; with more, whoever appends writes them out himself. An entry counts 512 and its text.
CAPACITY = 64 * 2**20
_ENTRY = 512
#: While the disk takes nothing, this many times the capacity is kept; then the oldest entries are lost, and counted.
_PATIENCE = 2
#: Seconds that the writer lets entries gather, and that it waits after a failure.
_GATHER, _RETRY = 0.02, 1.0

_ACTIONS = {name: f"[{name}] Action: " for name in ("MAIN", "SIDE", "UNKNOWN")}
_NEXT_STATE, _SCORE, _HINT = "NextState: ", "[PRM] Score: ", "[OPD] Hint: "


class Journal:
    """Appends lines to `rl_trace_YYYYMMDD.log` in `folder`, from any thread, without waiting for the disk.

    A full buffer is counted (`stats["overflows"]`), logged and written through by the caller; nothing is dropped. A
    full disk never raises: entries wait in memory, and what memory can't hold is counted as lost and logged.

    `version` may be None where the caller knows none: the newest version that the journal has seen is written.
    """

    def __init__(self, folder: Path, config: JournalConfig | None = None, *, capacity: int = CAPACITY) -> None:
        config = config or JournalConfig.model_validate({})
        self._enabled = config.enabled
        self._capacity = capacity
        self._file = JournalFile(Path(folder), config.max_size, config.keep_files)
        self._buffer: deque[Entry] = deque()
        self._append = self._buffer.append
        self._load = 0  # bytes in the buffer: about, since threads add to it without a lock
        self._wake = threading.Event()
        self._idle = True  # the writer will not look at the buffer unless it is woken
        self._hurry = threading.Event()
        self._write_lock = threading.Lock()
        self._closed = False
        self._failing = ""
        self._retry_at = 0.0
        self._written = self._overflows = self._lost = 0
        self._version = 0
        self._thread: threading.Thread | None = None
        if self._enabled:
            self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
            self._thread.start()

    def action(self, session: str, version: int | None, turn_class: Literal["MAIN", "SIDE", "UNKNOWN"],
               text: str) -> None:
        """Record the policy's response."""
        self._put(session, version, _ACTIONS.get(turn_class) or _ACTIONS["UNKNOWN"], text, True)

    def next_state(self, session: str, version: int | None, text: str) -> None:
        """Record the next state: the user's message, tool results, the environment's output."""
        self._put(session, version, _NEXT_STATE, text, True)

    def score(self, session: str, version: int | None, score: int, word: str) -> None:
        """The judgement: its score, and the same in a word, such as "dissatisfied"."""
        self._put(session, version, _SCORE, f"{score:d} ({bare(word)})", False)

    def hint(self, session: str, version: int | None, text: str) -> None:
        """Record a hint."""
        self._put(session, version, _HINT, text, True)

    def flush(self) -> None:
        """Write what has been appended so far, in the calling thread."""
        with self._write_lock:
            self._drain()

    def forget(self, session: str) -> int:
        """Take a session's lines out of the files, and out of what waits in memory; how many there were. Blocks for as
        long as the files take to read, some seconds per GB; other threads and processes append meanwhile.

        Raises:
            OSError: a file can't be read or written; those before it are done.
        """
        with self._write_lock:
            entries = [self._buffer.popleft() for _ in range(len(self._buffer))]
            others = [entry for entry in entries if entry[1] != session]
            self._buffer.extendleft(reversed(others))
            self._drain()
            return len(entries) - len(others) + self._file.remove(of_session(session))

    def close(self) -> None:
        """Write everything and end the thread. May be called again."""
        self._closed = True
        self._wake.set()
        self._hurry.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            with self._write_lock:
                self._retry_at = 0.0
                self._drain()
                self._file.close()
            if self._buffer:
                logger.error("journal: %d lines lost: %s", len(self._buffer), self._failing)

    @property
    def stats(self) -> dict[str, int]:
        """`written` and `waiting` lines, `overflows` (times that a caller wrote a full buffer out), `lost` lines (the
        disk took none for too long), `version` (the newest seen)."""
        return {"written": self._written, "waiting": len(self._buffer), "overflows": self._overflows,
                "lost": self._lost, "version": self._version}

    @property
    def problem(self) -> str:
        """Why nothing can be written, for a person; empty when all is well."""
        return self._failing

    def _put(self, session: str, version: int | None, label: str, text: str, quoted: bool) -> None:
        if not self._enabled:
            return
        if version is None:
            version = self._version
        elif version > self._version:
            self._version = version
        self._load += _ENTRY + len(text)
        self._append((time.time(), session, version, label, text, quoted))
        if self._idle:
            self._idle = False
            self._wake.set()
        if self._load > self._capacity:
            self._overflow()

    def _overflow(self) -> None:
        if self._failing and time.monotonic() < self._retry_at:
            with self._write_lock:
                while self._load > _PATIENCE * self._capacity and self._buffer:
                    self._load -= _ENTRY + len(self._buffer.popleft()[4])
                    self._lost += 1
            return
        with self._write_lock:
            if self._load <= self._capacity:
                return  # another thread has just written it
            self._overflows += 1
            if self._overflows & (self._overflows - 1) == 0:  # the 1st, 2nd, 4th, 8th ...
                logger.warning("journal: buffer full, written through (%d times so far)", self._overflows)
            self._drain()

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait()
            self._wake.clear()
            self._hurry.wait(_RETRY if self._failing else _GATHER)
            self._idle = True  # before the buffer is read: an entry that comes too late for it sets `_wake`
            with self._write_lock:
                self._drain()
            if self._failing:
                self._wake.set()

    def _drain(self) -> None:
        """Write the buffer's entries; the caller holds the lock."""
        if self._failing and time.monotonic() < self._retry_at:
            return
        entries = [self._buffer.popleft() for _ in range(len(self._buffer))]
        self._load = 0
        if not entries:
            return
        rest = len(entries)
        try:
            made = lines(entries)
        except TypeError:  # somebody's text or session is no text; that must not end the writer
            entries = [(at, str(session), version, label, str(text), quoted)
                       for at, session, version, label, text, quoted in entries]
            made = lines(entries)
        try:
            for day, data in made:
                try:
                    self._file.write(day, data)
                except OSError as error:
                    rest -= data.count(b"\n", 0, error.written)  # type: ignore[attr-defined]
                    raise
                rest -= data.count(b"\n")
        except OSError as error:
            waiting = entries[len(entries) - rest:]
            self._buffer.extendleft(reversed(waiting))
            self._load += sum(_ENTRY + len(entry[4]) for entry in waiting)
            self._retry_at = time.monotonic() + _RETRY
            if not self._failing:
                logger.error("journal: %s; lines wait in memory", error)
            self._failing = str(error)
        else:
            if self._failing:
                logger.warning("journal: writing again; %d lines lost", self._lost)
            self._failing = ""
        self._written += len(entries) - rest
