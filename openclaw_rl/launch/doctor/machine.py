"""Checks of the machine: libraries, limits, clock, proxies, disk, memory, GPU."""

from __future__ import annotations

import ctypes
import resource
import shutil
import socket
import sqlite3
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import psutil

from openclaw_rl.config import EMBEDDED_MODEL
from openclaw_rl.launch import checks
from openclaw_rl.launch.checks import StartError
from openclaw_rl.launch.doctor.finding import Finding, Subject, existing
from openclaw_rl.models.api_endpoints import uses_api
from openclaw_rl.models.hub import hub_folder, is_hub_id
from openclaw_rl.runtime.home import COMPONENTS, Home
from openclaw_rl.runtime.proxies import without_password

_PACKAGE = "openclaw-rl"
#: Extras that no mesh needs.
_FOR_DEVELOPERS = {"dev", "test"}
#: Open files that a busy policy server may need.
_FILES = 1024
#: Seconds by which the clock may be behind the newest file.
_BEHIND = 60
#: Seconds that a proxy has to take a connection.
_PROXY_SECONDS = 2.0
#: File systems on which SQLite's log does not work, or locks don't (https://www.sqlite.org/wal.html).
_REMOTE = ("nfs", "cifs", "smb", "9p", "fuse.sshfs", "afs", "ceph", "glusterfs", "lustre")
_TIME_ERROR = 5  #: adjtimex(2): the clock is not synchronized


def libraries(home: Home) -> Iterator[Finding]:
    """The installed libraries are of the versions that the package declares."""
    from packaging.requirements import Requirement

    try:
        own = metadata.distribution(_PACKAGE)
    except metadata.PackageNotFoundError:
        yield Finding("libraries", "warn", f"{_PACKAGE} is not installed as a package, so what it needs isn't known",
                      "pip install 'openclaw-rl[embedded]'")
        return
    extras = [name for name in own.metadata.get_all("Provides-Extra", ()) if name not in _FOR_DEVELOPERS]
    well = True
    for needed in map(Requirement, own.requires or ()):
        always = needed.marker is None or needed.marker.evaluate({"extra": ""})
        if not always and (needed.marker is None or not any(needed.marker.evaluate({"extra": e}) for e in extras)):
            continue
        try:
            found = metadata.version(needed.name)
        except metadata.PackageNotFoundError:
            if not always or needed.name == _PACKAGE:
                continue
            found = "not installed"
        if found == "not installed" or not needed.specifier.contains(found, prereleases=True):
            well = False
            yield Finding("libraries", "fail" if always else "warn", f"{needed.name} is {found}, and "
                          f"{needed.specifier or 'any version'} is needed", f"pip install '{needed.name}"
                          f"{needed.specifier}'")
    if well:
        yield Finding("libraries", "ok", f"{_PACKAGE} {own.version}, Python {sys.version.split()[0]}, SQLite "
                                         f"{sqlite3.sqlite_version}")


def limits(home: Home) -> Iterator[Finding]:
    """The process may open enough files."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files != resource.RLIM_INFINITY and files < _FILES:
        yield Finding("limits", "warn", f"a process may have {files} files open, and a busy policy server needs "
                                        f"{_FILES}", f"ulimit -n {4 * _FILES}, in the shell that starts the mesh")
    else:
        yield Finding("limits", "ok", f"{'any number of' if files == resource.RLIM_INFINITY else files} open files")


def clock(home: Home) -> Iterator[Finding]:
    """The clock is not behind the mesh's own files: turns would be sorted wrongly, and certificates not be valid
    yet."""
    files = [home.root / name / "state.db" for name in COMPONENTS]
    newest = max((path.stat().st_mtime for file in files for path in (file, Path(f"{file}-wal")) if path.exists()),
                 default=0.0)
    behind = newest - time.time()
    if behind > _BEHIND:
        yield Finding("clock", "fail", f"it is {behind:.0f} s behind the newest file of {home.root}",
                      "set it: timedatectl set-ntp true")
    else:
        yield Finding("clock", "ok", time.strftime("%F %T %Z") + (
            "; no time server keeps it right, which a mesh on several hosts wants" if _unsynchronized() else ""))


def _unsynchronized() -> bool:
    """Whether the kernel says so; False where it can't be asked."""
    try:
        return ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512)) == _TIME_ERROR  # all zero: it only reads
    except AttributeError:
        return False


def proxies(home: Home) -> Iterator[Finding]:
    """Proxies that the environment names answer. The mesh's own connections never use one (`runtime.proxies`)."""
    named = {kind: url for kind, url in urllib.request.getproxies_environment().items() if kind != "no"}
    if not named:
        yield Finding("proxies", "ok", "none")
    for kind, url in named.items():
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        shown = f"{kind.upper()}_PROXY {without_password(url)}"
        try:
            port = parts.port or {"https": 443, "socks5": 1080, "socks5h": 1080}.get(parts.scheme, 80)
            socket.create_connection((parts.hostname or "", port), _PROXY_SECONDS).close()
        except (OSError, ValueError) as error:
            yield Finding("proxies", "warn", f"{shown} does not answer: {error}; downloads and models behind an API "
                                             "need it", f"unset {kind.upper()}_PROXY {kind}_proxy, or correct it")
        else:
            yield Finding("proxies", "ok", shown)


def disk(subject: Subject) -> Iterator[Finding]:
    """The home has room, on a disk of this machine."""
    folder = existing(subject.home.root)
    free, needed = shutil.disk_usage(folder).free, checks.needed_bytes(subject.config)
    kind = _file_system(folder)
    if free < needed:
        yield Finding("disk", "fail", f"{folder} has {free / 2**20:.0f} MB free and needs {needed / 2**20:.0f} MB",
                      "make room, or set OPENCLAW_RL_HOME to a folder on another disk")
    elif kind.startswith(_REMOTE):
        yield Finding("disk", "warn", f"{folder} is on {kind}, a file system of another machine: databases may be "
                                      "damaged there", "set OPENCLAW_RL_HOME to a folder on a disk of this machine")
    else:
        yield Finding("disk", "ok", f"{free / 2**30:.0f} GB free in {folder}{f' ({kind})' if kind else ''}")


def _file_system(folder: Path) -> str:
    """Type of the file system that a folder is on; "" when it isn't known."""
    found = [part for part in psutil.disk_partitions(all=True) if folder.resolve().is_relative_to(part.mountpoint)]
    return max(found, key=lambda part: len(part.mountpoint)).fstype if found else ""


def memory(subject: Subject) -> Iterator[Finding]:
    """What does not run yet has room for the model."""
    from openclaw_rl.launch.memory import check_memory
    from openclaw_rl.models.memory import available_memory

    policy, free = subject.config.components.policy_server, f"{available_memory() / 2**30:.1f} GB free"
    folder = model_folder(subject)
    if folder is None or not subject.waiting:
        yield Finding("memory", "ok", free)
        return
    if not folder.is_dir():
        yield Finding("memory", "ok", f"{free}; what {policy.model} takes is known once it is here")
        return
    try:
        check_memory(subject.config, folder, subject.waiting)
    except StartError as error:
        text, _, cure = str(error).partition(": take ")
        yield Finding("memory", "fail", text, f"take {cure}")
    else:
        yield Finding("memory", "ok", f"{free}, enough for {policy.model}")


def model_folder(subject: Subject) -> Path | None:
    """Where the model is or will be; None of one behind an API."""
    policy = subject.config.components.policy_server
    if uses_api(policy):
        return None
    if policy.model == EMBEDDED_MODEL:
        return subject.home.models / EMBEDDED_MODEL
    if is_hub_id(policy.model):
        return hub_folder(policy.model, subject.home.models)
    return Path(policy.model).expanduser().absolute()


def gpu(subject: Subject) -> Iterator[Finding]:
    """A GPU that the configuration names is there, and PyTorch can use one that is."""
    from openclaw_rl.training.backends.megatron import hardware

    found = hardware.find()
    components = subject.config.components
    wanted = [f"components.{name}.device" for name in ("policy_server", "trainer")
              if getattr(components, name).device == "cuda"]
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = ""
    if wanted and not found.gpus:
        yield Finding("gpu", "fail", f"{wanted[0]} is cuda and there is none ({found.why_no_gpu})",
                      f"{wanted[0]}: auto")
    elif found.gpus and torch.endswith("+cpu"):
        yield Finding("gpu", "warn", f"there {'is one' if len(found.gpus) == 1 else f'are {len(found.gpus)}'}, and "
                                     f"PyTorch {torch} can't use it", "install a CUDA build of torch")
    elif found.gpus:
        yield Finding("gpu", "ok", ", ".join(f"{size / 2**30:.0f} GB" for size in found.gpus))
    else:
        yield Finding("gpu", "ok", f"none ({found.why_no_gpu}): the CPU serves and trains")
