"""Traces of turns and versions as trees, put together from the spans that the components keep."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from openclaw_rl.client.spans import remote_components
from openclaw_rl.config import Config
from openclaw_rl.observability import names
from openclaw_rl.observability.encoding import otlp
from openclaw_rl.observability.span_reader import SpanReader
from openclaw_rl.observability.span_store import Span
from openclaw_rl.runtime.home import Home


class NoTrace(Exception):
    """There are no spans of what was asked for; the text says what to do."""


@dataclass
class Node:
    """A span with those below it, in the order in which they began."""

    span: Span
    children: list[Node] = field(default_factory=list)


@dataclass
class Trace:
    """What was found.

    Attributes:
        turns: trees of turns by turn id, the oldest turn first.
        step: tree of the training step that made a version; None when a turn or session was asked for, or it is gone.
        spans: all spans of these trees.
        problems: files that could not be read.
    """

    turns: dict[str, list[Node]] = field(default_factory=dict)
    step: list[Node] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """OTLP's JSON of the spans."""
        return otlp(self.spans)


def find(home: Home, config: Config, *, turn: str = "", session: str = "", version: int | None = None) -> Trace:
    """The trace of one turn, of all turns of a session, or of a version: its step, and the turns that it was trained
    on.

    Raises:
        NoTrace: there are none.
    """
    reader = SpanReader(home, elsewhere=remote_components(config.components.addresses(), home))
    result = Trace(problems=reader.problems)
    if turn:
        spans = reader.turn(turn)
        wanted = [turn] if spans else []
    elif session:
        spans = reader.session(session)
        wanted = _turns(span for span in spans if span["attributes"].get(names.SESSION) == session)
    else:
        assert version is not None
        spans = reader.trained(version)
        wanted = _turns(span for span in spans if span["attributes"].get(names.TRAINED) == version)
        about = spans + reader.about(version)
        of_step = {span["trace"] for span in about if span["name"] == names.STEP
                   and span["attributes"].get(names.TRAINED) == version}
        spans += [span for span in reader.about(version) if span["trace"] not in of_step]
        result.step = _tree(span for span in about if names.TURN not in span["attributes"]
                            and (span["trace"] in of_step or span["attributes"].get(names.VERSION) == version))
    trees = [(turn_id, _of_turn(spans, turn_id)) for turn_id in wanted]
    result.turns = dict(sorted(trees, key=lambda entry: entry[1][0].span["start"]))
    result.spans = _unique([span for trees in (*result.turns.values(), result.step) for span in _all(trees)])
    if not result.spans:
        what = f"turn {turn}" if turn else f"session {session}" if session else f"version {version}"
        raise NoTrace(_why_none(reader, config, what))
    return result


def _why_none(reader: SpanReader, config: Config, what: str) -> str:
    text = f"there are no spans of {what}"
    if reader.problems:
        text += f" ({'; '.join(reader.problems)})"
    if not config.telemetry.enabled:
        return (f"{text}: telemetry is disabled; set telemetry.enabled: true in the configuration and start the mesh "
                "again, which traces turns from then on")
    if reader.empty:
        return f"{text}: no component has kept any yet; `openclaw-rl local-start` starts the mesh"
    return (f"{text}. `openclaw-rl turns` lists the turns, `openclaw-rl versions` the versions; a turn of before "
            "telemetry, of more than telemetry.keep_spans spans ago, or that was forgotten or not sampled has none")


def _turns(spans: Iterable[Span]) -> list[str]:
    """Ids of the turns that spans are of, the oldest first."""
    return list(dict.fromkeys(turn for span in spans if (turn := span["attributes"].get(names.TURN))))


def _of_turn(spans: list[Span], turn_id: str) -> list[Node]:
    """The tree of one turn. Its trace may have other turns too: of the caller's, or choices of one request; only what
    is above it is told of those."""
    by_id = {span["span"]: span for span in spans}
    keep: set[str] = set()
    for span in spans:
        if span["attributes"].get(names.TURN) != turn_id:
            continue
        place: Span | None = span
        while place is not None and place["span"] not in keep:
            keep.add(place["span"])
            place = by_id.get(place["parent"])
    return _tree(span for span in spans if span["span"] in keep)


def _tree(spans: Iterable[Span]) -> list[Node]:
    """Spans below those that are their parents; one whose parent is not here (the caller's, or lost) is on top."""
    nodes = {span["span"]: Node(span) for span in _unique(spans)}
    top: list[Node] = []
    for node in nodes.values():
        parent = nodes.get(node.span["parent"])
        (parent.children if parent is not None and parent is not node else top).append(node)
    return top


def _unique(spans: Iterable[Span]) -> list[Span]:
    found = {(span["trace"], span["span"]): span for span in spans}
    return sorted(found.values(), key=lambda span: (span["start"], -span["end"]))


def _all(nodes: Iterable[Node]) -> Iterable[Span]:
    for node in nodes:
        yield node.span
        yield from _all(node.children)
