"""Prometheus' and Grafana's files ask for what the components tell, and for nothing else."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from openclaw_rl.config import EnvServerConfig
from openclaw_rl.observability.gen_ai import Generation
from openclaw_rl.observability.prometheus import MeshCollector
from openclaw_rl.reward.queue import COUNTERS as JUDGE_COUNTERS
from openclaw_rl.rollouts.environments.factory import configured_environments
from openclaw_rl.rollouts.leases import status
from openclaw_rl.rollouts.leases.pool import LeasePool
from openclaw_rl.rollouts.server import COUNTERS as ENVIRONMENT_COUNTERS
from openclaw_rl.runtime.home import Home
from openclaw_rl.serving.entrypoints.openai.metrics import Metrics
from openclaw_rl.training.status import STEP_GAUGES
from openclaw_rl.v1.component_pb2 import Alarm, ComponentStatus, OutboxStats
from tests.servers.observability import DASHBOARD, FOLDER, dashboard, exported, expressions, metrics

SCHEMA = Path(__file__).with_name("grafana_dashboard.schema.json")


def environment_status(folder: Path) -> ComponentStatus:
    told = ComponentStatus(name="env_server", counters=dict.fromkeys(ENVIRONMENT_COUNTERS, 1),
                           gauges={"sessions_open": 1})
    status.add_to_status(LeasePool(configured_environments(EnvServerConfig(), Home(folder))), told)
    return told


def told(folder: Path) -> str:
    """Text that a mesh tells Prometheus: each component's names are the component's own."""
    trainer = dict.fromkeys([*STEP_GAUGES, "updates_per_hour", "pending"], 1.0)
    statuses = [
        ComponentStatus(name="policy_server", host="a", gauges={"qps": 1, "version": 1, "running": 1, "waiting": 0}),
        environment_status(folder),
        ComponentStatus(name="prm_judge", counters=dict.fromkeys(JUDGE_COUNTERS, 1), gauges={"queue": 1, "in_hand": 1},
                        outboxes=[OutboxStats(name="samples", pending=3)], alarms=[Alarm(name="judge_failing")]),
        ComponentStatus(name="trainer", counters={"samples_trained": 1}, gauges=trainer, dropped={"stale": 2})]
    registry = CollectorRegistry()
    registry.register(MeshCollector(lambda: [(one.name, one) for one in statuses]))
    return generate_latest(registry).decode()


def at_the_door() -> str:
    door = Metrics(lambda: {"qps": 1})
    door.answered("chat.completions", 200)
    door.generations.ended(Generation("chat.completions", 0.2, 0.1, 1, 2))
    return door.text()[0].decode()


async def test_every_metric_is_exported(tmp_path: Path) -> None:
    missing = metrics() - exported(told(tmp_path), at_the_door())
    assert not missing and len(metrics()) > 30


async def test_labels(tmp_path: Path) -> None:
    text = told(tmp_path)
    for line in ('openclaw_environment_capacity{component="env_server",environment="terminal",host=""} 4.0',
                 'openclaw_environment_waiting{component="env_server",environment="gui",host=""} 0.0',
                 'openclaw_alarm{component="prm_judge",host="",name="judge_failing"} 1.0',
                 'openclaw_dropped_total{component="trainer",host="",reason="stale"} 2.0',
                 'openclaw_outbox_pending{component="prm_judge",host="",stream="samples"} 3.0',
                 'openclaw_qps{component="policy_server",host="a"} 1.0',
                 'openclaw_up{component="trainer",host=""} 1.0'):
        assert line in text.splitlines()
    assert text.count("# TYPE openclaw_environment_capacity gauge") == 1


def test_a_component_that_does_not_answer() -> None:
    registry = CollectorRegistry()
    registry.register(MeshCollector(lambda: [("trainer", None)]))
    assert 'openclaw_up{component="trainer",host=""} 0.0' in generate_latest(registry).decode()


def test_the_dashboard_is_after_grafana_s_schema() -> None:
    checked = subprocess.run([sys.executable, "-m", "check_jsonschema", "--schemafile", str(SCHEMA), str(DASHBOARD)],
                             capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}
        assert place["x"] + place["w"] <= 24 and not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells


def test_a_broken_dashboard_is_told(tmp_path: Path) -> None:
    broken = dashboard()
    del broken["panels"][1]["targets"][0]["expr"]
    file = tmp_path / "broken.json"
    file.write_text(json.dumps(broken))
    checked = subprocess.run([sys.executable, "-m", "check_jsonschema", "--schemafile", str(SCHEMA), str(file)],
                             capture_output=True, text=True, check=False)
    assert checked.returncode != 0 and "'expr' is a required property" in checked.stdout


@pytest.mark.parametrize("query", expressions())
def test_queries_are_whole(query: Any) -> None:
    for opening, closing in ("()", "{}", "[]"):
        assert query.count(opening) == query.count(closing)
    assert query.count('"') % 2 == 0 and re.search("(openclaw|gen_ai)_", query)


def test_prometheus_scrapes_the_default_ports() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    jobs = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    from openclaw_rl.cli.metrics import PORT
    from openclaw_rl.config import PolicyServerConfig

    assert jobs == {"openclaw-mesh": [f"127.0.0.1:{PORT}"],
                    "openclaw-policy": [f"127.0.0.1:{PolicyServerConfig().port}"]}
    assert all((FOLDER / name).is_file() for name in config["rule_files"])
    for file in FOLDER.glob("grafana/provisioning/*/*.yaml"):
        assert yaml.safe_load(file.read_text())["apiVersion"] == 1


async def test_the_command_serves_them(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.prefix) / "bin" / "openclaw-rl"), "metrics", "--port", "0",
        env={"OPENCLAW_RL_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        url = (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()
        assert url.startswith("http://127.0.0.1:")
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=30).read().decode())
        assert 'openclaw_up{component="env_server",host=""} 0.0' in text
        for headers, status in (({"Host": "evil.example"}, 421), ({"Origin": "https://evil.example"}, 403)):
            with pytest.raises(urllib.error.HTTPError) as caught:
                await asyncio.to_thread(urllib.request.urlopen, urllib.request.Request(url, headers=headers), None, 30)
            assert caught.value.code == status
    finally:
        process.terminate()
        await process.wait()
