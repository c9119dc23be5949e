"""What Prometheus is told is valid for its own parsers, whatever names components of any make choose."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from openclaw_rl.observability.gen_ai import Generation
from openclaw_rl.observability.prometheus import MeshCollector
from openclaw_rl.serving.entrypoints.openai.metrics import Metrics
from openclaw_rl.v1 import component_pb2
from tests.support.required import left_out

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def validated(plain: str, openmetrics: str) -> dict[str, str]:
    """Parse both formats; the type of each family."""
    for families in (list(parse(plain)), list(parse_openmetrics(openmetrics))):
        names = Counter(family.name for family in families)
        assert max(names.values()) == 1, names.most_common(3)
        samples = Counter((sample.name, tuple(sorted(sample.labels.items())))
                          for family in families for sample in family.samples)
        assert max(samples.values()) == 1, samples.most_common(3)
    helped = Counter(line.split(" ")[2] for line in plain.splitlines() if line.startswith("# TYPE"))
    assert max(helped.values()) == 1, helped.most_common(3)
    return {family.name: family.type for family in families}


def mesh(*statuses: component_pb2.ComponentStatus) -> tuple[str, str]:
    registry = CollectorRegistry()
    registry.register(MeshCollector(lambda: [(status.name, status) for status in statuses]))
    return generate_latest(registry).decode(), generate_openmetrics(registry).decode()


STRANGE = component_pb2.ComponentStatus(
    name="policy_server", host='a"b\\c\nd', policy_version=3,
    counters={"requests": 4, "requests_total": 5, "up": 1, "a.b": 1, "tokens_created": 2, "größe": 1, "": 1},
    gauges={"requests_total": 7, "requests": 8, "a_b": 2, "a.b": 3, "requests_total_current": 9, "up": 0,
            "nan": float("nan"), "tokens": float("inf"), "policy.version": 1, "env_x_capacity": 1},
    dropped={"stale: 5\nversions": 2, "": 1}, alarms=[component_pb2.Alarm(name="x"), component_pb2.Alarm(name="x")],
    outboxes=[component_pb2.OutboxStats(name="turns"), component_pb2.OutboxStats(name="turns")])


def test_of_a_mesh_with_strange_names() -> None:
    types = validated(*mesh(STRANGE, component_pb2.ComponentStatus(name="trainer", counters={"requests": 1})))
    assert types["openclaw_requests"] == "counter" and types["openclaw_requests_current"] == "gauge"
    assert types["openclaw_up"] == "gauge"


def test_of_the_http_entrypoint() -> None:
    metrics = Metrics(lambda: {"qps": 1.5, "version": 2}, lambda: ["x"], lambda: {"engine_tokens": 4}, model="m")
    metrics.answered("chat.completions", 200)
    metrics.client('a "key"\n', 200)
    metrics.generations.ended(Generation("chat.completions", 2.5, 0.5, 10, 5))
    plain, plain_type = metrics.text()
    openmetrics, openmetrics_type = metrics.text(OPENMETRICS)
    types = validated(plain.decode(), openmetrics.decode())
    assert plain_type.startswith("text/plain") and openmetrics_type.startswith("application/openmetrics-text")
    assert types["openclaw_policy_qps"] == "gauge" and types["openclaw_policy_engine_tokens"] == "counter"
    assert types["gen_ai_server_request_duration_seconds"] == "histogram"


def test_of_both_by_promtool() -> None:
    if (promtool := shutil.which("promtool")) is None:
        left_out("promtool is missing: apt-get install prometheus")
    metrics = Metrics(lambda: {"qps": 1.5}, lambda: ["x"], lambda: {"engine_tokens": 4}, model="m")
    metrics.generations.ended(Generation("chat.completions", 2.5, 0.5, 10, 5))
    for text in (mesh(STRANGE)[0], metrics.text()[0].decode()):
        done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
        # 3: advice on style alone, such as on a name's unit.
        assert done.returncode in (0, 3) and "error while" not in done.stderr, done.stderr


@pytest.mark.parametrize("accept", ["", "text/plain", "application/openmetrics-text;version=0.0.1"])
def test_any_scraper_gets_something(accept: str) -> None:
    assert Metrics().text(accept)[0]
