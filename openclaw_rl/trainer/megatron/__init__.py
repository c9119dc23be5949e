"""Training with megatron-core: a group of processes under torchrun. See README.md."""

from __future__ import annotations

import ctypes
import sys

try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    # flash_mla, which SGLang brings along, can't be loaded without CUDA's driver and doesn't say so by the ImportError
    # that megatron-core waits for.
    sys.modules.setdefault("flash_mla", None)  # type: ignore[arg-type]
