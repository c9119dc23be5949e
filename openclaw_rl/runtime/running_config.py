"""The configuration of the mesh of a home."""

from __future__ import annotations

import functools
from pathlib import Path

from openclaw_rl.config import Config, load_config
from openclaw_rl.runtime import mesh_file
from openclaw_rl.runtime.home import Home, file_stamp


def running_config(home: Home) -> Config:
    """The configuration that the mesh was started with, else the one that it would be started with.

    Raises:
        ConfigError: it can't be used.
    """
    if (mesh := mesh_file.read(home)) is not None:
        return mesh.config
    started = home.run / "config.yaml"
    file = next((file for file in (started, home.config_file) if file.exists()), None)
    return load_config(None) if file is None else _read(file, file_stamp(file))


@functools.lru_cache(maxsize=4)
def _read(file: Path, _stamp: tuple[int, int, int]) -> Config:
    """It is asked for with each client that is made, and reading it takes some 20 ms."""
    return load_config(file)
