"""The dashboard of this process: mesh, history and access rules for the pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openclaw_rl.config import Config
    from openclaw_rl.dashboard.access import Access
    from openclaw_rl.monitoring.collector import Collector
    from openclaw_rl.monitoring.history import History
    from openclaw_rl.monitoring.mesh import MeshData
    from openclaw_rl.runtime.home import Home


@dataclass
class Dashboard:
    """What all pages share. There is one in a process, since NiceGUI has one application in a process."""

    home: Home
    config: Config
    mesh: MeshData
    history: History
    collector: Collector
    access: Access


_current: Dashboard | None = None


def install(dashboard: Dashboard) -> None:
    """Make it the process's dashboard."""
    global _current
    _current = dashboard


def dash() -> Dashboard:
    """The process's dashboard."""
    assert _current is not None, "no dashboard was made"
    return _current
