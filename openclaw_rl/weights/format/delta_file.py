"""Encoded tensors of a version in a file beside it, so that they are made once for all receivers and all attempts."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from google.protobuf.message import DecodeError
from typing_extensions import Buffer

from openclaw_rl.v1.weights_pb2 import TENSOR_ENCODING_LOW_RANK_ZSTD, TensorSpec, WeightOffer
from openclaw_rl.weights.format.digest import can_adapt
from openclaw_rl.weights.format.encoding import Adapter, compress, low_rank_content
from openclaw_rl.weights.format.safetensors import CorruptFile

#: The adapters that made a version from the base model.
ADAPTERS_FILE = "adapters.update"

_LENGTH = struct.Struct("<Q")


def update_file(base: int) -> str:
    """Name of the file with what changed since a base version."""
    return f"since-{base}.update"


class UpdateWriter:
    """Writes the file: the frames end to end, then a WeightOffer with their specs, then its length (8 bytes).

    Args:
        path: made or overwritten. Not whole before `finish` returned.

    Raises:
        OSError: the disk is full or can't be written.
    """

    def __init__(self, path: Path) -> None:
        self.specs: list[TensorSpec] = []
        self._file = path.open("wb")

    def add(self, spec: TensorSpec, content: Buffer, limit: int) -> bool:
        """Compress a tensor's content and keep the frame when it has less than `limit` bytes; tells whether.

        Args:
            spec: encoding and base are set; `encoded_bytes` is filled in here.
            content: see encoding.
            limit: bytes.
        """
        start = self._file.tell()
        for piece in compress(content):
            self._file.write(piece)
        size = self._file.tell() - start
        if size >= limit:
            self._file.seek(start)
            self._file.truncate()
            return False
        spec.encoded_bytes = size
        self.specs.append(spec)
        return True

    def add_frame(self, spec: TensorSpec, frame: bytes) -> None:
        """Keep encoded bytes as they are."""
        self._file.write(frame)
        self.specs.append(spec)

    def finish(self) -> None:
        """Complete the file and close it."""
        index = WeightOffer(tensors=self.specs).SerializeToString()
        self._file.write(index + _LENGTH.pack(len(index)))
        self.close()

    def close(self) -> None:
        """Close the file, complete or not."""
        self._file.close()


class AdaptersWriter:
    """Keeps the adapters of a version that is being written, where they are smaller than the tensors that they made.

    Args:
        folder: of the version.
        base: tensors of the base model.
    """

    def __init__(self, folder: Path, base: Iterable[TensorSpec]) -> None:
        self._base = {spec.name: spec for spec in base}
        self._writer = UpdateWriter(folder / ADAPTERS_FILE)

    def add(self, spec: TensorSpec, adapter: Adapter) -> None:
        """Keep the adapter of a tensor that was written."""
        base = self._base.get(spec.name)
        if base is None or base.sha256 == spec.sha256 or not can_adapt(spec.dtype, spec.shape, adapter.rank):
            return
        low_rank = TensorSpec()
        low_rank.CopyFrom(spec)
        low_rank.encoding, low_rank.base_sha256 = TENSOR_ENCODING_LOW_RANK_ZSTD, base.sha256
        low_rank.rank, low_rank.scale = adapter.rank, adapter.scale
        self._writer.add(low_rank, low_rank_content(adapter), spec.encoded_bytes)

    def __enter__(self) -> AdaptersWriter:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        if failed is None:
            self._writer.finish()
        self._writer.close()


class Update:
    """Such a file, mapped into memory: `specs[name]` is a tensor's spec, `frame(name)` are its encoded bytes.

    Raises:
        CorruptFile: it is not whole.
        OSError: it can't be read.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < _LENGTH.size:
                raise CorruptFile(f"{path} is cut off")
            self._data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        (length,) = _LENGTH.unpack(self._data[-_LENGTH.size :])
        end = size - _LENGTH.size - length
        try:
            specs = WeightOffer.FromString(bytes(self._data[max(end, 0) : -_LENGTH.size])).tensors
        except DecodeError as error:
            raise CorruptFile(f"{path}: its index can't be read: {error}") from None
        self.specs = {spec.name: spec for spec in specs}
        self._starts: dict[str, int] = {}
        at = 0
        for spec in specs:
            self._starts[spec.name] = at
            at += spec.encoded_bytes
        if at != end:
            raise CorruptFile(f"{path} is cut off or damaged")

    def frame(self, name: str) -> memoryview:
        """Encoded bytes of a tensor."""
        start = self._starts[name]
        return self._data[start : start + self.specs[name].encoded_bytes]
