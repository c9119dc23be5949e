from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.observability.tracing import Tracing, tracing_in


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_SDK_DISABLED", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
                 "OTEL_TRACES_SAMPLER", "OTEL_SERVICE_NAME", "OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def tracing(tmp_path: Path) -> Iterator[Tracing]:
    with tracing_in(tmp_path) as found:
        yield found
