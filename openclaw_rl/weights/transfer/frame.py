"""Encoded tensors of a version on its way."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

from openclaw_rl.v1.weights_pb2 import TensorSpec

_FRAME, _ADAPTER = ".frame-", ".adapter-"


class Frame:
    """The encoded bytes of one tensor as they arrive, in a file that is named by the tensor's spec: should the same
    tensor be offered in another encoding, they don't count."""

    def __init__(self, folder: Path, spec: TensorSpec) -> None:
        self._path = folder / (_FRAME + _key(spec))
        self._adapter = folder / (_ADAPTER + _key(spec))
        self._bytes = spec.encoded_bytes
        for other in folder.glob(_FRAME + "*"):
            if other != self._path:
                other.unlink()
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        self.size = os.fstat(self._fd).st_size
        if self.size > self._bytes:
            os.ftruncate(self._fd, 0)
            self.size = 0

    def append(self, data: memoryview) -> memoryview:
        """Add bytes up to the frame's end; returns those that are left over."""
        room = self._bytes - self.size
        here, rest = data[:room], data[room:]
        while here:
            written = os.pwrite(self._fd, here, self.size)
            self.size += written
            here = here[written:]
        return rest

    def read(self) -> memoryview:
        """The complete frame."""
        return memoryview(mmap.mmap(self._fd, self._bytes, access=mmap.ACCESS_READ))

    def keep(self) -> None:
        """It is decoded, and may be of use to others."""
        self.close()
        os.replace(self._path, self._adapter)

    def delete(self) -> None:
        """It is not needed any more, or no good."""
        self.close()
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; it stays for another time."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _key(spec: TensorSpec) -> str:
    return hashlib.sha256(spec.SerializeToString(deterministic=True)).hexdigest()[:32]


def gather_adapters(folder: Path, specs: Iterable[TensorSpec]) -> None:
    """Put the adapters that tensors came as into one file, so that whoever takes the version from here gets them too,
    and delete all frames."""
    adapters = {spec.name: (spec, path) for spec in specs if (path := folder / (_ADAPTER + _key(spec))).exists()}
    if adapters:
        from openclaw_rl.weights.format.delta_file import ADAPTERS_FILE, UpdateWriter  # needs numpy

        with contextlib.closing(UpdateWriter(folder / ADAPTERS_FILE)) as writer:
            for spec, path in adapters.values():
                writer.add_frame(spec, path.read_bytes())
            writer.finish()
    for prefix in (_FRAME, _ADAPTER):
        for path in folder.glob(prefix + "*"):
            path.unlink()
