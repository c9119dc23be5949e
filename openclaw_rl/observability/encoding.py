"""Encodings of spans: plain objects for the local file, OTLP JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import SpanContext, Status, StatusCode

from openclaw_rl.observability.span_store import Span
from openclaw_rl.runtime.redact import Redactor

_STATUS = {StatusCode.UNSET: "", StatusCode.OK: "ok", StatusCode.ERROR: "error"}
_OTLP_STATUS = {"": 0, "ok": 1, "error": 2}


def redacted(span: ReadableSpan, redactor: Redactor) -> ReadableSpan:
    """The span without secrets in its texts."""
    clean = redactor.value

    def attributes(found: Mapping[str, Any] | None) -> dict[str, Any]:
        return {key: clean(value) for key, value in (found or {}).items()}

    return ReadableSpan(
        name=span.name, context=span.get_span_context(), parent=span.parent, resource=span.resource,
        attributes=attributes(span.attributes), links=span.links, kind=span.kind,
        events=[Event(event.name, attributes(event.attributes), event.timestamp) for event in span.events],
        status=Status(span.status.status_code, clean(span.status.description)),
        start_time=span.start_time, end_time=span.end_time, instrumentation_scope=span.instrumentation_scope)


def plain(span: ReadableSpan, service: str, redactor: Redactor) -> Span:
    """A span as it is kept, without secrets in its texts: `trace`, `span` and `parent` are lower-case hexadecimal ids
    (`parent` "" for none), `start` and `end` nanoseconds since the epoch, `kind` OTLP's number, `status` "", "ok" or
    "error"."""
    context: SpanContext = span.get_span_context()  # type: ignore[assignment]  # an ended span has one

    def attributes(found: Mapping[str, Any] | None) -> dict[str, Any]:
        return {key: redactor.value(list(value) if isinstance(value, tuple) else value)
                for key, value in (found or {}).items()}

    return {
        "trace": f"{context.trace_id:032x}", "span": f"{context.span_id:016x}",
        "parent": f"{span.parent.span_id:016x}" if span.parent else "", "service": service, "name": span.name,
        "kind": span.kind.value + 1, "start": span.start_time, "end": span.end_time,
        "status": _STATUS[span.status.status_code], "message": redactor.value(span.status.description or ""),
        "attributes": attributes(span.attributes),
        "events": [{"name": event.name, "time": event.timestamp, "attributes": attributes(event.attributes)}
                   for event in span.events],
        "links": [{"trace": f"{link.context.trace_id:032x}", "span": f"{link.context.span_id:016x}",
                   "attributes": dict(link.attributes or {})} for link in span.links]}


def otlp(spans: Iterable[Span]) -> dict[str, Any]:
    """OTLP's JSON (ExportTraceServiceRequest): ids in hexadecimal, 64-bit integers as text."""
    services: dict[str, list[dict[str, Any]]] = {}
    for span in spans:
        services.setdefault(span["service"], []).append({
            "traceId": span["trace"], "spanId": span["span"], "parentSpanId": span["parent"], "name": span["name"],
            "kind": span["kind"], "startTimeUnixNano": str(span["start"]), "endTimeUnixNano": str(span["end"]),
            "attributes": _attributes(span["attributes"]),
            "events": [{"name": event["name"], "timeUnixNano": str(event["time"]),
                        "attributes": _attributes(event["attributes"])} for event in span["events"]],
            "links": [{"traceId": link["trace"], "spanId": link["span"],
                       "attributes": _attributes(link["attributes"])} for link in span["links"]],
            "status": {"code": _OTLP_STATUS[span["status"]], "message": span["message"]}})
    return {"resourceSpans": [
        {"resource": {"attributes": _attributes({"service.name": service})},
         "scopeSpans": [{"scope": {"name": "openclaw_rl"}, "spans": found}]} for service, found in services.items()]}


def _attributes(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _otlp_value(value)} for key, value in attributes.items()]


def _otlp_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list | tuple):
        return {"arrayValue": {"values": [_otlp_value(entry) for entry in value]}}
    return {"stringValue": str(value)}
