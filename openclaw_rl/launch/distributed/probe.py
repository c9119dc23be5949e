"""Probe of a host, on the host itself. Changes nothing, but creates the home."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from openclaw_rl.config import Config
from openclaw_rl.launch import checks, leftovers
from openclaw_rl.launch.distributed import ray_node
from openclaw_rl.rollouts.sandboxes.images import validate_image
from openclaw_rl.runtime.home import COMPONENTS, Home
from openclaw_rl.runtime.process import all_processes

#: Container engines, the preferred first.
_ENGINES = ("docker", "podman")


@dataclass
class Facts:
    """Facts about a host. Sizes in bytes, times in seconds."""

    version: str  #: of openclaw-rl
    python: str
    root: str  #: the home's folder
    problems: list[str] = field(default_factory=list)  #: whole sentences
    ports: dict[str, str] = field(default_factory=dict)  #: key -> why it can't be used
    missing: list[str] = field(default_factory=list)  #: packages that are wanted and not installed
    clock: float = 0.0  #: since the epoch
    cpus: int = 0
    memory: int = 0  #: in all
    available: int = 0  #: memory that is free now
    disk: int = 0  #: free at the home
    gpus: list[str] = field(default_factory=list)  #: their names
    layout: str = ""  #: how the trainer would deal the model to them
    engine: str = ""  #: container engine
    images: dict[str, bool] = field(default_factory=dict)  #: whether the engine has it
    built: dict[str, str] = field(default_factory=dict)  #: image -> why bubblewrap can't use it, or ""
    model: bool = True  #: a folder that was asked for is there
    running: list[str] = field(default_factory=list)  #: components of a mesh in this home
    ray: bool = False  #: a Ray node of this mesh


def look(home: Home, ports: dict[str, tuple[str, int]] | None = None, packages: list[str] | None = None,
         images: list[str] | None = None, model: str = "", temp: str = "", trainer: dict[str, Any] | None = None
         ) -> Facts:
    """Look at this host.

    Args:
        ports: (host, port) by configuration key that shall be free.
        packages: importable names that shall be there.
        images: images of sandboxes that shall be there.
        model: folder of a model that shall be there; "" for none.
        temp: Ray's folder of this mesh.
        trainer: the mesh's configuration, when the trainer is to run here.
    """
    facts = Facts(importlib.metadata.version("openclaw-rl"), platform.python_version(), str(home.root))
    memory = psutil.virtual_memory()
    facts.cpus, facts.memory, facts.available = os.cpu_count() or 1, memory.total, memory.available
    _home(home, facts)
    facts.running = [name for name in COMPONENTS for process in all_processes()
                     if leftovers.is_component(process, name, home)]
    facts.ray = bool(temp and ray_node.processes(temp))
    for key, (host, port) in (ports or {}).items():
        if error := checks.bind_error(host, port):
            facts.ports[key] = f"{host}:{port} {error}{checks.owner(port)}"
    facts.missing = [name for name in packages or () if importlib.util.find_spec(name) is None]
    facts.engine = next((engine for engine in _ENGINES if shutil.which(engine)), "")
    for image in images or ():
        facts.images[image] = bool(facts.engine) and _has_image(facts.engine, image)
        rejection = validate_image(home.root, image, "bubblewrap")
        facts.built[image] = rejection.message if rejection is not None else ""
    if model:
        facts.model = Path(model).expanduser().is_dir()
    facts.gpus = _gpus()
    if trainer is not None:
        from openclaw_rl.training.backends.megatron import plan as megatron

        config = Config.model_validate(trainer)
        facts.problems += megatron.check_trainer(config, home)
        facts.layout = megatron.describe_trainer(config, home)
    facts.clock = time.time()
    return facts


def _home(home: Home, facts: Facts) -> None:
    try:
        home.try_writing()
        facts.disk = shutil.disk_usage(home.root).free
    except OSError as error:
        facts.problems.append(f"{home.root} can't be written ({error.strerror or error}): set distributed.home to a "
                              "folder that can")


def _has_image(engine: str, image: str) -> bool:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run([engine, "image", "inspect", image], stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=20, check=False).returncode == 0
    return False


def _gpus() -> list[str]:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=20, check=False)
        if done.returncode == 0:
            return [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return []
