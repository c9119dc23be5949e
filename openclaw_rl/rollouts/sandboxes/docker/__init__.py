"""Sandboxes as containers of a Docker-compatible engine."""
