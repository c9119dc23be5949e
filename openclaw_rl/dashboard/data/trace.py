"""The spans of a turn as rows of a waterfall."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from openclaw_rl.client import traces
from openclaw_rl.client.span_facts import Tone, duration, facts
from openclaw_rl.config import ConfigError
from openclaw_rl.dashboard.data import texts
from openclaw_rl.launch import jaeger
from openclaw_rl.runtime.running_config import running_config

if TYPE_CHECKING:
    from openclaw_rl.client.traces import Node
    from openclaw_rl.monitoring.mesh import MeshData

#: Spans that are shown; a trace of more says how many are left out.
SHOWN = 1000
#: Characters of an attribute's value that are shown.
_VALUE = 2000


@dataclass(frozen=True)
class Bar:
    """One span.

    Attributes:
        depth: of its place in the tree, from 0.
        children: spans right below it.
        left, width: of its bar, from 0 to 1 of the whole time.
        begins: nanoseconds after the first span's start.
        facts: what is worth knowing at once, and how each is meant.
        details: everything else: names and inert texts.
    """

    id: str
    name: str
    service: str
    depth: int
    children: int
    left: float
    width: float
    begins: int
    took: int
    error: str  #: what went wrong; empty when nothing did
    facts: list[tuple[str, Tone]] = field(default_factory=list)
    details: list[tuple[str, str]] = field(default_factory=list)

    @property
    def time(self) -> str:
        return duration(self.took)


@dataclass
class Waterfall:
    """The bars, parents before their children."""

    bars: list[Bar] = field(default_factory=list)
    took: int = 0  #: nanoseconds of the whole
    left_out: int = 0  #: spans beyond those that are shown
    trace_id: str = ""
    jaeger: str = ""  #: address at which a Jaeger shows it; empty when none was started with the mesh
    problems: list[str] = field(default_factory=list)  #: whose spans are missing, or why there are none


async def of_turn(mesh: MeshData, turn_id: str) -> Waterfall:
    """The trace of a turn; without spans when there are none, and `problems` says why."""
    return await asyncio.to_thread(_find, mesh, turn_id)


def _find(mesh: MeshData, turn_id: str) -> Waterfall:
    try:
        found = traces.find(mesh.home, running_config(mesh.home), turn=turn_id)
    except (traces.NoTrace, ConfigError) as error:
        return Waterfall(problems=[str(error)])
    result = waterfall(found.turns.get(turn_id, []))
    result.problems = found.problems
    if result.trace_id and (running := jaeger.read(mesh.home)) is not None:
        result.jaeger = f"{running.address}/trace/{result.trace_id}"
    return result


def waterfall(nodes: list[Node]) -> Waterfall:
    """Rows of the trees, in the order in which their spans began."""
    rows: list[tuple[Node, int]] = []
    waiting = [(node, 0) for node in reversed(nodes)]
    while waiting:
        node, depth = waiting.pop()
        rows.append((node, depth))
        waiting += [(child, depth + 1) for child in reversed(node.children)]
    if not rows:
        return Waterfall()
    first = min(node.span["start"] for node, _ in rows)
    took = max(1, *(node.span["end"] - first for node, _ in rows))
    bars = [_bar(node, depth, first, took) for node, depth in rows[:SHOWN]]
    return Waterfall(bars, took, len(rows) - len(bars), str(rows[0][0].span["trace"]))


def _bar(node: Node, depth: int, first: int, took: int) -> Bar:
    span = node.span
    begins, length = span["start"] - first, max(0, span["end"] - span["start"])
    failed = span["status"] == "error"
    told: list[tuple[str, Tone]] = [(texts.line(str(text), 300), tone) for text, tone in facts(span) if text]
    return Bar(str(span["span"]), texts.line(str(span["name"])), _service(span), depth,
               len(node.children), begins / took, length / took, begins, length,
               texts.line(str(span["message"]) or "error", 500) if failed else "", told, _details(span))


def _service(span: dict[str, Any]) -> str:
    return texts.line(str(span.get("service", "")).removeprefix("openclaw-rl."))


def _details(span: dict[str, Any]) -> list[tuple[str, str]]:
    found = [("span", str(span["span"])), ("trace", str(span["trace"]))]
    found += [(name, _value(value)) for name, value in sorted(span["attributes"].items())]
    for event in span.get("events", ()):
        found.append((f"event {event.get('name', '')}", _value(event.get("attributes") or "")))
    found += [("link", _value(link.get("attributes") or link)) for link in span["links"][:20]]
    return [(texts.line(name), text) for name, text in found]


def _value(value: Any) -> str:
    return texts.inert(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str), _VALUE)
