"""Settings of sessions and of the environment server."""

from __future__ import annotations

from pydantic import Field, field_validator

from openclaw_rl.config.base import Component, Float, Int, Port, Section


class SessionAwareness(Section):
    """Which turns belong together and which of them are there to learn from."""

    enabled: bool = True
    """False: every turn without an explicit type is a main turn."""
    trainable_patterns: list[str] = []
    """Regular expressions (searched in the client's turn type and in the text of the last message) of main turns;
    tried before `auxiliary_patterns`."""
    auxiliary_patterns: list[str] = []
    """Regular expressions of side turns."""
    session_timeout: Float = Field(300, gt=0)
    """Seconds without a request after which a session has ended."""
    debug: bool = False
    """Log each request's class and all the evidence for it, with its weights."""

    @field_validator("trainable_patterns", "auxiliary_patterns")
    @classmethod
    def _compiles(cls, patterns: list[str]) -> list[str]:
        import regex

        for i, pattern in enumerate(patterns):
            try:
                regex.compile(pattern)
            except regex.error as error:
                raise ValueError(f"entry {i + 1}, {pattern!r}, is not a regular expression: {error}") from None
        return patterns


class EnvironmentConfig(Section):
    """Sandboxes of one type."""

    count: Int = Field(ge=1)
    """Most of them at once."""
    image: str | None = None
    """What they are made from."""


class EnvServerConfig(Component):
    """Keeps sessions and sandboxes."""

    port: Port = 50052
    """gRPC; 0 means any free one."""
    max_parallel: Int = Field(4, ge=1)
    """Most sandboxes at work at once."""
    environments: dict[str, EnvironmentConfig] = {}
    """Sandboxes by type."""
