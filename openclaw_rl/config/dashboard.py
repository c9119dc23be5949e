"""Settings of the dashboard."""

from __future__ import annotations

from pydantic import Field

from openclaw_rl.config.base import Float, Int, Port, Section


class DashboardConfig(Section):
    """The web panel, `openclaw-rl dashboard`."""

    host: str = "127.0.0.1"
    """Address that it listens on. On another one than loopback it asks for a key, and needs `certs` or a proxy with
    TLS in front of it."""
    names: list[str] = []
    """Host names that it is reached by beside this machine's own, such as that of a proxy in front of it. Pages under
    any other name are refused, since another site could let its name point here."""
    port: Port = 30080
    """0 means any free one."""
    interval: Float = Field(1.0, ge=0.2)
    """Seconds between two figures of a component."""
    keep_days: Int = Field(7, ge=1)
    """Days of history."""
