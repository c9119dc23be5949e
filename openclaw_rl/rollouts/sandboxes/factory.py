"""Choice of the back end by configuration."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path

from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.sandboxes.images import Images
from openclaw_rl.rollouts.sandboxes.interface import Backend, Limits, Sandbox, SandboxError, Spec, Unusable
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.rejection import Rejection

logger = logging.getLogger(__name__)


def label(home: Path) -> str:
    """The mark on all sandboxes of a mesh."""
    return hashlib.sha256(str(home.absolute()).encode()).hexdigest()[:12]


def backend(config: EnvironmentConfig, home: Path | None = None) -> Backend:
    """Make a back end. Starts nothing and asks nobody; call its `validate` to learn whether it can make a sandbox.

    Args:
        home: folder of the mesh; default: the one named by OPENCLAW_RL_HOME.
    """
    home = home or Home.default().root
    if config.backend == "auto":
        return Auto(home)
    return _bubblewrap(home) if config.backend == "bubblewrap" else _docker(home)


def spec(config: EnvironmentConfig, environment: Mapping[str, str] | None = None) -> Spec:
    """The sandboxes that an environment's configuration asks for.

    Args:
        environment: environment variables of all their processes.
    """
    return Spec(Limits(memory=config.memory, disk=config.disk, processes=config.processes, cpus=config.cpus),
                config.image, environment or {})


def remove_leftovers(home: Path) -> int:
    """Remove what sandboxes of a mesh left behind when their environment server died: containers, control groups,
    folders, processes.

    Blocks, perhaps for seconds. What can't be removed is logged: it keeps no server from starting or stopping.

    Returns:
        Number of removed items.
    """
    from openclaw_rl.rollouts.sandboxes import host_processes
    from openclaw_rl.rollouts.sandboxes.bubblewrap import backend as bubblewrap
    from openclaw_rl.rollouts.sandboxes.docker import backend as docker

    removed = 0
    for remove in (bubblewrap.remove_leftovers, docker.remove_leftovers, host_processes.remove_leftovers):
        try:
            removed += remove(label(home))
        except OSError as error:
            logger.warning("leftovers of sandboxes can't be removed: %s", error)
    return removed


class Auto:
    """Docker if an engine answers and has the image, else bubblewrap."""

    def __init__(self, home: Path) -> None:
        self._bubblewrap = _bubblewrap(home)
        self._docker = _docker(home)
        self._chosen: Backend | None = None

    @property
    def name(self) -> str:
        return self._chosen.name if self._chosen is not None else "auto"

    async def validate(self, spec: Spec) -> Rejection[Unusable] | None:
        if self._chosen is None and spec.image is not None and await self._docker.validate(spec) is None:
            self._chosen = self._docker
            return None
        rejection = await (self._chosen or self._bubblewrap).validate(spec)
        if rejection is None:
            self._chosen = self._chosen or self._bubblewrap
        elif self._chosen is None and rejection.code is Unusable.IMAGE_ABSENT:
            return Rejection(rejection.code, f"{rejection}, or for a container engine: --for docker")
        return rejection

    async def make(self, spec: Spec) -> Sandbox:
        if rejection := await self.validate(spec):
            raise SandboxError(rejection.message)
        assert self._chosen is not None  # by `validate`
        return await self._chosen.make(spec)


def _bubblewrap(home: Path) -> Backend:
    from openclaw_rl.rollouts.sandboxes.bubblewrap.backend import Bubblewrap

    return Bubblewrap(Images(home), label(home))


def _docker(home: Path) -> Backend:
    from openclaw_rl.rollouts.sandboxes.docker.backend import Docker

    return Docker(label(home))
