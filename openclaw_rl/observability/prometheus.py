"""Prometheus metrics of all components."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from openclaw_rl.observability.metrics import Figures, of_status
from openclaw_rl.v1 import component_pb2

_Sample = tuple[dict[str, str], float]
_Family = TypeVar("_Family", CounterMetricFamily, GaugeMetricFamily)

#: A component's name and, unless it does not answer, its status.
Told = tuple[str, component_pb2.ComponentStatus | None]


class MeshCollector(Collector):
    """The numbers of `openclaw-rl status`, asked for when somebody scrapes.

    A count `openclaw.turns_main` is `openclaw_turns_main_total`, a momentary figure `openclaw.pending` is
    `openclaw_pending`, as OTLP's own translation has it; each with the labels `component` and `host`. `openclaw_up` is
    1 for a component that answers and 0 for one that does not.

    Args:
        ask: gives what the components tell; blocks.
    """

    def __init__(self, ask: Callable[[], Iterable[Told]]) -> None:
        self._ask = ask

    def describe(self) -> list[GaugeMetricFamily]:
        """Return nothing, so that registration does not query the components."""
        return []

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        told = list(self._ask())
        up = GaugeMetricFamily("openclaw_up", "1 for a component that answers, else 0.", labels=("component", "host"))
        counts, gauges = _Samples(), _Samples()
        for name, status in told:
            up.add_metric((name, status.host if status is not None else ""), float(status is not None))
            if status is not None:
                for samples, figures in zip((counts, gauges), of_status(status), strict=True):
                    samples.add(figures, {"component": name, "host": status.host})
        yield up
        for metric, labels, told_of in counts.families():
            yield _filled(CounterMetricFamily(metric, _help(metric), labels=labels), labels, told_of)
        for metric, labels, told_of in gauges.families():
            yield _filled(GaugeMetricFamily(metric, _help(metric), labels=labels), labels, told_of)


class _Samples:
    """Figures of all components by name; those of one name have the same labels, in the same order."""

    def __init__(self) -> None:
        self._by_name: dict[str, list[_Sample]] = {}

    def add(self, figures: Figures, own: dict[str, str]) -> None:
        """Add the figures of one component."""
        for (figure, labels), value in figures.items():
            self._by_name.setdefault(re.sub(r"[^A-Za-z0-9_:]", "_", figure), []).append((dict(labels) | own, value))

    def families(self) -> Iterator[tuple[str, list[str], list[_Sample]]]:
        """Yield name, label names and samples of each figure."""
        for name, samples in sorted(self._by_name.items()):
            yield name, sorted({label for own, _ in samples for label in own}), samples


def _filled(family: _Family, labels: list[str], samples: list[_Sample]) -> _Family:
    for own, value in samples:
        family.add_metric([own.get(label) or "" for label in labels], value)
    return family


def _help(metric: str) -> str:
    return f"{metric.removeprefix('openclaw_').replace('_', ' ')}, as `openclaw-rl status` tells it."
