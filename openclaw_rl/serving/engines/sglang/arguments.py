"""The command line and environment of SGLang servers."""

from __future__ import annotations

import os
from pathlib import Path

from openclaw_rl.config import PolicyServerConfig
from openclaw_rl.serving.engines.sglang import cpu, request_tag
from openclaw_rl.serving.engines.sglang.version import tag

#: Tokens by which SGLang's context exceeds the engine's: SGLang reserves some.
SPARE = 16
#: Tokens of the cache on a CPU, where it uses main memory; at least one whole context.
_CPU_CACHE = 32768
#: SGLang's arguments that this engine sets itself; other values would break it.
RESERVED = frozenset({
    "model-path", "tokenizer-path", "host", "port", "device", "weight-version", "context-length", "tp-size",
    "tensor-parallel-size", "tp", "incremental-streaming-output", "skip-tokenizer-init", "max-running-requests",
    "tool-call-parser", "reasoning-parser", "api-key", "dp-size", "data-parallel-size", "stream-interval"})


def on_cpu(device: str) -> bool:
    """Whether the server computes on the CPU: as configured, or without a GPU."""
    if device != "auto":
        return device == "cpu"
    import torch

    return not torch.cuda.is_available()


def environment(device: str = "auto", threads: int = 1) -> dict[str, str]:
    """Variables that make SGLang load the hook, and without a GPU the CPU platform."""
    values = {
        request_tag.VARIABLE: "1",
        "SGLANG_RETURN_ORIGINAL_LOGPROB": "1",  # top_logprobs are the model's
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # for SPARE; positions beyond the model's are never reached
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
    }
    if on_cpu(device):
        values |= {"SGLANG_PLATFORM": cpu.NAME, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive",
                   "CUDA_VISIBLE_DEVICES": ""}
    return values


def engine_arguments(settings: PolicyServerConfig, folder: Path, version: int, context: int) -> dict[str, object]:
    """SGLang's settings, named as on its command line without dashes; True: a switch.

    Args:
        settings: the policy server's.
        folder: of the version that is loaded at the start.
        version: its number.
        context: most tokens of prompt and response together.
    """
    sglang = settings.sglang
    values: dict[str, object] = {
        "model-path": str(folder), "weight-version": tag(version), "context-length": context + SPARE,
        "max-running-requests": settings.max_batch, "incremental-streaming-output": True,
        "skip-server-warmup": True, "log-level-http": "warning", "decode-log-interval": 1000,
        "tp-size": sglang.tensor_parallel}
    if sglang.memory_fraction is not None:
        values["mem-fraction-static"] = sglang.memory_fraction
    if on_cpu(settings.device):
        values |= {"device": "cpu", "attention-backend": "torch_native", "sampling-backend": "pytorch",
                   "grammar-backend": "none", "disable-overlap-schedule": True, "sleep-on-idle": True,
                   "max-total-tokens": max(context + SPARE, min(settings.max_batch * context, _CPU_CACHE))}
        # Its cache is bounded by the number of tokens. SGLang takes for its own what other programs take while it loads
        # a model: with a tenth of the memory it would have none left for the cache where these take a tenth.
        values.setdefault("mem-fraction-static", 0.5)
    return values | dict(sglang.arguments)


def command_line(values: dict[str, object]) -> list[str]:
    """Format settings as a command line."""
    line: list[str] = []
    for name, value in values.items():
        if value is False:
            continue
        line += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return line


def gpus(settings: PolicyServerConfig, worker: int) -> dict[str, str]:
    """The variable that assigns GPUs to a worker: `tensor_parallel` of those of the policy server, each to one worker.

    A policy server that was given GPUs by CUDA_VISIBLE_DEVICES divides those.
    """
    if on_cpu(settings.device) or settings.sglang.mode == "in_process":
        return {}
    import torch

    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    all_ = given.split(",") if given else [str(i) for i in range(torch.cuda.device_count())]
    size = settings.sglang.tensor_parallel
    return {"CUDA_VISIBLE_DEVICES": ",".join(all_[worker * size:(worker + 1) * size])}


def validate_settings(settings: PolicyServerConfig) -> list[str]:
    """Check the settings before anything is started; returns the problems."""
    found = [f"components.policy_server.sglang.arguments.{name}: is set by openclaw-rl itself; remove it"
             for name in settings.sglang.arguments if name in RESERVED]
    starts_own = not settings.sglang.addresses
    if starts_own and not on_cpu(settings.device):
        import torch

        needed = settings.sglang.tensor_parallel * (settings.workers if settings.sglang.mode == "server" else 1)
        there = torch.cuda.device_count()
        if needed > there:
            found.append(f"components.policy_server: {settings.workers} workers of {settings.sglang.tensor_parallel} "
                         f"GPUs need {needed}, and {there} are there: lower workers or sglang.tensor_parallel")
    elif starts_own and settings.sglang.tensor_parallel > 1:
        found.append(f"components.policy_server.sglang.tensor_parallel: {settings.sglang.tensor_parallel} needs GPUs, "
                     "and none is there: set it to 1")
    for address in settings.sglang.addresses:
        if not address.startswith(("http://", "https://")):
            found.append(f"components.policy_server.sglang.addresses: {address!r} is not http://HOST:PORT")
    if len(set(settings.sglang.addresses)) < len(settings.sglang.addresses):
        found.append("components.policy_server.sglang.addresses: one is there twice")
    return found
