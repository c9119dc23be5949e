"""Prometheus metrics of the HTTP entrypoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from openclaw_rl.observability.metrics import observe_registry

_SECONDS = (.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """Counters and histograms of requests, and gauges that are read at each scrape."""

    def __init__(self, gauges: Callable[[], dict[str, float]] = dict,
                 alarms: Callable[[], Iterable[str]] = tuple) -> None:
        """
        Args:
            gauges: returns current values by name.
            alarms: returns the names of the policy server's active alarms.
        """
        self._registry = CollectorRegistry()
        self._requests = Counter("openclaw_requests", "Requests by API and HTTP status; 499: the client disconnected.",
                                 ("api", "status"), registry=self._registry)
        self._clients = Counter("openclaw_client_requests", "Requests by the name of the client's key (empty without "
                                "one) and HTTP status.", ("client", "status"), registry=self._registry)
        self._refused = Counter("openclaw_connections_refused", "Connections refused or closed, by reason.",
                                ("reason",), registry=self._registry)
        self._tokens = Counter("openclaw_tokens", "Tokens by kind.", ("kind",), registry=self._registry)
        self._first = Histogram("openclaw_first_token_seconds", "Time from request to first token.",
                                registry=self._registry, buckets=_SECONDS)
        self._total = Histogram("openclaw_response_seconds", "Time from request to the end of the response.",
                                registry=self._registry, buckets=_SECONDS)
        self._registry.register(_Gauges(gauges))
        self._registry.register(_Alarms(alarms))
        observe_registry(self._registry)

    def answered(self, api: str, status: int, seconds: float) -> None:
        """Count a request that has ended."""
        self._requests.labels(api, str(status)).inc()
        self._total.observe(seconds)

    def client(self, name: str, status: int) -> None:
        """Count a response to a client. `name`: of its key, never the key itself."""
        self._clients.labels(name, str(status)).inc()

    def refused(self, reason: str) -> None:
        """Count a connection that was refused, or closed because of its client."""
        self._refused.labels(reason).inc()

    def first_token(self, seconds: float) -> None:
        """Observe the time to a first token."""
        self._first.observe(seconds)

    def tokens(self, usage: dict[str, int]) -> None:
        """Count the tokens of a complete response."""
        self._tokens.labels("prompt").inc(usage["prompt_tokens"])
        self._tokens.labels("completion").inc(usage["completion_tokens"])

    def text(self) -> bytes:
        """Render all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _Gauges(Collector):
    def __init__(self, gauges: Callable[[], dict[str, float]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, value in self._gauges().items():
            yield GaugeMetricFamily(f"openclaw_policy_{name}", f"Policy server: {name}.", value=value)


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
