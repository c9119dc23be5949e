"""AdamW over the parameters of a rank, with fp32 values of its own where these are bf16.

PyTorch's own, whole on every replica: megatron-core's distributed optimizer shares its state among the replicas, but
can't resume without Apex or Transformer Engine.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
from megatron.core.transformer.module import param_is_not_shared
from torch import Tensor, nn

from openclaw_rl.training.algorithms.trust_region import shorten
from openclaw_rl.training.backends.interface import BETAS

#: State of each parameter that is of its shape.
MOMENTS = ("exp_avg", "exp_avg_sq")


class Optimizer:
    """AdamW. Gradients are the `main_grad`s of megatron-core's DistributedDataParallel.

    Args:
        parameters: this rank's, by name.

    Attributes:
        masters: the fp32 values, by name; the parameters themselves where these are fp32.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], rate: float) -> None:
        self._parameters = parameters
        self.masters = {name: p if p.dtype is torch.float32 else nn.Parameter(p.detach().float())
                        for name, p in parameters.items()}
        self._adam = torch.optim.AdamW(self.masters.values(), lr=rate, betas=BETAS, weight_decay=0.0)

    def norm(self) -> float:
        """Return the norm of the gradients of all the model's parameters, each counted once. Collective in a
        replica."""
        own = [p for p in self._parameters.values()
               if param_is_not_shared(p) and param_is_not_tensor_parallel_duplicate(p)]
        device = next(iter(self._parameters.values())).device
        total = torch.zeros((), dtype=torch.float64, device=device)
        for parameter in own:
            total += torch.linalg.vector_norm(_gradient(parameter), dtype=torch.float64).pow(2)
        dist.all_reduce(total, group=parallel_state.get_model_parallel_group())
        return float(total.sqrt())

    def step(self, norm: float, max_norm: float) -> None:
        """Scale gradients down to `max_norm`, as clip_grad_norm_ does, and change the parameters."""
        scale = min(1.0, max_norm / (norm + 1e-6))
        for name, master in self.masters.items():
            master.grad = _gradient(self._parameters[name]).mul_(scale)
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        self.publish()

    def shorten(self, taken: float, keep: float) -> None:
        """Take back a part of the last step; see trust_region.shorten."""
        shorten(self._adam, taken, keep)
        self.publish()

    @torch.no_grad()
    def publish(self) -> None:
        """Give the masters' values to the parameters."""
        for name, master in self.masters.items():
            if master is not self._parameters[name]:
                self._parameters[name].copy_(master)

    def finite(self) -> bool:
        """No value of this rank is NaN or infinite."""
        return all(bool(master.isfinite().all()) for master in self.masters.values())

    def moments(self) -> dict[str, dict[str, Tensor]]:
        """Return MOMENTS of each parameter, by name; zeros before the first step."""
        state = self._adam.state
        return {name: {key: state[master][key] if master in state else torch.zeros_like(master)
                       for key in MOMENTS} for name, master in self.masters.items()}

    @property
    def steps(self) -> int:
        """Number of steps made so far."""
        return int(next((state["step"] for state in self._adam.state.values()), 0))

    def restore(self, moments: dict[str, dict[str, Tensor]], steps: int) -> None:
        """Restore a saved state."""
        for name, master in self.masters.items():
            self._adam.state[master] = {"step": torch.tensor(float(steps)), **moments[name]}


def _gradient(parameter: nn.Parameter) -> Tensor:
    return parameter.main_grad  # type: ignore[attr-defined, no-any-return]
