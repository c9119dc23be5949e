"""A small model, its versions, and a policy server's versions without an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import numpy as np

from openclaw_rl.v1 import policy_pb2
from openclaw_rl.v1 import weights_pb2 as pb
from openclaw_rl.weights.store import Tensor, VersionStore

#: Tensors of the model: name -> (type, shape).
MODEL = {"embed": ("BF16", (30, 100)), "norm": ("F32", (7,)), "odd": ("BF16", (3,)), "up": ("BF16", (50, 40))}


def tensors(version: int, frozen: tuple[str, ...] = ("odd",)) -> Iterator[tuple[str, str, tuple[int, ...], np.ndarray]]:
    """Tensors of a version; the frozen ones are those of version 0."""
    for name, (dtype, shape) in sorted(MODEL.items(), key=lambda item: item[1][0] == "BF16"):
        rng = np.random.default_rng([0 if name in frozen else version, len(name)])
        values = rng.standard_normal(shape).astype(np.float32)
        yield name, dtype, shape, values if dtype == "F32" else (values.view(np.uint32) >> 16).astype(np.uint16)


def make_base(folder: Path, model: Iterable[Tensor] | None = None) -> Path:
    """A base model's folder."""
    made = VersionStore(folder / "made")
    made.write(pb.VersionManifest(version=1), tensors(0) if model is None else model)
    (folder / "model").mkdir()
    made.folder(1).joinpath("model.safetensors").rename(folder / "model" / "model.safetensors")
    (folder / "model" / "config.json").write_text("{}")
    return folder / "model"


def manifest(version: int, parent: int | None = None, model_id: str = "m") -> pb.VersionManifest:
    return pb.VersionManifest(version=version, parent=version - 1 if parent is None else parent, model_id=model_id,
                              algorithm="combine", turn_ids=["t"])


@dataclass
class FakePause:
    ms: float = 2.5
    steps: int = 1


class FakeTarget:
    """Versions of a policy server: staged and committed at once."""

    def __init__(self, root: Path, base: Path) -> None:
        self.store = VersionStore(root, base, "m")
        self.active = 0
        self.withdrawn: list[int] = []
        self.accepts = True
        self.calls: list[str] = []
        self.fail: dict[str, Exception] = {}

    def state(self) -> policy_pb2.PolicyState:
        return policy_pb2.PolicyState(
            active_version=self.active, active_digest=self.store.manifest(self.active).digest, model="tiny",
            kept_versions=self.store.versions(), withdrawn_versions=self.withdrawn, model_id="m",
            accepts_weights=self.accepts)

    async def stage(self, version: int) -> None:
        self._call("stage", version)
        self.store.manifest(version)

    async def discard(self, version: int) -> None:
        self._call("discard", version)

    async def commit(self, version: int, admit: Callable[[], None]) -> FakePause:
        self._call("commit", version)
        admit()
        self.active = version
        return FakePause()

    def _call(self, name: str, version: int) -> None:
        self.calls.append(f"{name} {version}")
        if name in self.fail:
            raise self.fail[name]


def chunks(need: pb.WeightNeed, store: VersionStore, size: int) -> list[pb.WeightChunk]:
    """What a trainer sends to a need, in chunks of `size` bytes."""
    opened = store.open(need.version)
    data = b"".join(opened[name] for name in need.tensors)
    return [make_chunk(need.version, at, data[at : min(at + size, len(data))])
            for at in range(need.from_byte, len(data), size)]


def make_chunk(version: int, offset: int, data: bytes) -> pb.WeightChunk:
    return pb.WeightChunk(version=version, offset=offset, data=data, crc32c=google_crc32c.value(data))
