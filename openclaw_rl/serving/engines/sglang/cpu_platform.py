"""The CPU platform's class; imported only by SGLang."""

from __future__ import annotations

import gc
from typing import Any

import psutil
import torch
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform


class CpuPlatform(SRTPlatform):  # type: ignore[misc]
    """SGLang's questions about a device, all trivial for a CPU."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"

    def get_device_total_memory(self, device_id: int = 0) -> int:
        return int(psutil.virtual_memory().total)

    def get_current_memory_usage(self, device: Any = None) -> float:
        memory = psutil.virtual_memory()
        return float(memory.total - memory.available)

    def get_available_memory(self, device_id: int = 0) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def get_device(self, device_id: int = 0) -> torch.device:
        return torch.device("cpu")

    def set_device(self, device: Any) -> None:
        pass

    def get_device_name(self, device_id: int = 0) -> str:
        return "cpu"

    def get_device_uuid(self, device_id: int = 0) -> str:
        return "cpu"

    def get_device_capability(self, device_id: int = 0) -> None:
        return None

    def empty_cache(self) -> None:
        gc.collect()

    def synchronize(self) -> None:
        pass

    def get_torch_distributed_backend_str(self) -> str:
        return "gloo"

    def get_default_attention_backend(self) -> str:
        return "torch_native"
