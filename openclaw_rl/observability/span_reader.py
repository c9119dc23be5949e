"""Reads the spans that components keep, while they write them or after: files of one home folder, and what a caller's
own function gets from a component elsewhere."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import orjson

from openclaw_rl.observability import names
from openclaw_rl.observability.span_store import Span
from openclaw_rl.runtime.home import COMPONENTS, Home

#: Values of one question; SQLite has a limit.
_AT_ONCE = 500

#: Gives the spans whose column has one of the values. Raises OSError with a text when it can't.
Ask = Callable[[str, Sequence[str | int]], list[Span]]


class SpanReader:
    """The spans of several components, as one.

    Args:
        home: where the components' files are.
        names: the components.
        elsewhere: those of them that are asked rather than their file read.

    Attributes:
        problems: files that cannot be read, and why; the others are read all the same.
    """

    def __init__(self, home: Home, names: Iterable[str] = COMPONENTS, elsewhere: Mapping[str, Ask] | None = None
                 ) -> None:
        self.problems: list[str] = []
        self._elsewhere = elsewhere or {}
        self._files = [home.root / "telemetry" / f"{name}.db" for name in names if name not in self._elsewhere]

    @property
    def empty(self) -> bool:
        """No component has kept spans here."""
        return not self._elsewhere and not any(file.exists() for file in self._files)

    def traces(self, trace_ids: Iterable[str]) -> list[Span]:
        """All spans of these traces, in the order in which they began."""
        return self.find("trace_id", sorted(set(trace_ids)))

    def turn(self, turn_id: str) -> list[Span]:
        """All spans of the traces that the turn is in."""
        return self.traces(span["trace"] for span in self.find("turn_id", [turn_id]))

    def session(self, session_id: str) -> list[Span]:
        """All spans of the traces that the session's turns are in."""
        return self.traces(span["trace"] for span in self.find("session_id", [session_id]))

    def trained(self, version: int) -> list[Span]:
        """All spans of the traces of the step that made a version, and of the turns that it was trained on."""
        return self.traces(span["trace"] for span in self.find("trained", [version]))

    def about(self, version: int) -> list[Span]:
        """The spans that are about a version and no turn: it was sent, staged, activated."""
        return [span for span in self.find("version", [version]) if names.TURN not in span["attributes"]]

    def find(self, column: str, values: Sequence[str | int]) -> list[Span]:
        """The spans whose column of the files is one of the values, in the order in which they began."""
        found: list[Span] = []
        if not values:
            return found
        for ask in self._elsewhere.values():
            try:
                found += ask(column, values)
            except OSError as error:
                self._problem(str(error))
        for file in self._files:
            with contextlib.suppress(FileNotFoundError):
                try:
                    for start in range(0, len(values), _AT_ONCE):
                        found += _select(file, column, values[start : start + _AT_ONCE])
                except (sqlite3.Error, orjson.JSONDecodeError, KeyError) as error:
                    self._problem(f"{file} can't be read: {error}")
        return sorted(found, key=lambda span: (span["start"], -span["end"]))

    def _problem(self, note: str) -> None:
        if note not in self.problems:
            self.problems.append(note)


def _select(file: Path, column: str, values: Sequence[str | int]) -> Iterator[Span]:
    if not file.exists():
        raise FileNotFoundError(file)
    with contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=2.0)) as db:
        marks = ",".join("?" * len(values))
        for (payload,) in db.execute(f"SELECT payload FROM spans WHERE {column} IN ({marks})", tuple(values)):
            yield orjson.loads(payload)
