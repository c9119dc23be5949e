"""Traces and metrics by OpenTelemetry: see README.md beside this file.

`setup` and `shutdown` frame a component's process; `requests`, `turns` and `versions` are what its parts call. While
telemetry is disabled each call returns at once, and none ever raises or waits.
"""

from __future__ import annotations

from openclaw_rl.observability.setup import flush, forget, report, setup, shutdown

__all__ = ["flush", "forget", "report", "setup", "shutdown"]
