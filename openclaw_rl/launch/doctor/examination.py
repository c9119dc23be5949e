"""All checks, one after the other; none of them changes anything."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from openclaw_rl.config import ConfigError, load_config
from openclaw_rl.launch.checks import started_here
from openclaw_rl.launch.doctor import machine, mesh
from openclaw_rl.launch.doctor.finding import Finding, Subject
from openclaw_rl.launch.status import report
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.running_config import running_config

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Those that need no configuration ...
_OF_MACHINE: Sequence[Callable[[Home], Iterator[Finding]]] = (
    machine.libraries, machine.limits, machine.clock, machine.proxies, mesh.folder, mesh.stores)
#: ... and those that do.
_OF_MESH: Sequence[Callable[[Subject], Iterator[Finding]]] = (
    machine.disk, machine.memory, machine.gpu, mesh.model, mesh.keys, mesh.certificates, mesh.ports, mesh.trainer,
    mesh.sandboxes, mesh.components)


def examine(home: Home, file: Path | None = None) -> Iterator[Finding]:
    """Look at everything that a mesh needs; it may run meanwhile.

    Args:
        file: its configuration; default: the one that it runs with, else that of the home.
    """
    for check in _OF_MACHINE:
        yield from _guarded(check, home)
    try:
        config = load_config(file) if file is not None else running_config(home)
        mesh_report = report(home, config)
    except ConfigError as error:
        for line in str(error).splitlines():
            yield Finding("configuration", "fail", line, f"edit {file or home.config_file}; all keys: "
                                                         "`openclaw-rl docs configuration`")
        return
    source = file or (home.config_file if home.config_file.exists() else "built in")
    yield Finding("configuration", "ok", f"{source}")
    here = started_here(config)
    waiting = [name for name in here if mesh_report[name].state != "RUNNING"]
    subject = Subject(home, config, mesh_report, here, waiting)
    for of_mesh in _OF_MESH:
        yield from _guarded(of_mesh, subject)


def _guarded(check: Callable[[T], Iterator[Finding]], subject: T) -> Iterator[Finding]:
    """A check that fails is itself a finding: the others go on."""
    name = check.__name__
    try:
        yield from check(subject)
    except Exception as error:
        logger.debug("check %s", name, exc_info=True)
        yield Finding(name, "warn", f"can't be checked: {type(error).__name__}: {error}")
