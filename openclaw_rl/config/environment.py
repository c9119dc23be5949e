"""Settings of sessions and of the environment server."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from openclaw_rl.config.base import Component, Float, Int, Port, Section, Size


class SessionAwareness(Section):
    """Assignment of turns to sessions, and selection of those to learn from."""

    enabled: bool = True
    """false: every turn without a declared type is a main turn."""
    trainable_patterns: list[str] = []
    """Regular expressions of main turns, searched in the declared turn type and in the last message; tried before
    `auxiliary_patterns`."""
    auxiliary_patterns: list[str] = []
    """Regular expressions of side turns."""
    session_timeout: Float = Field(300, gt=0)
    """Seconds without a request after which a session ends."""
    debug: bool = False
    """Log each request's class with all evidence and its weights."""

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


class McpConfig(Section):
    """An MCP server as environment of kind `tool_call`: either `command` or `url`."""

    command: list[str] = []
    """Command of a server that communicates over stdin and stdout; one process per lease."""
    environment: dict[str, str] = {}
    """Environment variables passed to it, besides PATH and HOME."""
    url: str | None = None
    """Address of a running server (streamable HTTP); one session per lease."""
    sandbox: bool = True
    """Run `command` in a sandbox without network access. false: run it as a plain process with all rights of the
    environment server; only for trusted servers."""

    @model_validator(mode="after")
    def _one(self) -> McpConfig:
        if bool(self.command) == bool(self.url):
            raise ValueError("`command` or `url` is needed, and only one of them")
        return self


class EnvironmentConfig(Section):
    """Sandboxes of one kind, leased by this name."""

    count: Int = Field(ge=1)
    """Maximum number of concurrent sandboxes."""
    image: str | None = None
    """Image, built by servers/environment/build-image. Default: with bubblewrap the programs of this machine; required
    with docker."""
    kind: str | None = None
    """`terminal`, `gui`, `swe`, `tool_call`, `openenv` or a plug-in's kind; default: the environment's name."""
    backend: Literal["auto", "bubblewrap", "docker"] = "auto"
    """Isolation backend. auto: docker if an engine responds and has the image, else bubblewrap."""
    warm: Int | None = Field(None, ge=0)
    """Sandboxes kept ready for the next lease. Default: an eighth of `count`, at most 8."""
    memory: Size = 512 * 2**20
    """Memory limit of all processes of a sandbox."""
    disk: Size = 64 * 2**20
    """Disk limit of a sandbox."""
    processes: Int = Field(128, ge=8)
    """Maximum number of processes of a sandbox."""
    cpus: Float = Field(1, gt=0)
    """CPU limit of a sandbox, in cores. All sandboxes together yield to the processes that serve users."""
    step_timeout: Float = Field(30, gt=0)
    """Default timeout of a step in seconds."""
    tasks: Path | None = None
    """Folder with further tasks in YAML files; see openclaw_rl/rollouts/tasks/README.md."""
    url: str | None = None
    """Address of the OpenEnv server (kind `openenv`)."""
    mcp: McpConfig | None = None
    """MCP server whose tools are called (kind `tool_call`); default: the functions of the task."""


class EpisodesConfig(Section):
    """Episodes of the policy in sandboxes."""

    max_steps: Int = Field(8, ge=1)
    """Default maximum number of steps of an episode."""
    max_tokens: Int = Field(256, ge=1)
    """Maximum tokens of a response."""
    tool_choice: Literal["auto", "required"] | None = None
    """required: every response must be a call, and the goal is followed by each function's call format; for models not
    trained on function calling. auto: free-form responses. Default: `required` for the embedded model, else `auto`."""
    temperature: Float = Field(1.0, ge=0)
    """Default sampling temperature."""
    curriculum: bool = True
    """Draw first the tasks that the policy does now and then (a success rate from 0.1 to 0.9) and those that were never
    tried, easy ones first. Only for groups to train on, when their number is given."""
    extra_groups: Float = Field(0, ge=0, le=4)
    """Further groups, as a share of those asked for, that may be run in place of groups in which all attempts went
    alike, which teach nothing."""
    timeout: Float = Field(900, gt=0)
    """Seconds after which an episode is aborted."""
    keep: Int = Field(10_000, ge=100)
    """Number of latest episodes kept."""


class EnvServerConfig(Component):
    """Manages sessions and sandboxes."""

    port: Port = 50052
    """gRPC port; 0: any free port."""
    max_parallel: Int = Field(4, ge=1)
    """Maximum concurrent sandboxes of each kind (`terminal`, `swe`, `tool_call`, `gui`) if `environments` is empty."""
    environments: dict[str, EnvironmentConfig] = {}
    """Environments by name. Default: `max_parallel` of each kind for which this machine has the programs."""
    lease_ttl: Float = Field(120, gt=0)
    """Seconds after which a lease expires unless renewed."""
    max_waiting: Int = Field(1000, ge=0)
    """Maximum number of waiting lease requests; further ones are told to retry."""
    episodes: EpisodesConfig = EpisodesConfig()

    @field_validator("environments")
    @classmethod
    def _names(cls, environments: dict[str, EnvironmentConfig]) -> dict[str, EnvironmentConfig]:
        import re

        for name in environments:
            if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", name):
                raise ValueError(f"{name[:80]!r} is no name of an environment: 1 to 64 letters, digits, `_` and `-`, "
                                 "the first no `-`")
        return environments
