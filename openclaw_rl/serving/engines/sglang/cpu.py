"""SGLang's platform for machines without a GPU: plain PyTorch on the host's CPU.

SGLang 0.5.23 has CPU kernels for AMX only, which its wheel does not include; on an out-of-tree platform every operation
uses its plain form (`forward_native`). SGLang finds `activate` by the entry point `openclaw_rl_cpu` of the
group `sglang.srt.platforms`.
"""

from __future__ import annotations

import os

#: Name of the entry point, and value of SGLANG_PLATFORM.
NAME = "openclaw_rl_cpu"


def activate() -> str | None:
    """Return the platform's class if it was requested by name and there is no GPU; None leaves the choice to SGLang.

    SGLang calls this in each of its processes, also where openclaw-rl merely happens to be installed.
    """
    if os.environ.get("SGLANG_PLATFORM") != NAME:
        return None
    import torch

    if torch.cuda.is_available():
        return None
    return "openclaw_rl.serving.engines.sglang.cpu_platform:CpuPlatform"
