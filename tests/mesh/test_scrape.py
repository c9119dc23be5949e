"""A real mesh tells Prometheus what the Grafana dashboard asks for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tests.mesh.mesh import Mesh
from tests.servers.observability import FOLDER, LATER, exported, metrics
from tests.support.ports import free_port
from tests.support.required import left_out
from tests.support.waiting import until


def test_the_dashboard_s_metrics_are_told(mesh: Mesh) -> None:
    mesh.chat([{"role": "user", "content": "Hi."}], max_tokens=2)
    told = mesh.cli("metrics", "--once")
    names = exported(told, httpx.get(f"{mesh.url}/metrics", trust_env=False).text)
    assert not metrics() - names - LATER
    assert {"openclaw_requests_total", "gen_ai_client_token_usage_sum"} <= names
    assert 'openclaw_environment_capacity{component="env_server",environment="terminal"' in told
    assert told.count("openclaw_up{") == 4 and "} 0.0" not in "".join(
        line for line in told.splitlines() if line.startswith("openclaw_up{"))


def scraped(address: str) -> dict[str, str]:
    """Health and last error of each job's target; empty while Prometheus starts."""
    try:
        found = httpx.get(f"http://{address}/api/v1/targets", trust_env=False).json()
    except httpx.TransportError:
        return {}
    return {target["labels"]["job"]: f"{target['health']} {target['lastError']}"
            for target in found["data"]["activeTargets"]}


def test_prometheus_scrapes_it(mesh: Mesh, tmp_path: Path) -> None:
    """By the configuration that servers/observability has, on the ports of this mesh."""
    if (prometheus := shutil.which("prometheus")) is None:
        left_out("prometheus is missing; tools/outside-tools installs it")
    mesh.chat([{"role": "user", "content": "Hi."}], max_tokens=2)
    command = [str(Path(sys.executable).parent / "openclaw-rl"), "metrics", "--port", "0"]
    with subprocess.Popen(command, env={**os.environ, "OPENCLAW_RL_HOME": str(mesh.home.root)}, stdout=subprocess.PIPE,
                          text=True) as told:
        assert told.stdout is not None
        targets = {"127.0.0.1:9464": urlsplit(told.stdout.readline().strip()).netloc,
                   "127.0.0.1:30000": urlsplit(mesh.url).netloc}
        config = (FOLDER / "prometheus.yml").read_text()
        for default, target in targets.items():
            assert default in config
            config = config.replace(default, target)
        (tmp_path / "prometheus.yml").write_text(config)
        shutil.copy(FOLDER / "alerts.yml", tmp_path)
        address = f"127.0.0.1:{free_port()}"
        try:
            with subprocess.Popen(
                    [prometheus, f"--config.file={tmp_path / 'prometheus.yml'}", f"--web.listen-address={address}",
                     f"--storage.tsdb.path={tmp_path / 'data'}"], stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL) as scraping:
                try:
                    until(lambda: scraped(address) == {"openclaw-mesh": "up ", "openclaw-policy": "up "}, 60,
                          "Prometheus scrapes both")
                finally:
                    scraping.terminate()
        finally:
            told.terminate()
