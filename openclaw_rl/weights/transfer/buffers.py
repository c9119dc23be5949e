"""Set-up of the C library's allocator for the buffers of chunks."""

from __future__ import annotations

import contextlib
import ctypes
import functools

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of glibc's mallopt
_LARGEST = 8 << 20  # bytes; the buffers of a chunk are smaller, large tensors are not
_KEPT = 64 << 20  # free bytes at the end of the heap that stay with the process


@functools.cache
def keep_buffers() -> None:
    """Let freed buffers of chunks be used again. By default glibc maps each one freshly and unmaps it when it is freed,
    and the kernel clears every page: that costs more than all copying. Does nothing where there is no glibc."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LARGEST)
        mallopt(_TRIM_THRESHOLD, _KEPT)
