"""The back end that a configuration means."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.sandboxes.images import Images, absent
from openclaw_rl.rollouts.sandboxes.interface import Backend, Limits, Sandbox, SandboxError, Spec
from openclaw_rl.runtime.home import Home

log = logging.getLogger(__name__)


def label(home: Path) -> str:
    """What sandboxes of a mesh are marked with."""
    return hashlib.sha256(str(home.absolute()).encode()).hexdigest()[:12]


def backend(config: EnvironmentConfig, home: Path | None = None) -> Backend:
    """A back end. Starts nothing and asks nobody: whether it can make a sandbox, its `problem` tells.

    Args:
        home: folder of the mesh; default: that of OPENCLAW_RL_HOME.
    """
    home = home or Home.default().root
    if config.backend == "auto":
        return Auto(home)
    return _bubblewrap(home) if config.backend == "bubblewrap" else _docker(home)


def spec(config: EnvironmentConfig) -> Spec:
    """What its sandboxes are to be."""
    return Spec(Limits(memory=config.memory, disk=config.disk, processes=config.processes), config.image)


def remove_leftovers(home: Path) -> int:
    """Remove what sandboxes of a mesh have left behind when their environment server is gone: containers, control
    groups, folders, processes. Their number. May take seconds; blocks. What can't be removed is told in the log:
    nothing that is left keeps a server from starting or ending."""
    from openclaw_rl.rollouts.sandboxes import unboxed
    from openclaw_rl.rollouts.sandboxes.bubblewrap import backend as bubblewrap
    from openclaw_rl.rollouts.sandboxes.docker import backend as docker

    removed = 0
    for remove in (bubblewrap.remove_leftovers, docker.remove_leftovers, unboxed.remove_leftovers):
        try:
            removed += remove(label(home))
        except OSError as error:
            log.warning("what sandboxes have left behind can't be removed: %s", error)
    return removed


class Auto:
    """docker when an engine answers and has the image, else bubblewrap."""

    def __init__(self, home: Path) -> None:
        self._bubblewrap = _bubblewrap(home)
        self._docker = _docker(home)
        self._chosen: Backend | None = None

    @property
    def name(self) -> str:
        return self._chosen.name if self._chosen is not None else "auto"

    async def problem(self, spec: Spec) -> str:
        if self._chosen is None and spec.image is not None and not await self._docker.problem(spec):
            self._chosen = self._docker
            return ""
        problem = await (self._chosen or self._bubblewrap).problem(spec)
        if not problem:
            self._chosen = self._chosen or self._bubblewrap
        elif self._chosen is None and problem == absent(spec.image or "", "bubblewrap"):
            problem += ", or for an engine of containers: --for docker"
        return problem

    async def make(self, spec: Spec) -> Sandbox:
        problem = await self.problem(spec)
        if problem or self._chosen is None:
            raise SandboxError(problem)
        return await self._chosen.make(spec)


def _bubblewrap(home: Path) -> Backend:
    from openclaw_rl.rollouts.sandboxes.bubblewrap.backend import Bubblewrap

    return Bubblewrap(Images(home), label(home))


def _docker(home: Path) -> Backend:
    from openclaw_rl.rollouts.sandboxes.docker.backend import Docker

    return Docker(label(home))
