"""What is in servers/observability."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "servers" / "observability"
DASHBOARD = FOLDER / "grafana" / "dashboards" / "openclaw-rl.json"
#: Figures that there are none of before a step was made, or before anybody asked for anything.
LATER = {"openclaw_loss", "openclaw_kl", "openclaw_grad_norm", "openclaw_staleness", "openclaw_dropped_total",
         "openclaw_alarm", "openclaw_requests_total"}


def dashboard() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text())


def expressions() -> list[str]:
    """All queries: of the dashboard and of the alerts."""
    board = dashboard()
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    queries += [annotation["expr"] for annotation in board["annotations"]["list"]]
    alerts = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    return queries + [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]


def metrics() -> set[str]:
    """Names of all metrics that are asked for."""
    queries = (re.sub(r"by \([^)]*\)|\{[^}]*\}", "", query) for query in expressions())
    return {name for query in queries for name in re.findall(r"\b(?:openclaw|gen_ai)_\w+", query)}


def exported(*texts: str) -> set[str]:
    """Names of the samples in Prometheus' text format."""
    return {line.split("{")[0].split(" ")[0] for text in texts for line in text.splitlines()
            if line and not line.startswith("#")}
