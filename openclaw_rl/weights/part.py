"""A version on its way: a file that grows, always a beginning of the final one."""

from __future__ import annotations

import json
import mmap
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from openclaw_rl.v1 import weights_pb2 as pb
from openclaw_rl.v1.weights_pb2 import TensorSpec, VersionManifest
from openclaw_rl.weights.digest import check_tensor
from openclaw_rl.weights.files import write_durably
from openclaw_rl.weights.layout import MODEL_FILE, file_order, header

#: Folder of the version on its way, below the versions.
INCOMING = ".incoming"
_OFFER_FILE = ".offer.json"


class Rejection(Exception):
    """A version can't be taken; goes to the trainer as WeightRejected."""

    def __init__(self, reason: pb.WeightRejectReason.ValueType, message: str, retryable: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.retryable = retryable


class Part:
    """The file `<root>/.incoming/model.safetensors`, beside it .offer.json, which says what it belongs to.

    All tensors lie in the order of the final file. Those that the receiver has already are copied when the file has
    grown up to them, the others are appended as they arrive. So the file's size alone says how far it is, whatever
    was killed when, and nothing is copied or moved at the end. Each tensor is checked as it becomes complete.

    All methods work on the disk: call them on a thread, one at a time.

    Args:
        root: folder of the versions.
        manifest: of the version.
        specs: all its tensors.
        local: dense bytes of those that are there already, by name.
        distrusted: digests of tensors whose local bytes turned out wrong; added to here.

    Raises:
        OSError: the folder can't be written, or the disk is full.
    """

    def __init__(self, root: Path, manifest: VersionManifest, specs: Sequence[TensorSpec],
                 local: Mapping[str, memoryview], distrusted: set[bytes]) -> None:
        self.manifest = manifest
        self.specs = file_order(specs)
        self.folder = root / INCOMING
        self._local = local
        self._distrusted = distrusted
        head = header(self.specs)
        self.needed = [spec.name for spec in self.specs if spec.name not in local]  #: in the order of sending
        self.total = 0  #: bytes of the transfer
        self._places: list[tuple[int, int]] = []
        self._before: list[int] = []  # bytes of the transfer before each tensor
        at = len(head)
        for spec in self.specs:
            self._places.append((at, at + spec.encoded_bytes))
            self._before.append(self.total)
            at += spec.encoded_bytes
            self.total += 0 if spec.name in local else spec.encoded_bytes
        self._index = 0  # the first tensor that is not complete and checked
        try:
            with (self.folder / MODEL_FILE).open("rb") as file:
                same = self._offer() == (self.folder / _OFFER_FILE).read_bytes() and file.read(len(head)) == head
        except OSError:
            same = False
        if not same:
            self.discard(root)
            self.folder.mkdir(parents=True)
            (self.folder / MODEL_FILE).write_bytes(head)
            write_durably(self.folder / _OFFER_FILE, self._offer())
        self._fd = os.open(self.folder / MODEL_FILE, os.O_RDWR)
        self._size = os.fstat(self._fd).st_size
        self._earlier = self._size  # bytes before this one are of an earlier process, and may be damaged
        if self._size > at:
            self._truncate(at)
        try:
            self._advance(opening=True)
        except BaseException:
            self.close()
            raise

    @property
    def received(self) -> int:
        """Bytes of the transfer that are on disk."""
        if self.complete:
            return self.total
        return self._before[self._index] + self._size - self._places[self._index][0]

    @property
    def complete(self) -> bool:
        """All tensors are there and right."""
        return self._index == len(self.specs)

    def append(self, data: bytes) -> None:
        """Add the next bytes of the transfer.

        Raises:
            Rejection: a tensor that became complete is not what was offered, or there are more bytes than tensors.
            OSError: the disk is full or can't be written; what was written counts.
        """
        rest = memoryview(data)
        while rest:
            if self.complete:
                raise Rejection(pb.WEIGHT_REJECT_REASON_BAD_CHUNK, "there are more bytes than the tensors have")
            room = self._places[self._index][1] - self._size
            self._write(rest[:room])
            rest = rest[room:]
            self._advance()

    def close(self) -> None:
        """Close the file; it stays for another time."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @staticmethod
    def discard(root: Path) -> None:
        """Delete what is on its way below a root."""
        folder = root / INCOMING
        if folder.exists():
            shutil.rmtree(folder)

    def _offer(self) -> bytes:
        return json.dumps({"version": self.manifest.version, "digest": self.manifest.digest}).encode()

    def _advance(self, opening: bool = False) -> None:
        """Check the tensors that have become complete, and copy those that are due and local."""
        while self._index < len(self.specs):
            spec, (start, stop) = self.specs[self._index], self._places[self._index]
            if self._size < stop and spec.name in self._local:
                self._truncate(start)
                self._write(self._local[spec.name])
            if self._size < stop:
                return
            problem = self._check(spec, start, stop)
            if problem is None:
                self._index += 1
                continue
            damaged = start < self._earlier and problem.reason == pb.WEIGHT_REJECT_REASON_DIGEST_MISMATCH
            self._truncate(start)
            if damaged and opening:
                continue
            if spec.name in self._local:
                self._distrusted.add(spec.sha256)
            problem.retryable = damaged or spec.name in self._local
            raise problem

    def _check(self, spec: TensorSpec, start: int, stop: int) -> Rejection | None:
        if start == stop:
            digest, finite = check_tensor(memoryview(b""), spec.dtype)
        else:
            with mmap.mmap(self._fd, stop, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view, \
                    view[start:stop] as data:
                digest, finite = check_tensor(data, spec.dtype)
        if digest != spec.sha256:
            return Rejection(pb.WEIGHT_REJECT_REASON_DIGEST_MISMATCH,
                             f"tensor {spec.name} is not what was offered: its SHA-256 is {digest.hex()}, "
                             f"not {spec.sha256.hex()}")
        if not finite and spec.name not in self._local:
            return Rejection(pb.WEIGHT_REJECT_REASON_NOT_FINITE, f"tensor {spec.name} has NaN or infinite values")
        return None

    def _write(self, data: memoryview) -> None:
        while data:
            written = os.pwrite(self._fd, data, self._size)
            self._size += written
            data = data[written:]

    def _truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self._size = size
        self._earlier = min(self._earlier, size)
