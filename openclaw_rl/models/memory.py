"""Memory: what is available, and what unloaded models give back."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Bytes that this process may still use: of the machine or of the container, whichever is less."""
    free = int(psutil.virtual_memory().available)
    try:
        limit = int((_CGROUP / "memory.max").read_text())  # "max" when there is none
        return min(free, max(limit - int((_CGROUP / "memory.current").read_text()), 0))
    except (OSError, ValueError):
        return free


def free_memory() -> None:
    """Return freed memory to the system; glibc would keep a model's worth for each thread that loaded one."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:
        pass  # no glibc


#: How libraries say that memory ran out where Python has no exception for it: PyTorch's allocators, oneDNN, the system.
_OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory",
                  "could not create a primitive")


def out_of_memory(error: BaseException) -> bool:
    """Whether an operation failed for want of memory, which says nothing about what it was done on."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, (RuntimeError, OSError)) and any(text in str(error).lower() for text in _OUT_OF_MEMORY)
