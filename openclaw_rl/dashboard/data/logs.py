"""Followed logs of the components: one follower per source, which keeps the last lines for all readers."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from openclaw_rl.dashboard.data import texts
from openclaw_rl.dashboard.data.parts import FAILURES, reason
from openclaw_rl.runtime.home import COMPONENTS
from openclaw_rl.v1 import component_pb2

if TYPE_CHECKING:
    from openclaw_rl.monitoring.mesh import MeshData

JOURNAL = "journal"
#: What can be followed: each component's log, and the journal.
SOURCES = (*COMPONENTS, JOURNAL)
LEVELS = ("debug", "info", "warning", "error")
#: Lines kept of a source; those of a line's characters that are kept.
KEPT, _LENGTH = 2000, 4000
#: Lines asked for at first; after a break what was had already is left out of them.
_FIRST, _AFTER_BREAK = 500, 1000
_AGAIN = 2.0

_LEVEL = re.compile(r"^\S+ \S+ (DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
_TIME = re.compile(r"^\[?(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[,.]\d+)?)")
_FAILED = re.compile(r"^\[[^]]*\] \[SESSION: .*\] \[PRM\] Score: -")


_shared: WeakKeyDictionary[MeshData, Logs] = WeakKeyDictionary()


@dataclass(frozen=True)
class Line:
    """One line of a log. `number` grows from line to line of its source."""

    number: int
    text: str
    level: str  #: of LEVELS
    at: str = ""  #: the time that it begins with; that of the line before it where it has none


def level_of(text: str, before: str = "info") -> str:
    """How grave a line is; one without a word on it, such as of a traceback, is as the one before it."""
    if found := _LEVEL.match(text):
        word = found[1].lower()
        return "error" if word == "critical" else word
    if text.startswith("["):
        return "warning" if _FAILED.match(text) else "info"
    return before


def matches(line: Line, text: str, level: str) -> bool:
    """The line has the text, in whatever case, and is at least as grave as `level`."""
    return LEVELS.index(line.level) >= LEVELS.index(level or "debug") and text.casefold() in line.text.casefold()


class Source:
    """One log and whoever follows it. Belongs to one event loop.

    Attributes:
        lines: the newest, oldest first.
        problem: why nothing comes; empty while it does.
        address: where it is read.
    """

    def __init__(self, mesh: MeshData, name: str) -> None:
        self._mesh, self.name = mesh, name
        self.lines: deque[Line] = deque(maxlen=KEPT)
        self.problem = ""
        self.address = ""
        self._number = 0
        self._last: str | None = None

    def after(self, number: int) -> Iterator[Line]:
        """The lines behind that number, oldest first."""
        yield from reversed([*_until(self.lines, number)])

    async def follow(self) -> None:
        """Until cancelled."""
        component = "env_server" if self.name == JOURNAL else self.name
        kind = component_pb2.LOG_SOURCE_JOURNAL if self.name == JOURNAL else component_pb2.LOG_SOURCE_COMPONENT
        while True:
            try:
                client = self._mesh.component(component)
                self.address, first = client.address, True
                count = _FIRST if self._last is None else _AFTER_BREAK
                async for part in client.read_logs(lines=count, source=kind, follow=True):
                    fresh = list(part.lines)
                    if first and self._last in fresh:
                        fresh = fresh[len(fresh) - fresh[::-1].index(self._last):]
                    first, self.problem = False, ""
                    self._take(fresh)
            except FAILURES as error:
                self.problem = reason(error)
            await asyncio.sleep(_AGAIN)

    def _take(self, fresh: list[str]) -> None:
        level, at = (self.lines[-1].level, self.lines[-1].at) if self.lines else ("info", "")
        for text in fresh:
            self._number += 1
            self._last = text
            level = level_of(text, level)
            at = found[1] if (found := _TIME.match(text)) else at
            self.lines.append(Line(self._number, texts.inert(text, _LENGTH).replace("\n", "⏎"), level, at))


def shared_logs(mesh: MeshData) -> Logs:
    """The sources that all readers of a mesh share."""
    return _shared.setdefault(mesh, Logs(mesh))


class Logs:
    """The sources that somebody looks at."""

    def __init__(self, mesh: MeshData) -> None:
        self._mesh = mesh
        self._sources: dict[str, tuple[Source, asyncio.Task[None], list[int]]] = {}

    def open(self, name: str) -> Source:
        """One more looks at it."""
        if name not in self._sources:
            source = Source(self._mesh, name)
            self._sources[name] = source, asyncio.get_running_loop().create_task(source.follow()), [0]
        self._sources[name][2][0] += 1
        return self._sources[name][0]

    def close(self, name: str) -> None:
        """One less looks at it; with the last one it is no longer read."""
        _, task, count = self._sources[name]
        count[0] -= 1
        if not count[0]:
            task.cancel()
            del self._sources[name]


def _until(lines: deque[Line], number: int) -> Iterator[Line]:
    for line in reversed(lines):
        if line.number <= number:
            return
        yield line
