"""Communication among the ranks of a group. Every function is collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from openclaw_rl.training.backends.megatron.layout import Layout


def device_of(name: str) -> torch.device:
    """Return the device of this rank: the GPU that was chosen for it, unless `cpu` is asked for or there is none."""
    on_gpu = name != "cpu" and torch.cuda.is_available()
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Place:
    """Position of this rank in the layout."""

    layout: Layout
    tensor: int
    stage: int  #: of the pipeline
    replica: int  #: of the data parallel ones
    device: torch.device

    @classmethod
    def take(cls, layout: Layout, device: torch.device) -> Place:
        """Make the process groups of a layout, in place of earlier ones.

        Raises:
            ValueError: the world has another size.
        """
        if dist.get_world_size() != layout.world:
            raise ValueError(f"{layout} needs {layout.world} ranks, {dist.get_world_size()} are there")
        if parallel_state.model_parallel_is_initialized():
            parallel_state.destroy_model_parallel()
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=layout.tensor, pipeline_model_parallel_size=layout.pipeline,
            create_gloo_process_groups=False)
        return cls(layout, parallel_state.get_tensor_model_parallel_rank(),
                   parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_data_parallel_rank(),
                   device)

    @property
    def first(self) -> bool:
        """Whether it is on the first stage."""
        return self.stage == 0

    @property
    def last(self) -> bool:
        """Whether it is on the last stage, where the losses are."""
        return self.stage == self.layout.pipeline - 1

    @property
    def speaks(self) -> bool:
        """Whether it reports for the ranks that know the same of a replica's losses."""
        return self.last and self.tensor == 0

    def rank(self, stage: int, tensor: int) -> int:
        """Return a rank in the world, of the first replica."""
        return stage * self.layout.data * self.layout.tensor + tensor

    def any_of_all(self, flag: bool) -> bool:
        """Whether any rank of the world says so."""
        return bool(self._reduce([float(flag)], dist.ReduceOp.MAX)[0])

    def any_of_replica(self, flag: bool) -> bool:
        """Whether any rank that has a part of this replica says so."""
        return bool(self._reduce([float(flag)], dist.ReduceOp.MAX, parallel_state.get_model_parallel_group())[0])

    def total(self, values: Sequence[float]) -> list[float]:
        """Return sums over the ranks of the world, the same to the bit on each."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def largest(self, values: Sequence[float]) -> list[float]:
        """Return maxima over the ranks of the world; NaN wins."""
        # Whether the maximum of a number and NaN is NaN differs among libraries.
        broken = [value != value for value in values]
        found = self._reduce([0.0 if bad else value for bad, value in zip(broken, values, strict=True)],
                             dist.ReduceOp.MAX)
        bad = self._reduce([float(flag) for flag in broken], dist.ReduceOp.MAX)
        return [float("nan") if flag else value for flag, value in zip(bad, found, strict=True)]

    def _reduce(self, values: Sequence[float], how: dist.ReduceOp.RedOpType,
                group: dist.ProcessGroup | None = None) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, how, group)
        if group is None:
            dist.broadcast(tensor, 0)
        return tensor.tolist()

    def from_last(self, tensor: Tensor | None, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Broadcast a tensor of the last stage's first rank to all ranks of its replica.

        Args:
            tensor: on that rank.
            shape, dtype: of it.
        """
        if self.layout.tensor * self.layout.pipeline == 1:
            assert tensor is not None
            return tensor
        group = parallel_state.get_model_parallel_group()
        source = self.rank(self.layout.pipeline - 1, 0) + self.replica * self.layout.tensor
        value = tensor.contiguous() if self.speaks and tensor is not None else torch.empty(
            list(shape), dtype=dtype, device=self.device)
        dist.broadcast(value, source, group)
        return value
