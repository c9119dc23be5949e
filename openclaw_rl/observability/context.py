"""Trace contexts of messages, headers and spans.

OpenTelemetry's ambient context is never used: a stream's belongs to the stream, not to the turns that it carries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, SpanKind, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from openclaw_rl.observability.state import current
from openclaw_rl.v1.common_pb2 import TraceContext

_PROPAGATOR = TraceContextTextMapPropagator()
_NONE = Context()
#: Longest text of a captured message.
CONTENT_LIMIT = 32_000

Attributes = Mapping[str, AttributeValue | None]


def extract(headers: Mapping[str, str]) -> Context:
    """The caller's context; an empty one when there is none, or none that can be read."""
    return _PROPAGATOR.extract(headers, context=_NONE)


def of_message(message: TraceContext) -> Context:
    """The context that a message carries; an empty one when it carries none."""
    if not message.traceparent:
        return _NONE
    return extract({"traceparent": message.traceparent, "tracestate": message.tracestate})


def of_span(span: Span) -> Context:
    """The context whose children are children of the span."""
    return trace.set_span_in_context(span, _NONE)


def span_context(context: Context) -> SpanContext | None:
    """Return the span context to link to; None for an empty context."""
    found = trace.get_current_span(context).get_span_context()
    return found if found.is_valid else None


def to_message(span: Span | None) -> TraceContext | None:
    """A span's context as messages carry it; None for no span."""
    if span is None:
        return None
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, of_span(span))
    return TraceContext(**carrier) if carrier else None


def start(name: str, parent: Context | None, attributes: Attributes, *, kind: SpanKind = SpanKind.INTERNAL,
          begin: int | None = None, links: Any = ()) -> Span:
    """A span that began at `begin` (nanoseconds since the epoch; default now); without a parent it opens a trace.
    Attributes that are None or "" are left out."""
    tracer: Tracer | None = current().tracer
    assert tracer is not None
    return tracer.start_span(name, parent if parent is not None else _NONE, kind=kind, start_time=begin, links=links,
                             attributes={key: value for key, value in attributes.items()
                                         if value is not None and value != ""})


def emit(name: str, parent: Context | None, attributes: Attributes, *, kind: SpanKind = SpanKind.INTERNAL,
         begin: int | None = None, end: int | None = None, error: str = "") -> Span:
    """A span that has ended already; `error`: why what it tells of failed."""
    span = start(name, parent, attributes, kind=kind, begin=begin)
    finish(span, error, end)
    return span


def finish(span: Span, error: str = "", end: int | None = None) -> None:
    """End a span."""
    if error:
        span.set_status(trace.StatusCode.ERROR, error)
    span.end(end)
