"""What /metrics tells, in a registry of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from openclaw_rl.observability.metrics import observe_registry

_SECONDS = (.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """Counters and histograms of the HTTP door, and gauges that are asked for when somebody looks."""

    def __init__(self, gauges: Callable[[], dict[str, float]] = dict,
                 alarms: Callable[[], Iterable[str]] = tuple) -> None:
        """
        Args:
            gauges: momentary figures by name.
            alarms: names of the policy server's alarms that hold now.
        """
        self._registry = CollectorRegistry()
        self._requests = Counter("openclaw_requests", "Requests by door and HTTP status; 499: the client went away.",
                                 ("api", "status"), registry=self._registry)
        self._clients = Counter("openclaw_client_requests", "Requests by the name of the client's key (empty without "
                                "one) and HTTP status.", ("client", "status"), registry=self._registry)
        self._refused = Counter("openclaw_connections_refused", "Connections that were refused or ended, by reason.",
                                ("reason",), registry=self._registry)
        self._tokens = Counter("openclaw_tokens", "Tokens by kind.", ("kind",), registry=self._registry)
        self._first = Histogram("openclaw_first_token_seconds", "From the request to its first token.",
                                registry=self._registry, buckets=_SECONDS)
        self._total = Histogram("openclaw_response_seconds", "From the request to the end of its response.",
                                registry=self._registry, buckets=_SECONDS)
        self._registry.register(_Gauges(gauges))
        self._registry.register(_Alarms(alarms))
        observe_registry(self._registry)

    def answered(self, api: str, status: int, seconds: float) -> None:
        """A request has ended."""
        self._requests.labels(api, str(status)).inc()
        self._total.observe(seconds)

    def client(self, name: str, status: int) -> None:
        """A client was answered. `name`: its key's, never the key."""
        self._clients.labels(name, str(status)).inc()

    def refused(self, reason: str) -> None:
        """A connection was refused, or ended for what its client did."""
        self._refused.labels(reason).inc()

    def first_token(self, seconds: float) -> None:
        """The first token is there."""
        self._first.observe(seconds)

    def tokens(self, usage: dict[str, int]) -> None:
        """A response is complete."""
        self._tokens.labels("prompt").inc(usage["prompt_tokens"])
        self._tokens.labels("completion").inc(usage["completion_tokens"])

    def text(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self._registry)


class _Gauges(Collector):
    def __init__(self, gauges: Callable[[], dict[str, float]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, value in self._gauges().items():
            yield GaugeMetricFamily(f"openclaw_policy_{name}", f"Policy server: {name}.", value=value)


class _Alarms(Collector):
    """The same names and labels as the figures that components export by OTLP."""

    def __init__(self, alarms: Callable[[], Iterable[str]]) -> None:
        self._alarms = alarms

    def collect(self) -> Iterator[GaugeMetricFamily]:
        names = list(self._alarms())
        degraded = GaugeMetricFamily("openclaw_component_degraded", "1 while a component has an alarm, else 0.",
                                     labels=("component",))
        degraded.add_metric(("policy_server",), float(bool(names)))
        alarm = GaugeMetricFamily("openclaw_alarm", "1 for each alarm that a component has now.",
                                  labels=("component", "name"))
        for name in names:
            alarm.add_metric(("policy_server", name), 1.0)
        yield from (degraded, alarm)
