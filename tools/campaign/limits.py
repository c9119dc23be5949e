"""Limits of a running process: open files, address space, and memory by a control group."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil

#: Open files that a process may have, as by `ulimit -n`.
FEW_FILES = 64
#: Bytes by which an address space may still grow.
_ROOM = 8 << 20
#: Bytes that a process may allocate before the kernel kills it.
_LEFT = 1 << 20
_GROUPS = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def few_files(pid: int) -> Iterator[None]:
    """Let a process open no file beyond the 64th."""
    with _limit(pid, resource.RLIMIT_NOFILE, FEW_FILES):
        yield


@contextlib.contextmanager
def little_memory(pid: int) -> Iterator[None]:
    """Let a process's address space not grow: each larger allocation fails."""
    with _limit(pid, resource.RLIMIT_AS, psutil.Process(pid).memory_info().vms + _ROOM):
        yield


@contextlib.contextmanager
def _limit(pid: int, kind: int, value: int) -> Iterator[None]:
    soft, hard = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (value, hard))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            resource.prlimit(pid, kind, (soft, hard))


@contextlib.contextmanager
def no_memory(pid: int, name: str) -> Iterator[None]:
    """Let the kernel kill a process as soon as it allocates.

    Args:
        name: of the control group that is made for it.

    Raises:
        OSError: we may make no control group of our own.
    """
    version2 = (_GROUPS / "cgroup.controllers").exists()
    group = _GROUPS / name if version2 else _GROUPS / "memory" / name
    group.mkdir()
    try:
        (group / ("memory.max" if version2 else "memory.limit_in_bytes")).write_text(str(_LEFT))
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        with contextlib.suppress(OSError):
            for left in (group / "cgroup.procs").read_text().split():
                os.kill(int(left), signal.SIGKILL)
        with contextlib.suppress(OSError):
            group.rmdir()
