"""Setting up and ending: standard variables, a dead collector, what a component tells of it."""

from __future__ import annotations

import logging
import socket
import time
from pathlib import Path

import pytest

from openclaw_rl.config import TelemetryConfig
from openclaw_rl.observability import telemetry, turn_spans
from openclaw_rl.observability.state import current
from openclaw_rl.observability.telemetry import endpoint
from openclaw_rl.runtime.home import Home
from openclaw_rl.v1 import component_pb2, turn_pb2
from tests.observability.tracing import Tracing

TURN = turn_pb2.Turn(turn_id="t", session_id="s")


@pytest.fixture(autouse=True)
def ended() -> object:
    yield
    telemetry.shutdown()


def test_disabled_by_configuration_or_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path)
    telemetry.setup("trainer", TelemetryConfig(enabled=False), home)
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    telemetry.setup("trainer", TelemetryConfig(), home)
    assert current().tracer is None and not (tmp_path / "telemetry").exists()
    began = time.perf_counter()
    for _ in range(10_000):
        turn_spans.recorded(TURN)
    assert time.perf_counter() - began < 0.2, "a call costs next to nothing"
    status = component_pb2.ComponentStatus()
    telemetry.report(status)
    assert status == component_pb2.ComponentStatus()


def test_the_resource_names_the_component(tracing: Tracing, monkeypatch: pytest.MonkeyPatch) -> None:
    turn_spans.recorded(TURN)
    resource = tracing.one("turn record").resource.attributes
    assert resource["service.name"] == "openclaw-rl.trainer" and resource["service.version"]
    assert resource["service.instance.id"]
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    tracing.restart()
    turn_spans.recorded(TURN)
    resource = tracing.spans("turn record")[1].resource.attributes
    assert resource["service.name"] == "mine.trainer" and resource["deployment.environment.name"] == "test"


def test_the_standard_sampler_is_heeded(tracing: Tracing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    tracing.restart()
    turn_spans.recorded(TURN)
    assert tracing.spans() == []


def test_where_spans_go(monkeypatch: pytest.MonkeyPatch) -> None:
    assert endpoint("traces", TelemetryConfig()) == ""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4317")
    assert endpoint("traces", TelemetryConfig()) == endpoint("metrics", TelemetryConfig()) == "http://a:4317"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://b:4317")
    assert endpoint("traces", TelemetryConfig()) == "http://b:4317"
    assert endpoint("traces", TelemetryConfig(endpoint="http://c:4317")) == "http://c:4317"
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    assert endpoint("metrics", TelemetryConfig(endpoint="http://c:4317")) == ""


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_dead_collector_costs_nothing_but_the_spans(tmp_path: Path, protocol: str,
                                                      caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        telemetry.setup("trainer", TelemetryConfig.model_validate(
            {"endpoint": url, "protocol": protocol, "metrics_interval": 0.1}), Home(tmp_path))
        began = time.perf_counter()
        for _ in range(5000):
            turn_spans.recorded(TURN)
        # Each of the ten batches would take the exporter's second, and seven of retries.
        assert time.perf_counter() - began < 5.0, "nobody waits for the network"
        assert current().collector is not None and current().collector.dropped >= 5000 - 2048 - 512
        deadline = time.monotonic() + 10
        while not current().collector.error:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert current().local is not None and current().local.force_flush(5000)
        status = component_pb2.ComponentStatus(state=component_pb2.COMPONENT_STATE_RUNNING)
        telemetry.report(status)
        assert status.gauges["spans_dropped"] >= 2000 and status.gauges["spans_waiting"] > 0
        assert "dropped so far" in status.detail and url in status.detail
        assert status.state == component_pb2.COMPONENT_STATE_RUNNING, "the mesh is well without"
        began = time.monotonic()
        telemetry.shutdown()
        assert time.monotonic() - began < 2.5
    assert sum("cannot deliver spans" in text for text in caplog.messages) == 1


def test_a_home_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "telemetry").write_text("a file where the folder should be")
    telemetry.setup("trainer", TelemetryConfig(), Home(tmp_path))
    turn_spans.recorded(TURN)
    status = component_pb2.ComponentStatus()
    telemetry.report(status)
    assert "spans are not kept" in status.detail
    assert telemetry.forget("s", ["t"]) == 0


def test_a_session_is_forgotten_while_its_spans_wait(tmp_path: Path) -> None:
    telemetry.setup("trainer", TelemetryConfig(), Home(tmp_path))
    for _ in range(10):
        turn_spans.recorded(TURN)
    turn_spans.recorded(turn_pb2.Turn(turn_id="other", session_id="other"))
    assert telemetry.forget("s", ["t"]) == 10
    assert current().store is not None and current().store.count() == 1
