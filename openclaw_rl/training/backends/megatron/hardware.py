"""Detection of GPUs and memory for a group of ranks, without PyTorch."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field

from openclaw_rl.models.memory import available_memory

_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Hardware:
    """GPUs and memory of this machine."""

    gpus: list[int] = field(default_factory=list)  #: bytes of memory of each GPU that this process may use
    free_memory: int = 0  #: bytes of the machine's memory that are free for it
    why_no_gpu: str = ""  #: how it was found out that there is none


def find() -> Hardware:
    """Detect the hardware of this machine."""
    gpus, why = _gpus()
    return Hardware(gpus, available_memory(), why)


def _gpus() -> tuple[list[int], str]:
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"],
                              capture_output=True, text=True, timeout=_SECONDS)
    except FileNotFoundError:
        return [], "nvidia-smi is not there"
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"nvidia-smi: {error}"
    if done.returncode:
        return [], f"nvidia-smi says: {(done.stdout + done.stderr).strip().splitlines()[-1:] or done.returncode}"
    rows = [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines() if line.count(",") == 2]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:  # by index, or by (the beginning of) the uuid
        wanted = [name.strip() for name in visible.split(",") if name.strip()]
        rows = [row for name in wanted for row in rows if name == row[0] or (name[:4] == "GPU-" and
                                                                            row[1].startswith(name))]
    memory = [int(row[2]) << 20 for row in rows if row[2].isdecimal()]
    if memory:
        return memory, ""
    return [], f"CUDA_VISIBLE_DEVICES is {visible!r}" if visible is not None else "nvidia-smi lists none"
