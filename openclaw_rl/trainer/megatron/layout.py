"""How the model is dealt to the ranks. Pure Python: it is checked before anything is started."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """The group's shape; its world size is the product."""

    tensor: int  #: parts that each layer is cut into
    pipeline: int  #: parts that the layers are dealt to
    data: int  #: copies that share a batch

    @property
    def world(self) -> int:
        """Ranks of the group."""
        return self.tensor * self.pipeline * self.data

    def __str__(self) -> str:
        return f"tensor {self.tensor} x pipeline {self.pipeline} x data {self.data}"
