"""Export of metrics by OTLP: the numbers of ComponentStatus and /metrics, read at each export.

ComponentStatus is the one source of figures: OTLP, Prometheus (`prometheus`) and history (`monitoring`) all derive from
it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry

from openclaw_rl.observability.state import current
from openclaw_rl.runtime.loop_monitor import LoopMonitor
from openclaw_rl.v1 import component_pb2

logger = logging.getLogger(__name__)

#: Seconds that the event loop has to answer an export; else it sends the figures of before.
_ANSWER_SECONDS = 1.0

_OF_ENVIRONMENT = re.compile("env_(.+)_(capacity|leased|warm|starting|waiting)")

#: (name of the figure, its attributes) -> value
Figures = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def of_status(status: component_pb2.ComponentStatus) -> tuple[Figures, Figures]:
    """Return counters and gauges of a component's status."""
    counts: Figures = {(f"openclaw.{name}", ()): value for name, value in status.counters.items()}
    counts |= {("openclaw.dropped", (("reason", reason),)): value for reason, value in status.dropped.items()}
    gauges: Figures = {_gauge(name): value for name, value in status.gauges.items()}
    for box in status.outboxes:
        stream = (("stream", box.name),)
        counts[("openclaw.outbox.delivered", stream)] = box.delivered
        counts[("openclaw.outbox.rejected", stream)] = box.rejected
        gauges |= {("openclaw.outbox.pending", stream): box.pending,
                   ("openclaw.outbox.pending_bytes", stream): box.pending_bytes,
                   ("openclaw.outbox.connected", stream): float(box.connected),
                   ("openclaw.outbox.oldest_age", stream): box.oldest_age.ToNanoseconds() / 1e9}
    state = component_pb2.ComponentState.Name(status.state).removeprefix("COMPONENT_STATE_")
    gauges |= {("openclaw.state", (("state", state),)): 1.0}
    gauges[("openclaw.component_degraded", (("component", status.name),))] = float(bool(status.alarms))
    gauges |= {("openclaw.alarm", (("component", status.name), ("name", alarm.name))): 1.0 for alarm in status.alarms}
    if status.HasField("policy_version"):
        gauges[("openclaw.policy.version", ())] = status.policy_version
    return counts, gauges


def environment_gauge(name: str) -> tuple[str, str] | None:
    """Type of an environment and what a gauge of a status says of it, such as "leased"; None for other gauges."""
    found = _OF_ENVIRONMENT.fullmatch(name)
    return None if found is None else (found[1], found[2])


def _gauge(name: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return name and labels of a gauge of a status: environments are distinguished by a label."""
    if (found := environment_gauge(name)) is not None:
        return f"openclaw.environment.{found[1]}", (("environment", found[0]),)
    return f"openclaw.{name}", ()


def of_registry(registry: CollectorRegistry) -> tuple[Figures, Figures]:
    """Return counters and gauges of a Prometheus registry. Histograms have instruments of their own (`gen_ai`)."""
    counts: Figures = {}
    gauges: Figures = {}
    for family in registry.collect():
        if family.type == "histogram":
            continue
        target = gauges if family.type == "gauge" else counts
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                target[(sample.name, tuple(sorted(sample.labels.items())))] = sample.value
    return counts, gauges


class MetricsExport:
    """Exports what is observed every `interval` seconds, from a thread of its own.

    Args:
        exporter: to the collector.
    """

    def __init__(self, exporter: MetricExporter, resource: Resource, interval: float) -> None:
        # It exports when `collect` says so: instruments can't be made while it reads them.
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=math.inf,
                                               export_timeout_millis=1000)
        self._provider = MeterProvider([reader], resource, shutdown_on_exit=False)
        self._meter: Meter = self._provider.get_meter("openclaw_rl")
        self._sources: list[Callable[[], tuple[Figures, Figures]]] = []
        self._known: set[tuple[str, str]] = set()
        self._values: tuple[Figures, Figures] = {}, {}
        self._interval = interval
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def add(self, source: Callable[[], tuple[Figures, Figures]]) -> None:
        """Add a source, which is called on the export thread."""
        self._sources.append(source)

    def histogram(self, name: str, unit: str, description: str, bounds: Sequence[float]) -> Histogram:
        """A histogram to record in; `bounds` are the upper ones of its buckets."""
        return self._meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=bounds)

    def shutdown(self, timeout: float) -> None:
        """Export a last time, for at most `timeout` seconds."""
        self._ending.set()
        self._thread.join(timeout)
        self._provider.shutdown(timeout_millis=timeout * 1000)

    def collect(self) -> None:
        """Export now. Must not be called on an observed event loop."""
        counts: Figures = {}
        gauges: Figures = {}
        for source in self._sources:
            more_counts, more_gauges = source()
            counts |= more_counts
            gauges |= more_gauges
        self._values = counts, gauges
        for index, figures in enumerate(self._values):
            for name in {name for name, _ in figures}:
                self._make(index, name)
        self._provider.force_flush(2000)

    def _run(self) -> None:
        while not self._ending.wait(self._interval):
            try:
                self.collect()
            except Exception as error:
                logger.debug("metrics: %s", error)

    def _make(self, index: int, name: str) -> None:
        kind = ("counter", "gauge")[index]
        if (kind, name) in self._known:
            return
        self._known.add((kind, name))

        def observe(options: CallbackOptions) -> list[Observation]:
            return [Observation(value, dict(labels)) for (key, labels), value in self._values[index].items()
                    if key == name]

        create: Any = getattr(self._meter, f"create_observable_{kind}")
        create(name, [observe])


def reporting(kind: type[MetricExporter]) -> type[MetricExporter]:
    """A subclass that logs the first of consecutive failures only: a collector without metrics (Jaeger) is no reason to
    fill the logger."""

    class Reporting(kind):  # type: ignore[valid-type, misc]  # a class by value
        _failing = False

        def export(self, metrics_data: Any, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
            try:
                result = super().export(metrics_data, timeout_millis=timeout_millis, **kwargs)
            except Exception as error:
                logger.debug("metrics: %s", error)
                result = MetricExportResult.FAILURE
            failed = result != MetricExportResult.SUCCESS
            if failed and not self._failing:
                logger.warning("the collector rejects metrics or does not answer; set OTEL_METRICS_EXPORTER=none to "
                               "disable their export")
            self._failing = failed
            return MetricExportResult.SUCCESS

    return Reporting


def observe_status(status: Callable[[], component_pb2.ComponentStatus]) -> None:
    """Export a component's status. Call it on the event loop, where `status` will be called too."""
    if (metrics := current().metrics) is not None:
        metrics.add(_on_loop(lambda: of_status(status())))


def observe_registry(registry: CollectorRegistry) -> None:
    """Export a Prometheus registry. Call it on the event loop that fills it."""
    if (metrics := current().metrics) is not None:
        metrics.add(_on_loop(lambda: of_registry(registry)))


def observe_loop(monitor: LoopMonitor) -> None:
    """Export how long an event loop was not free, as a histogram."""
    if (metrics := current().metrics) is not None:
        held = metrics.histogram("openclaw.event_loop.held", "s", "Time for which the event loop was not free",
                                 (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0))
        monitor.observe = held.record


def _on_loop(read: Callable[[], tuple[Figures, Figures]]) -> Callable[[], tuple[Figures, Figures]]:
    """`read`, made fit for any thread: it is called on the running loop. While that does not answer, or has ended,
    the figures are those of before."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    last: tuple[Figures, Figures] = {}, {}

    def source() -> tuple[Figures, Figures]:
        done = threading.Event()

        def ask() -> None:
            nonlocal last
            try:
                last = read()
            finally:
                done.set()

        try:
            loop.call_soon_threadsafe(ask, context=context)
            done.wait(_ANSWER_SECONDS)
        except RuntimeError:
            pass
        return last

    return source
