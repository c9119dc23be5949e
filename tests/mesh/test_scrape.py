"""A real mesh tells Prometheus what the Grafana dashboard asks for."""

from __future__ import annotations

import httpx

from tests.mesh.mesh import Mesh
from tests.servers.observability import LATER, exported, metrics


def test_the_dashboard_s_metrics_are_told(mesh: Mesh) -> None:
    mesh.chat([{"role": "user", "content": "Hi."}], max_tokens=2)
    told = mesh.cli("metrics", "--once")
    names = exported(told, httpx.get(f"{mesh.url}/metrics", trust_env=False).text)
    assert not metrics() - names - LATER
    assert {"openclaw_requests_total", "gen_ai_client_token_usage_sum"} <= names
    assert 'openclaw_environment_capacity{component="env_server",environment="terminal"' in told
    assert told.count("openclaw_up{") == 4 and "} 0.0" not in "".join(
        line for line in told.splitlines() if line.startswith("openclaw_up{"))
