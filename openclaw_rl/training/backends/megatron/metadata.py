"""Safe reading of the `.metadata` of a sharded checkpoint, a pickle that may name nothing but the format's own data.

PyTorch unpickles it as it is. The files' digests have been compared before; this is the second lock on that door.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from types import SimpleNamespace
from typing import IO, Any

import torch
from torch.distributed.checkpoint import filesystem

from openclaw_rl.training.backends.megatron.cpu import replaced

_CHECKPOINT = "torch.distributed.checkpoint"
#: Data classes and enumerations, and functions that look one value up in a table.
_ALLOWED = {
    ("collections", "OrderedDict"), ("pathlib", "PosixPath"), ("torch", "Size"), ("torch.serialization", "_get_layout"),
    (f"{_CHECKPOINT}.filesystem", "_StorageInfo"), (f"{_CHECKPOINT}.filesystem", "_StoragePrefix"),
    *((f"{_CHECKPOINT}.metadata", name) for name in (
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties",
        "TensorStorageMetadata", "_MEM_FORMAT_ENCODING")),
    *((f"{_CHECKPOINT}.planner", name) for name in (
        "BytesIOWriteData", "SavePlan", "TensorWriteData", "WriteItem", "WriteItemType")),
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"a checkpoint's metadata can't name {module}.{name}")


def load(file: IO[bytes]) -> Any:
    """Load a checkpoint's metadata, as pickle.load.

    Raises:
        pickle.UnpicklingError: it names something else, or is no pickle.
    """
    return _Reader(file).load()


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Make PyTorch read checkpoints' metadata with `load`."""
    with replaced((filesystem, "pickle", SimpleNamespace(load=load))):
        yield
