"""Telemetry of a component: set up before it serves, shut down after."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from openclaw_rl.config import TelemetryConfig
from openclaw_rl.observability.encoding import plain, redacted
from openclaw_rl.observability.export_queue import SpanQueue
from openclaw_rl.observability.span_store import SpanStore
from openclaw_rl.observability.state import Telemetry, current
from openclaw_rl.runtime import redact, runtime
from openclaw_rl.runtime.home import Home
from openclaw_rl.v1 import component_pb2

logger = logging.getLogger(__name__)

#: Seconds that an export to a collector may take.
EXPORT_TIMEOUT = 1.0
#: Seconds that `shutdown` takes at most.
SHUTDOWN_SECONDS = 2.0


def setup(component: str, config: TelemetryConfig, home: Home, exporter: SpanExporter | None = None) -> None:
    """Begin to trace in the current runtime. Never raises: what can't be set up is logged and left out.

    The standard variables are heeded: OTEL_SDK_DISABLED, OTEL_SERVICE_NAME (to which the component's name is added),
    OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER and its argument, OTEL_TRACES_EXPORTER and OTEL_METRICS_EXPORTER
    ("none"), OTEL_EXPORTER_OTLP_* (but for the time-out, which is a second), OTEL_BSP_*.

    Args:
        component: one of `home.COMPONENTS`.
        exporter: to export to in place of a collector.
    """
    if not config.enabled or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return
    try:
        _set_up(component, config, home, exporter)
    except Exception:
        logger.exception("cannot set up telemetry; continuing without")


def _set_up(component: str, config: TelemetryConfig, home: Home, exporter: SpanExporter | None) -> None:
    service = f"{os.environ.get('OTEL_SERVICE_NAME') or 'openclaw-rl'}.{component}"
    resource = Resource.create({
        "service.name": service, "service.version": importlib.metadata.version("openclaw-rl"),
        "service.instance.id": f"{os.uname().nodename}:{os.getpid()}:{time.time_ns() // 1_000_000_000}"})
    redactor = redact.current()  # spans are written on other threads
    state = Telemetry(capture_content=config.capture_content)
    provider = state.provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    try:
        store = state.store = SpanStore(home.root / "telemetry" / f"{component}.db", config.keep_spans)
    except (OSError, sqlite3.Error) as error:
        state.problems.append(f"spans are not kept in the home folder: {error}")
        logger.error("%s", state.problems[-1])
    else:
        def keep(spans: Sequence[ReadableSpan]) -> str:
            store.add([plain(span, service, redactor) for span in spans])
            return ""

        state.local = SpanQueue(keep, str(store.path))
        provider.add_span_processor(state.local)
    state.endpoint = endpoint("traces", config)
    if exporter is None and state.endpoint:
        exporter = _exporter("traces", config)
    if exporter is not None:
        chosen = exporter

        def send(spans: Sequence[ReadableSpan]) -> str:
            done = chosen.export([redacted(span, redactor) for span in spans]) == SpanExportResult.SUCCESS
            return "" if done else f"no answer from {state.endpoint}, or a refusal (its log has more)"

        state.collector = SpanQueue(send, state.endpoint or "the exporter")
        provider.add_span_processor(state.collector)
    if endpoint("metrics", config):
        from openclaw_rl.observability.metrics import MetricsExport

        state.metrics = MetricsExport(_exporter("metrics", config), resource, config.metrics_interval)
    # Exporters log each failure; ours is logged once, and counted.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    state.scope = InstrumentationScope("openclaw_rl", importlib.metadata.version("openclaw-rl"))
    state.tracer = provider.get_tracer(state.scope.name, state.scope.version)
    runtime.current().telemetry = state
    if state.endpoint:
        logger.info("exporting spans to %s", state.endpoint)


def endpoint(signal: str, config: TelemetryConfig) -> str:
    """Return the endpoint of a signal ("traces" or "metrics"); "" for none."""
    if os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip().lower() == "none":
        return ""
    return (config.endpoint or os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
            or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or "")


def _exporter(signal: str, config: TelemetryConfig) -> Any:
    protocol = (os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL")
                or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or config.protocol)
    from openclaw_rl.observability.metrics import reporting

    options: dict[str, Any] = {"timeout": EXPORT_TIMEOUT}
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import metric_exporter as grpc_metrics
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc_traces

        if config.endpoint:
            options["endpoint"] = config.endpoint
        return (grpc_traces.OTLPSpanExporter if signal == "traces" else reporting(grpc_metrics.OTLPMetricExporter))(
            **options)
    from opentelemetry.exporter.otlp.proto.http import metric_exporter as http_metrics
    from opentelemetry.exporter.otlp.proto.http import trace_exporter as http_traces

    if config.endpoint:
        options["endpoint"] = f"{config.endpoint.rstrip('/')}/v1/{signal}"
    return (http_traces.OTLPSpanExporter if signal == "traces" else reporting(http_metrics.OTLPMetricExporter))(
        **options)


def shutdown() -> None:
    """Deliver what waits, for at most two seconds, and end. Not in an event loop. May be called without `setup`."""
    state, runtime.current().telemetry = current(), None
    parts = [part for part in (state.local, state.collector, state.metrics) if part is not None]
    # At the same time: one that hangs must not take the others' seconds.
    threads = [threading.Thread(target=part.shutdown, args=(SHUTDOWN_SECONDS,), daemon=True) for part in parts]
    deadline = time.monotonic() + SHUTDOWN_SECONDS
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()) + 0.1)
    if state.store is not None and not threads[0].is_alive():
        state.store.close()


def flush(timeout: float = 2.0) -> bool:
    """Deliver what waits now; whether all was. Not in an event loop."""
    telemetry = current()
    queues = [queue for queue in (telemetry.local, telemetry.collector) if queue is not None]
    return all([queue.force_flush(int(timeout * 1000)) for queue in queues])


def forget(session_id: str, turn_ids: Sequence[str] = ()) -> int:
    """Delete a session's spans of the current component, those that wait to be written included; how many there were.
    Spans that went to a collector stay there. Takes up to a second, so not in an event loop.

    Raises:
        sqlite3.Error: the file can't be written.
    """
    telemetry = current()
    telemetry.samples.forget(session_id, set(turn_ids))
    if telemetry.store is None:
        return 0
    if telemetry.local is not None:
        telemetry.local.force_flush(1000)
    return telemetry.store.forget(session_id, turn_ids)


def report(status: component_pb2.ComponentStatus) -> None:
    """Add to a component's status what telemetry has to tell: spans that were dropped or wait, and why."""
    telemetry = current()
    if telemetry.tracer is None:
        return
    queues = [queue for queue in (telemetry.local, telemetry.collector) if queue is not None]
    dropped = sum(queue.dropped for queue in queues)
    status.gauges["spans_dropped"] = dropped
    status.gauges["spans_waiting"] = sum(queue.waiting for queue in queues)
    notes = [*telemetry.problems, *(telemetry.store.problems if telemetry.store else [])]
    notes += [f"spans: {dropped} dropped so far, {queue.error}" for queue in queues if queue.error]
    status.detail = "; ".join(filter(None, [status.detail, *notes]))
