"""Discovery of a component's address."""

from __future__ import annotations

import logging

from openclaw_rl.config import Config, ConfigError
from openclaw_rl.runtime import mesh_file
from openclaw_rl.runtime.home import Home, read_record
from openclaw_rl.runtime.mesh_file import MeshFile

logger = logging.getLogger(__name__)


def resolve(home: Home, config: Config, name: str) -> str | None:
    """The gRPC address of component `name`, HOST:PORT: what the home's mesh file says, else the configured one, else
    what the component recorded.

    None when there is none of them: it hasn't started. A component may move and a recorded address may be out of date
    (its process was killed), so callers ask anew for every attempt.
    """
    try:
        mesh = mesh_file.read(home)
    except ConfigError as error:
        logger.warning("%s", error)
        mesh = None
    return known(home, config, mesh, name)


def known(home: Home, config: Config, mesh: MeshFile | None, name: str) -> str | None:
    """`resolve`, of what has been read already."""
    section = getattr(config.components, name, None)
    address: str | None = (mesh.address(name) if mesh else None) or (section.address if section else None)
    if address:
        return address
    record = read_record(home, name)
    return record.address if record else None
