"""Settings of the judge."""

from __future__ import annotations

from pydantic import Field

from openclaw_rl.config.base import Component, Float, Int, Port


class PrmJudgeConfig(Component):
    """Judges turns."""

    port: Port = 50053
    """gRPC port; 0: any free port."""
    judge: str = "auto"
    """`classifier`, `rules`, `llm` or a plug-in (entry point group openclaw_rl.judges); auto: `llm` if `model` is set,
    else `classifier`, or `rules` where its package is not installed."""
    model: str | None = None
    """Model of the `llm` judge, served by any OpenAI-compatible API."""
    base_url: str | None = None
    """Base URL of its API; default: as for the policy server."""
    api_key_env: str | None = None
    """Environment variable with its API key; default: as for the policy server."""
    votes: Int | None = Field(None, ge=1, le=32)
    """Votes per turn; default: 1 for `classifier` and `rules`, 3 for a model."""
    vote_timeout: Float = Field(30, gt=0)
    """Seconds after which a vote fails."""
    workers: Int = Field(4, ge=1)
    """Turns judged concurrently."""
    requests_per_minute: Int | None = Field(None, ge=1)
    """Maximum requests per minute to the model's API; further turns wait. Default: unlimited."""
