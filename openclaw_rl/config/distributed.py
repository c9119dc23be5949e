"""Settings of a mesh on several hosts."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from openclaw_rl.config.base import Float, Int, Port, Section


class DistributedConfig(Section):
    """How `distributed-start` gets at the hosts; which component runs where says each component's `host`."""

    ray_address: str | None = None
    """HOST:PORT of a Ray cluster that runs, or `auto`; default the variable RAY_ADDRESS. None at all: one is brought up
    over ssh, and ended by `stop-all`."""
    head: str | None = None
    """Host that Ray's head runs on; default the policy server's."""
    ssh_user: str | None = None
    """User on the hosts; default who starts."""
    ssh_key: Path | None = None
    """Private key file; default what ssh itself would take."""
    ssh_port: Port = 22
    """Port of the hosts' ssh servers."""
    python: str | None = None
    """Python on the hosts that has openclaw-rl[distributed]; default the path of the one that starts."""
    home: str | None = None
    """Folder on the hosts for what OPENCLAW_RL_HOME is here; default ~/.openclaw-rl."""
    ray_port: Port = 6379
    """Port of Ray's head when it is brought up here."""
    ray_memory: Int = Field(100_000_000, ge=80_000_000)
    """Bytes of Ray's object store on each host; nothing of the mesh goes through it."""
    elsewhere: bool = False
    """A component whose host is gone for `elsewhere_after` seconds is started on another host. Its state goes with it
    only where `home` is a folder that all hosts share."""
    elsewhere_after: Float = Field(120, ge=10)
    """Seconds."""
    environment: list[str] = []
    """Names of variables that the components get from the one who starts, such as OPENAI_API_KEY; their values are
    handed over encrypted or not at all."""
    max_clock_difference: Float = Field(5, gt=0)
    """Seconds that a host's clock may differ from the one here."""
