"""Prometheus metrics of all components."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from openclaw_rl.observability.metrics import Figures, of_status
from openclaw_rl.v1 import component_pb2

_Sample = tuple[list[str], float]  # values of its labels, and its own
_Family = TypeVar("_Family", CounterMetricFamily, GaugeMetricFamily)

#: Name and status of a component; None if it does not respond.
NamedStatus = tuple[str, component_pb2.ComponentStatus | None]


class MeshCollector(Collector):
    """Collects the figures of `openclaw-rl status` at each scrape.

    The counter `openclaw.turns_main` becomes `openclaw_turns_main_total`, the gauge `openclaw.pending` becomes
    `openclaw_pending`, as in OTLP's own translation; each has the labels `component` and `host`. `openclaw_up` is 1 for
    a component that responds, else 0.

    A scrape fails as a whole when two families share a name, and components of any make choose their names. So
    figures whose names become the same are one family, a gauge with the name of a counter gets `_current` added,
    and a counter with that of `openclaw_up` `_counted`.

    Args:
        ask: returns the status of all components; blocks.
    """

    def __init__(self, ask: Callable[[], Iterable[NamedStatus]]) -> None:
        self._ask = ask

    def describe(self) -> list[GaugeMetricFamily]:
        """Return nothing, so that registration does not query the components."""
        return []

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        statuses = list(self._ask())
        up = GaugeMetricFamily("openclaw_up", "1 for a component that responds, else 0.", labels=("component", "host"))
        counts, gauges = _Samples(), _Samples()
        for name, status in statuses:
            up.add_metric((name, status.host if status is not None else ""), float(status is not None))
            if status is not None:
                for samples, figures in zip((counts, gauges), of_status(status), strict=True):
                    samples.add(figures, {"component": name, "host": status.host})
        yield up
        taken = {up.name}
        for name, labels, samples_of in counts.families():
            while name in taken:
                name += "_counted"
            taken |= {name, f"{name}_total", f"{name}_created"}
            yield _filled(CounterMetricFamily(name, _help(name), labels=labels), samples_of)
        for name, labels, samples_of in gauges.families():
            while name in taken:
                name += "_current"
            taken.add(name)
            yield _filled(GaugeMetricFamily(name, _help(name), labels=labels), samples_of)


class _Samples:
    """Figures of all components by name; those of one name have the same labels, in the same order."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}

    def add(self, figures: Figures, own: dict[str, str]) -> None:
        """Add the figures of one component."""
        for (figure, labels), value in figures.items():
            name = re.sub(r"[^A-Za-z0-9_:]", "_", figure).removesuffix("_total")
            self._by_name.setdefault(name, {})[tuple(sorted((dict(labels) | own).items()))] = value

    def families(self) -> Iterator[tuple[str, list[str], list[_Sample]]]:
        """Yield name, label names and samples of each figure."""
        for name, samples in sorted(self._by_name.items()):
            labels = sorted({label for own in samples for label, _ in own})
            yield name, labels, [([dict(own).get(label, "") for label in labels], value)
                                 for own, value in samples.items()]


def _filled(family: _Family, samples: list[_Sample]) -> _Family:
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _help(metric: str) -> str:
    return f"{metric.removeprefix('openclaw_').replace('_', ' ')}, as shown by `openclaw-rl status`."
