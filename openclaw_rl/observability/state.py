"""What is set up in this process, and the guard around everything that is called from elsewhere."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Tracer

from openclaw_rl.observability.export_queue import SpanQueue
from openclaw_rl.observability.span_store import SpanStore

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class Telemetry:
    """One process's telemetry."""

    tracer: Tracer | None = None  #: None: disabled, every call returns at once
    capture_content: bool = False
    provider: TracerProvider | None = None
    store: SpanStore | None = None
    local: SpanQueue | None = None  #: to `store`
    collector: SpanQueue | None = None
    endpoint: str = ""  #: of the collector; "" for none
    metrics: Any = None  #: a metrics.MetricsExport, when there is a collector for them
    problems: list[str] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)  #: functions whose failure was logged


current = Telemetry()


def guarded(function: Callable[P, R]) -> Callable[P, R | None]:
    """Make a function return None at once while tracing is disabled, and never raise: a span is worth no request. The
    first failure of each function is logged."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
        if current.tracer is None:
            return None
        try:
            return function(*args, **kwargs)
        except Exception:
            if function.__qualname__ not in current.failed:
                current.failed.add(function.__qualname__)
                log.exception("a span is lost, and all else goes on (told once)")
            return None

    return call
