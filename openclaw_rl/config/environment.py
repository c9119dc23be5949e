"""Settings of sessions and of the environment server."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from openclaw_rl.config.base import Component, Float, Int, Port, Section, Size


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


class McpConfig(Section):
    """An MCP server whose tools are an environment of kind `tool_call`: `command` or `url`, one of them."""

    command: list[str] = []
    """Program and arguments of a server that speaks over stdin and stdout; one for each lease."""
    environment: dict[str, str] = {}
    """Variables that it gets, beside PATH and HOME."""
    url: str | None = None
    """Address of a running server (streamable HTTP); one session for each lease."""
    sandbox: bool = True
    """Run `command` in a sandbox: this machine's programs in /usr or the image, no network. False: as a plain process,
    with everything that the environment server may do; only for a server that you trust."""

    @model_validator(mode="after")
    def _one(self) -> McpConfig:
        if bool(self.command) == bool(self.url):
            raise ValueError("`command` or `url` is needed, and only one of them")
        return self


class EnvironmentConfig(Section):
    """Sandboxes of one kind, under the name that they are leased by."""

    count: Int = Field(ge=1)
    """Most of them at once."""
    image: str | None = None
    """What they are made from, built by servers/environment/build-image. Default: for bubblewrap the programs of this
    machine; docker needs one."""
    kind: str | None = None
    """`terminal`, `gui`, `swe`, `tool_call`, `openenv` or a plug-in's; default: the name itself."""
    backend: Literal["auto", "bubblewrap", "docker"] = "auto"
    """What isolates them. auto: docker when an engine answers and has the image, else bubblewrap."""
    warm: Int | None = Field(None, ge=0)
    """Sandboxes kept ready for the next lease. Default: an eighth of `count`, 8 at most."""
    memory: Size = 512 * 2**20
    """Of all processes of a sandbox."""
    disk: Size = 64 * 2**20
    """Of the files that a sandbox may write."""
    processes: Int = Field(128, ge=8)
    """At once."""
    step_timeout: Float = Field(30, gt=0)
    """Seconds for a step that names no time of its own."""
    tasks: Path | None = None
    """A folder of further tasks, one YAML file each or several in one; see openclaw_rl/rollouts/tasks/README.md."""
    url: str | None = None
    """Kind `openenv`: address of the OpenEnv server."""
    mcp: McpConfig | None = None
    """Kind `tool_call`: the MCP server whose tools are called; default: the functions of the task."""


class EpisodesConfig(Section):
    """Episodes: the policy acts in sandboxes."""

    max_steps: Int = Field(8, ge=1)
    """Steps of an episode whose task names no number."""
    max_tokens: Int = Field(256, ge=1)
    """Tokens of one response at most."""
    tool_choice: Literal["auto", "required"] | None = None
    """required: each response is a call, and the goal is followed by the form of each function's call; for models that
    were not made to call functions. auto: the policy may write what it likes. Default: `required` for the embedded
    model, else `auto`."""
    temperature: Float = Field(1.0, ge=0)
    """Of the sampling, unless the run says otherwise."""
    timeout: Float = Field(900, gt=0)
    """Seconds after which an episode is broken off."""
    keep: Int = Field(10_000, ge=100)
    """Newest episodes that are remembered."""


class EnvServerConfig(Component):
    """Keeps sessions and sandboxes."""

    port: Port = 50052
    """gRPC; 0 means any free one."""
    max_parallel: Int = Field(4, ge=1)
    """Sandboxes at once of each kind (`terminal`, `swe`, `tool_call`, `gui`) when `environments` names none."""
    environments: dict[str, EnvironmentConfig] = {}
    """Sandboxes by name. Default: each kind that this machine has the programs for, `max_parallel` of each."""
    lease_ttl: Float = Field(120, gt=0)
    """Seconds after which a lease that nobody renews is taken back."""
    max_waiting: Int = Field(1000, ge=0)
    """Requests for a lease that may wait; more are told to come again."""
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
