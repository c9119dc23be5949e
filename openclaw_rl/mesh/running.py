"""The configuration of the mesh of a home."""

from __future__ import annotations

from openclaw_rl.config import Config, load_config
from openclaw_rl.home import Home
from openclaw_rl.mesh import mesh_file


def running_config(home: Home) -> Config:
    """The configuration that the mesh was started with, else the one that it would be started with.

    Raises:
        ConfigError: it can't be used.
    """
    if (mesh := mesh_file.read(home)) is not None:
        return mesh.config
    started = home.run / "config.yaml"
    return load_config(next((file for file in (started, home.config_file) if file.exists()), None))
