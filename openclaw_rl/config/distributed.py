"""Settings of a mesh on several hosts."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from openclaw_rl.config.base import Float, Int, Port, Section


class DistributedConfig(Section):
    """Access of `distributed-start` to the hosts. Each component's `host` says where it runs."""

    ray_address: str | None = None
    """HOST:PORT of a running Ray cluster, or `auto`; default: the variable RAY_ADDRESS, else a cluster is started over
    SSH and stopped by `stop-all`."""
    head: str | None = None
    """Host of Ray's head; default: the policy server's."""
    ssh_user: str | None = None
    """SSH user on the hosts; default: the current user."""
    ssh_key: Path | None = None
    """Private key file; default: SSH's own."""
    ssh_port: Port = 22
    """SSH port of the hosts."""
    python: str | None = None
    """Python with openclaw-rl[distributed] on the hosts; default: the path of the current one."""
    home: str | None = None
    """Home folder on the hosts, as OPENCLAW_RL_HOME here; default: ~/.openclaw-rl."""
    ray_port: Port = 6379
    """Port of Ray's head if started here."""
    ray_memory: Int = Field(100_000_000, ge=80_000_000)
    """Bytes of Ray's object store on each host; the mesh does not use it."""
    elsewhere: bool = False
    """Start a component on another host if its host is gone for `elsewhere_after` seconds. Its state moves along only
    if `home` is a folder shared by all hosts."""
    elsewhere_after: Float = Field(120, ge=10)
    """Seconds."""
    environment: list[str] = []
    """Environment variables to pass to the components, such as OPENAI_API_KEY; their values are transferred encrypted
    or not at all."""
    max_clock_difference: Float = Field(5, gt=0)
    """Maximum clock difference of a host in seconds."""
