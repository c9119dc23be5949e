"""Memory of unloaded models."""

from __future__ import annotations

import ctypes
import gc


def free_memory() -> None:
    """Return freed memory to the system; glibc would keep a model's worth for each thread that loaded one."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:
        pass  # no glibc
