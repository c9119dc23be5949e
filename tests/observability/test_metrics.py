"""Metrics by OTLP are those of ComponentStatus and /metrics."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import Histogram, MetricExporter, MetricExportResult
from opentelemetry.sdk.resources import Resource

from openclaw_rl.observability.gen_ai import Generation
from openclaw_rl.observability.metrics import MetricsExport, observe_status, reporting
from openclaw_rl.observability.state import Telemetry, current
from openclaw_rl.runtime import runtime
from openclaw_rl.serving.entrypoints.openai.metrics import Metrics
from openclaw_rl.v1 import component_pb2


class Keeper(MetricExporter):
    def __init__(self) -> None:
        super().__init__()
        self.points: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self.monotonic: set[str] = set()
        self.histograms: dict[str, tuple[str, list[tuple[dict[str, str], int, float]]]] = {}

    def export(self, metrics_data: Any, timeout_millis: float = 0, **kwargs: Any) -> MetricExportResult:
        for resource in metrics_data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if getattr(metric.data, "is_monotonic", False):
                        self.monotonic.add(metric.name)
                    if isinstance(metric.data, Histogram):
                        self.histograms[metric.name] = metric.unit, [
                            (dict(point.attributes), point.count, point.sum) for point in metric.data.data_points]
                        continue
                    for point in metric.data.data_points:
                        self.points[metric.name, tuple(sorted(point.attributes.items()))] = point.value
        return MetricExportResult.SUCCESS

    def shutdown(self, timeout_millis: float = 0, **kwargs: Any) -> None: ...

    def force_flush(self, timeout_millis: float = 0) -> bool:
        return True


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Any:
    keeper = Keeper()
    export = MetricsExport(keeper, Resource.get_empty(), 3600)
    monkeypatch.setattr(runtime.current(), "telemetry", Telemetry(metrics=export))
    yield keeper
    export.shutdown(1)


async def test_the_same_numbers(keeper: Keeper) -> None:
    loop = asyncio.get_running_loop()
    status = component_pb2.ComponentStatus(
        name="trainer", state=component_pb2.COMPONENT_STATE_DEGRADED, policy_version=7, counters={"turns_main": 5},
        gauges={"pending": 2.5}, dropped={"stale": 3}, alarms=[component_pb2.Alarm(name="judge_failing")],
        outboxes=[component_pb2.OutboxStats(name="turns", pending=4, delivered=9, connected=True)])

    def read() -> component_pb2.ComponentStatus:
        assert asyncio.get_running_loop() is loop, "asked on the event loop, where all else asks"
        return status

    observe_status(read)
    metrics = Metrics(lambda: {"qps": 1.5}, counters=lambda: {"engine_tokens": 9}, model="stub")
    metrics.answered("chat.completions", 200)
    metrics.generations.ended(Generation("chat.completions", 2.5, 0.5, 10, 5))
    metrics.generations.ended(Generation("grpc.generate", 0.2, None, 0, 0, "CONTEXT_TOO_LONG", True))
    await asyncio.to_thread(current().metrics.collect)
    points = keeper.points
    assert points["openclaw.turns_main", ()] == 5 and points["openclaw.pending", ()] == 2.5
    assert points["openclaw.dropped", (("reason", "stale"),)] == 3 and points["openclaw.policy.version", ()] == 7
    assert points["openclaw.outbox.pending", (("stream", "turns"),)] == 4
    assert points["openclaw.outbox.delivered", (("stream", "turns"),)] == 9
    assert points["openclaw.alarm", (("component", "trainer"), ("name", "judge_failing"))] == 1
    assert points["openclaw.state", (("state", "DEGRADED"),)] == 1
    assert {"openclaw.turns_main", "openclaw.dropped", "openclaw_requests_total"} <= keeper.monotonic
    assert "openclaw.pending" not in keeper.monotonic
    told = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in metrics.text()[0].decode().splitlines() if line.startswith("openclaw_")}
    exported = {name + ("{" + ",".join(f'{k}="{v}"' for k, v in labels) + "}" if labels else ""): value
                for (name, labels), value in points.items() if not name.startswith("openclaw.")}
    assert exported == {name: value for name, value in told.items() if "_created" not in name}
    common = {"gen_ai.provider.name": "openclaw_rl", "gen_ai.request.model": "stub", "gen_ai.response.model": "stub"}
    chat = {**common, "gen_ai.operation.name": "chat", "openclaw.background": "false"}
    failed = {**common, "gen_ai.operation.name": "text_completion", "openclaw.background": "true",
              "error.type": "CONTEXT_TOO_LONG"}
    assert keeper.histograms == {
        "gen_ai.server.request.duration": ("s", [(chat, 1, 2.5), (failed, 1, 0.2)]),
        "gen_ai.server.time_to_first_token": ("s", [(chat, 1, 0.5)]),
        "gen_ai.server.time_per_output_token": ("s", [(chat, 1, 0.5)]),
        "gen_ai.client.token.usage": ("{token}", [({**chat, "gen_ai.token.type": "input"}, 1, 10),
                                                  ({**chat, "gen_ai.token.type": "output"}, 1, 5)])}
    shown = metrics.text()[0].decode()
    for name, count in (("gen_ai_server_request_duration_seconds", 2), ("gen_ai_client_token_usage", 2),
                        ("gen_ai_server_time_to_first_token_seconds", 1),
                        ("gen_ai_server_time_per_output_token_seconds", 1)):
        assert f"# TYPE {name} histogram" in shown and len(re.findall(rf"^{name}_count", shown, re.M)) == count




class Refusing(Keeper):
    def __init__(self) -> None:
        super().__init__()
        self.answers = [MetricExportResult.FAILURE, None, MetricExportResult.SUCCESS, MetricExportResult.FAILURE]

    def export(self, metrics_data: Any, timeout_millis: float = 0, **kwargs: Any) -> MetricExportResult:
        answer = self.answers.pop(0)
        if answer is None:
            raise OSError("no route to host")
        return answer


def test_the_first_of_a_row_of_failures_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    exporter = reporting(Refusing)()
    assert [exporter.export(None) for _ in range(2)] == [MetricExportResult.SUCCESS] * 2  # type: ignore[arg-type]
    assert len(caplog.records) == 1 and "rejects metrics" in caplog.text
    for _ in range(2):
        exporter.export(None)  # type: ignore[arg-type]
    assert len(caplog.records) == 2
