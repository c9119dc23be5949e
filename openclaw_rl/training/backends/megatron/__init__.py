"""Training with megatron-core: a group of processes under torchrun. See README.md."""

from __future__ import annotations

import ctypes
import sys

try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    # SGLang brings these along. Without CUDA's driver flash_mla can't be loaded, which megatron-core takes from an
    # ImportError only, and flashinfer takes a third of megatron-core's start for nothing.
    for name in ("flash_mla", "flashinfer"):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
