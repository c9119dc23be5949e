"""Traces, metrics and the journal. See README.md beside this file.

`telemetry.setup` and `telemetry.shutdown` frame a component's process; `request_spans`, `turn_spans` and
`version_spans` are what its parts call. While telemetry is disabled each call returns at once, and none ever raises or
waits.
"""
