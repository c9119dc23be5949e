"""Telemetry of the current component, and the guard around every function that emits a span."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Tracer

from openclaw_rl.observability.export_queue import SpanQueue
from openclaw_rl.observability.sample_contexts import SampleContexts
from openclaw_rl.observability.span_store import SpanStore
from openclaw_rl.runtime import runtime

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class Telemetry:
    """One component's telemetry."""

    tracer: Tracer | None = None  #: None: disabled, every call returns at once
    capture_content: bool = False
    provider: TracerProvider | None = None
    scope: InstrumentationScope | None = None  #: of the spans
    store: SpanStore | None = None
    local: SpanQueue | None = None  #: to `store`
    collector: SpanQueue | None = None
    endpoint: str = ""  #: of the collector; "" for none
    metrics: Any = None  #: a metrics.MetricsExport, when there is a collector for them
    problems: list[str] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)  #: functions whose failure was logged
    samples: SampleContexts = field(default_factory=SampleContexts)  #: of the trainer

    def export(self, span: ReadableSpan) -> None:
        """Hand an ended span to the queues, as the provider does with those that it made."""
        for queue in (self.local, self.collector):
            if queue is not None:
                queue.on_end(span)


_DISABLED = Telemetry()


def current() -> Telemetry:
    """The telemetry of the current component; a disabled one outside, or where none was set up."""
    found = runtime.current().telemetry
    return found if isinstance(found, Telemetry) else _DISABLED


def guarded(function: Callable[P, R]) -> Callable[P, R | None]:
    """Make a function return None at once while tracing is disabled, and never raise: a span is worth no request. The
    first failure of each function is logged."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
        telemetry = current()
        if telemetry.tracer is None:
            return None
        try:
            return function(*args, **kwargs)
        except Exception:
            if function.__qualname__ not in telemetry.failed:
                telemetry.failed.add(function.__qualname__)
                logger.exception("a span was lost (logged once)")
            return None

    return call
