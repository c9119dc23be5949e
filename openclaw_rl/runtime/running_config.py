"""The configuration that applies to the mesh of a home."""

from __future__ import annotations

from openclaw_rl.config import Config, load_config
from openclaw_rl.runtime import mesh_file
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.reloading import reread_when_changed

#: A configuration is asked for with each client that is made, and reading it takes some 20 ms.
_read = reread_when_changed(load_config)


def running_config(home: Home) -> Config:
    """The configuration that the mesh was started with, else the one that it would be started with.

    Raises:
        ConfigError: it can't be used.
    """
    if (mesh := mesh_file.read(home)) is not None:
        return mesh.config
    started = home.run / "config.yaml"
    file = next((file for file in (started, home.config_file) if file.exists()), None)
    return load_config(None) if file is None else _read(file)
