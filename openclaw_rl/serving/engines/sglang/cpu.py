"""SGLang's platform for machines without a GPU: plain PyTorch on the host's CPU.

SGLang 0.5.23 has kernels of its own for CPUs with AMX, which its wheel doesn't bring; as an out-of-tree platform every
operation takes its plain form (`forward_native`). SGLang finds `activate` by the entry point `openclaw_rl_cpu` of the
group `sglang.srt.platforms`.
"""

from __future__ import annotations

import os

#: Name of the entry point; what SGLANG_PLATFORM has to say.
NAME = "openclaw_rl_cpu"


def activate() -> str | None:
    """The platform's class, only when it was asked for by name and there is no GPU; None leaves SGLang its own choice.

    SGLang calls this in every process of it, also on machines where openclaw-rl merely happens to be installed.
    """
    if os.environ.get("SGLANG_PLATFORM") != NAME:
        return None
    import torch

    if torch.cuda.is_available():
        return None
    return "openclaw_rl.serving.engines.sglang.cpu_platform:CpuPlatform"
