"""Trace contexts of messages, headers and spans.

OpenTelemetry's ambient context is never used: a stream's belongs to the stream, not to the turns that it carries.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from openclaw_rl.observability.state import current
from openclaw_rl.v1.common_pb2 import TraceContext

_PROPAGATOR = TraceContextTextMapPropagator()
_NONE = Context()
_UNSET = Status(StatusCode.UNSET)
#: Longest text of a captured message.
CONTENT_LIMIT = 32_000

Attributes = Mapping[str, AttributeValue | None]


def extract(headers: Mapping[str, str]) -> Context:
    """The caller's context; an empty one when there is none, or none that can be read."""
    return _PROPAGATOR.extract(headers, context=_NONE)


def of_message(message: TraceContext) -> Context:
    """The context that a message carries; an empty one when it carries none."""
    return _parsed(message.traceparent, message.tracestate) if message.traceparent else _NONE


@lru_cache(maxsize=4096)  # each hop asks more than once for the same turn's
def _parsed(traceparent: str, tracestate: str) -> Context:
    return extract({"traceparent": traceparent, "tracestate": tracestate})


def of_span(span: Span | SpanContext) -> Context:
    """The context whose children are children of the span."""
    return trace.set_span_in_context(trace.NonRecordingSpan(span) if isinstance(span, SpanContext) else span, _NONE)


def span_context(context: Context) -> SpanContext | None:
    """Return the span context to link to; None for an empty context."""
    found = trace.get_current_span(context).get_span_context()
    return found if found.is_valid else None


def to_message(span: Span | SpanContext | None) -> TraceContext | None:
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
         begin: int | None = None, end: int | None = None, error: str = "",
         events: Sequence[Event] = ()) -> SpanContext:
    """Export a span of what is over, at once; `error`: why what it tells of failed.

    Below a known parent it is built whole. The SDK's `Span` is made to be changed while it is open (a lock, bounded
    copies of all attributes), which costs four times as much, and each turn has several.
    """
    telemetry = current()
    own = span_context(parent) if parent is not None else None
    if own is None or telemetry.provider is None:
        span = start(name, parent, attributes, kind=kind, begin=begin)
        for event in events:
            span.add_event(event.name, event.attributes, event.timestamp)
        finish(span, error, end)
        return span.get_span_context()
    provider = telemetry.provider
    kept = {key: value for key, value in attributes.items() if value is not None and value != ""}
    sampled = provider.sampler.should_sample(parent, own.trace_id, name, kind, kept, ())
    recording = sampled.decision.is_sampled()
    flags = own.trace_flags | TraceFlags.SAMPLED if recording else own.trace_flags & ~TraceFlags.SAMPLED
    made = SpanContext(own.trace_id, provider.id_generator.generate_span_id(), is_remote=False,
                       trace_flags=TraceFlags(flags), trace_state=sampled.trace_state)
    if recording:
        now = time.time_ns()
        telemetry.export(ReadableSpan(
            name, made, own, provider.resource, kept, events, kind=kind, instrumentation_scope=telemetry.scope,
            status=Status(StatusCode.ERROR, error) if error else _UNSET,
            start_time=begin if begin is not None else now, end_time=end if end is not None else now))
    return made


def finish(span: Span, error: str = "", end: int | None = None) -> None:
    """End a span."""
    if error:
        span.set_status(trace.StatusCode.ERROR, error)
    span.end(end)
