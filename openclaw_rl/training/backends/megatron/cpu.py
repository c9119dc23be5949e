"""megatron-core on a CPU: redirects the few calls that it makes to CUDA unconditionally."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from megatron.core.tensor_parallel import random
from torch import Tensor
from torch.overrides import TorchFunctionMode


class _Redirect(TorchFunctionMode):
    """Makes device="cuda", hard-coded in megatron-core, the CPU, and moves of tensors to CUDA no-ops."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.cuda:
            return args[0]
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            kwargs = kwargs | {"device": "cpu"}
        return func(*args, **kwargs)


@contextlib.contextmanager
def replaced(*names: tuple[Any, str, Any]) -> Iterator[None]:
    """Replace attributes (owner, name, value) of modules and classes for a while."""
    kept = [(owner, name, vars(owner)[name]) for owner, name, _ in names]
    try:
        for owner, name, value in names:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)


@contextlib.contextmanager
def redirected(device: torch.device) -> Iterator[None]:
    """Redirect CUDA calls; all code that calls megatron-core runs in this context.

    Args:
        device: that it computes on; nothing is redirected where it is a GPU.
    """
    if device.type == "cuda":
        yield
        return
    with replaced(
        (torch.cuda, "current_device", lambda: torch.device("cpu")),
        (torch.cuda, "synchronize", lambda device=None: None),
        # Recomputed activations restore the state of the device's random numbers; nothing here draws any.
        (random, "_get_cuda_rng_state", lambda *args, **kwargs: torch.empty(0)),
        (random, "_set_cuda_rng_state", lambda *args, **kwargs: None),
    ), _Redirect():
        yield
