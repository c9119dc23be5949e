"""Settings of the judge."""

from __future__ import annotations

from pydantic import Field

from openclaw_rl.config.base import Component, Float, Int, Port


class PrmJudgeConfig(Component):
    """Votes on turns."""

    port: Port = 50053
    """gRPC; 0 means any free one."""
    judge: str = "auto"
    """`rules`, `llm` or the name of a plug-in (entry point group openclaw_rl.judges); auto: `llm` when `model` is
    set, else `rules`."""
    model: str | None = None
    """Model of the `llm` judge: any OpenAI-compatible one."""
    base_url: str | None = None
    """Of its API; default as for the policy server."""
    api_key_env: str | None = None
    """Name of the variable that holds its key; default as for the policy server."""
    votes: Int | None = Field(None, ge=1, le=32)
    """Votes on each turn; default 1 for rules, 3 for a model."""
    vote_timeout: Float = Field(30, gt=0)
    """Seconds after which a vote has failed."""
    workers: Int = Field(4, ge=1)
    """Turns that are judged at the same time."""
    requests_per_minute: Int | None = Field(None, ge=1)
    """Requests to the model's API at most; turns wait meanwhile. Default: no bound."""
