"""Metrics of generations by OpenTelemetry's GenAI semantic conventions, recorded once for Prometheus and for OTLP.

Names, units and buckets: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/. In Prometheus they are
named as OpenTelemetry translates them: `gen_ai.server.request.duration` in seconds is
`gen_ai_server_request_duration_seconds`.
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as PrometheusHistogram

from openclaw_rl.observability import names
from openclaw_rl.observability.state import current

_DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKENS = tuple(4.0**power for power in range(14))


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation that has ended.

    Attributes:
        api: entrypoint's name of the request, such as "chat.completions" or "grpc.generate".
        seconds: from its request to its end.
        first_token: seconds to its first token; None when it had none.
        prompt_tokens, completion_tokens: 0 when unknown.
        error: why it has no regular end: an error's reason or "cancelled"; "" for one that has.
        background: it was a background request.
    """

    api: str
    seconds: float
    first_token: float | None
    prompt_tokens: int
    completion_tokens: int
    error: str = ""
    background: bool = False


class GenAiMetrics:
    """Histograms of generations.

    Args:
        registry: for Prometheus. OTLP is that of the current component, where metrics are exported.
        model: that is served.
        provider: `gen_ai.provider.name`.
    """

    def __init__(self, registry: CollectorRegistry, model: str, provider: str) -> None:
        self._common = {names.PROVIDER: provider, names.REQUEST_MODEL: model, names.RESPONSE_MODEL: model}
        labels = (names.OPERATION, *self._common, names.BACKGROUND)
        self._duration = _Histogram(registry, "gen_ai.server.request.duration", "s", _DURATION,
                                    (*labels, names.ERROR), "Time from a request to the end of its response.")
        self._first = _Histogram(registry, "gen_ai.server.time_to_first_token", "s", _FIRST_TOKEN, labels,
                                 "Time from a request to the first token of its response.")
        self._next = _Histogram(registry, "gen_ai.server.time_per_output_token", "s", _PER_TOKEN, labels,
                                "Time of each token of a response after its first one.")
        self._tokens = _Histogram(registry, "gen_ai.client.token.usage", "{token}", _TOKENS,
                                  (*labels, names.TOKEN_TYPE), "Tokens of a request's prompt and of its response.")

    def ended(self, generation: Generation) -> None:
        """Record a generation."""
        attributes = {**self._common, names.OPERATION: names.operation(generation.api),
                      names.BACKGROUND: str(generation.background).lower()}
        self._duration.record(generation.seconds, {**attributes, names.ERROR: generation.error})
        if generation.error:
            return
        first, tokens = generation.first_token, generation.completion_tokens
        if first is not None:
            self._first.record(first, attributes)
            if tokens > 1:
                self._next.record((generation.seconds - first) / (tokens - 1), attributes)
        for kind, count in (("input", generation.prompt_tokens), ("output", tokens)):
            if count:
                self._tokens.record(count, {**attributes, names.TOKEN_TYPE: kind})


class _Histogram:
    def __init__(self, registry: CollectorRegistry, name: str, unit: str, bounds: tuple[float, ...],
                 labels: tuple[str, ...], description: str) -> None:
        self._labels = labels
        self._prometheus = PrometheusHistogram(
            name.replace(".", "_") + ("_seconds" if unit == "s" else ""), description,
            [label.replace(".", "_") for label in labels], registry=registry, buckets=bounds)
        export = current().metrics
        self._otlp = None if export is None else export.histogram(name, unit, description, bounds)

    def record(self, value: float, attributes: dict[str, str]) -> None:
        self._prometheus.labels(*(attributes[label] for label in self._labels)).observe(value)
        if self._otlp is not None:
            self._otlp.record(value, {key: text for key, text in attributes.items() if text})
