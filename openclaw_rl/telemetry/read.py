"""Reads the spans that the components of one home folder keep, while they write them or after."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import orjson

from openclaw_rl.home import COMPONENTS, Home
from openclaw_rl.telemetry import names
from openclaw_rl.telemetry.store import Span

#: Values of one question; SQLite has a limit.
_AT_ONCE = 500


class SpanReader:
    """The spans of all four components, as one.

    Attributes:
        problems: files that can't be read, and why; what the others have is told all the same.
    """

    def __init__(self, home: Home) -> None:
        self.problems: list[str] = []
        self._files = [home.root / "telemetry" / f"{name}.db" for name in COMPONENTS]

    @property
    def empty(self) -> bool:
        """No component has kept spans here."""
        return not any(file.exists() for file in self._files)

    def traces(self, trace_ids: Iterable[str]) -> list[Span]:
        """All spans of these traces, in the order in which they began."""
        return self._find("trace_id", sorted(set(trace_ids)))

    def turn(self, turn_id: str) -> list[Span]:
        """All spans of the traces that the turn is in."""
        return self.traces(span["trace"] for span in self._find("turn_id", [turn_id]))

    def session(self, session_id: str) -> list[Span]:
        """All spans of the traces that the session's turns are in."""
        return self.traces(span["trace"] for span in self._find("session_id", [session_id]))

    def trained(self, version: int) -> list[Span]:
        """All spans of the traces of the step that made a version, and of the turns that it was trained on."""
        return self.traces(span["trace"] for span in self._find("trained", [version]))

    def about(self, version: int) -> list[Span]:
        """The spans that are about a version and no turn: it was sent, staged, activated."""
        return [span for span in self._find("version", [version]) if names.TURN not in span["attributes"]]

    def _find(self, column: str, values: Sequence[str | int]) -> list[Span]:
        found: list[Span] = []
        for file in self._files:
            with contextlib.suppress(FileNotFoundError):
                try:
                    for start in range(0, len(values), _AT_ONCE):
                        found += _select(file, column, values[start : start + _AT_ONCE])
                except (sqlite3.Error, orjson.JSONDecodeError, KeyError) as error:
                    note = f"{file} can't be read: {error}"
                    if note not in self.problems:
                        self.problems.append(note)
        return sorted(found, key=lambda span: (span["start"], -span["end"]))


def _select(file: Path, column: str, values: Sequence[str | int]) -> Iterator[Span]:
    if not file.exists():
        raise FileNotFoundError(file)
    with contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=2.0)) as db:
        marks = ",".join("?" * len(values))
        for (payload,) in db.execute(f"SELECT payload FROM spans WHERE {column} IN ({marks})", tuple(values)):
            yield orjson.loads(payload)
