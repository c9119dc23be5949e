"""Settings of the dashboard."""

from __future__ import annotations

from pydantic import Field

from openclaw_rl.config.base import Float, Int, Port, Section


class DashboardConfig(Section):
    """The web dashboard, `openclaw-rl dashboard`."""

    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback requires a key, and certificates or a TLS proxy in front of it."""
    names: list[str] = []
    """Host names that it is reached by besides this machine's own, such as a proxy's. Requests under other names are
    rejected, as protection against DNS rebinding."""
    port: Port = 30080
    """Port; 0: any free port."""
    interval: Float = Field(1.0, ge=0.2)
    """Interval in seconds of the recorded figures."""
    keep_days: Int = Field(7, ge=1)
    """Days of history to keep."""
