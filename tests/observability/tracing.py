"""Telemetry set up in this process, with an exporter that keeps what it gets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from openclaw_rl.config import TelemetryConfig
from openclaw_rl.observability import telemetry
from openclaw_rl.observability.state import current
from openclaw_rl.runtime.home import Home


class Tracing:
    """What was exported."""

    def __init__(self, home: Home, **settings: Any) -> None:
        self.home, self.settings = home, settings
        self.exporter = InMemorySpanExporter()
        self.start()

    def start(self) -> None:
        telemetry.setup("trainer", TelemetryConfig(**self.settings), self.home, self.exporter)
        assert current().tracer is not None

    def restart(self) -> None:
        """The process ends and another one begins over the same folder; what was exported stays."""
        telemetry.shutdown()
        self.exporter._stopped = False
        self.start()

    def spans(self, *names: str) -> list[ReadableSpan]:
        """All spans so far in the order of their end, or those of these names."""
        assert telemetry.flush()
        return [span for span in self.exporter.get_finished_spans() if not names or span.name in names]

    def one(self, name: str) -> ReadableSpan:
        """The only span of a name."""
        (span,) = self.spans(name)
        return span


@contextmanager
def tracing_in(root: Path, **settings: Any) -> Iterator[Tracing]:
    try:
        yield Tracing(Home(root / "traced"), **settings)
    finally:
        telemetry.shutdown()
