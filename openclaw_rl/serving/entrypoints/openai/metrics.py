"""Prometheus metrics of the HTTP entrypoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from openclaw_rl.observability.gen_ai import GenAiMetrics
from openclaw_rl.observability.metrics import observe_registry


class Metrics:
    """Counters of requests, histograms of generations, and figures that are read at each scrape.

    Attributes:
        generations: histograms of the responses of all entrypoints.
    """

    def __init__(self, gauges: Callable[[], dict[str, float]] = dict, alarms: Callable[[], Iterable[str]] = tuple,
                 counters: Callable[[], dict[str, int]] = dict, *, model: str = "",
                 provider: str = "openclaw_rl") -> None:
        """
        Args:
            gauges: returns current values by name.
            alarms: returns the names of the policy server's active alarms.
            counters: returns counts by name.
            model, provider: of the generations; see `GenAiMetrics`.
        """
        self._registry = CollectorRegistry()
        self.generations = GenAiMetrics(self._registry, model, provider)
        self._requests = Counter("openclaw_requests", "Requests by API and HTTP status; 499: the client disconnected.",
                                 ("api", "status"), registry=self._registry)
        self._clients = Counter("openclaw_client_requests", "Requests by the name of the client's key (empty without "
                                "one) and HTTP status.", ("client", "status"), registry=self._registry)
        self._refused = Counter("openclaw_connections_refused", "Connections refused or closed, and requests refused "
                                "before they were read, by reason.", ("reason",), registry=self._registry)
        self._registry.register(_Figures(gauges, counters))
        self._registry.register(_Alarms(alarms))
        observe_registry(self._registry)

    def answered(self, api: str, status: int) -> None:
        """Count a request that has ended."""
        self._requests.labels(api, str(status)).inc()

    def client(self, name: str, status: int) -> None:
        """Count a response to a client. `name`: of its key, never the key itself."""
        self._clients.labels(name, str(status)).inc()

    def refused(self, reason: str) -> None:
        """Count a connection or a request that was refused, or a connection closed because of its client."""
        self._refused.labels(reason).inc()

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """Render all metrics.

        Args:
            accept: the scraper's Accept header; Prometheus asks for OpenMetrics.

        Returns:
            The text and its content type.
        """
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _Figures(Collector):
    def __init__(self, gauges: Callable[[], dict[str, float]], counters: Callable[[], dict[str, int]]) -> None:
        self._gauges, self._counters = gauges, counters

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        for name, value in self._gauges().items():
            yield GaugeMetricFamily(f"openclaw_policy_{name}", f"Policy server: {name}.", value=value)
        for name, count in self._counters().items():
            yield CounterMetricFamily(f"openclaw_policy_{name}", f"Policy server: {name}.", value=count)


class _Alarms(Collector):
    """Alarms, with the names and labels that components export by OTLP."""

    def __init__(self, alarms: Callable[[], Iterable[str]]) -> None:
        self._alarms = alarms

    def collect(self) -> Iterator[GaugeMetricFamily]:
        names = list(self._alarms())
        degraded = GaugeMetricFamily("openclaw_component_degraded", "1 while a component has an alarm, else 0.",
                                     labels=("component",))
        degraded.add_metric(("policy_server",), float(bool(names)))
        alarm = GaugeMetricFamily("openclaw_alarm", "1 for each active alarm of a component.",
                                  labels=("component", "name"))
        for name in names:
            alarm.add_metric(("policy_server", name), 1.0)
        yield from (degraded, alarm)
