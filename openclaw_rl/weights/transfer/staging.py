"""Staging of an incoming version: a file that grows and is always a prefix of the final one."""

from __future__ import annotations

import json
import mmap
import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from openclaw_rl.runtime.json import parse_json
from openclaw_rl.v1 import weights_pb2 as pb
from openclaw_rl.v1.weights_pb2 import TensorSpec, VersionManifest
from openclaw_rl.weights import playbook
from openclaw_rl.weights.files import write_durably
from openclaw_rl.weights.format.digest import TensorCheck, dense_bytes, tensor_digest
from openclaw_rl.weights.format.safetensors import MODEL_FILE, file_order, header, make_spec
from openclaw_rl.weights.transfer.errors import SyncError
from openclaw_rl.weights.transfer.frame import Frame, gather_adapters

#: Folder of the version on its way, below the versions.
INCOMING = ".incoming"
_OFFER_FILE = ".offer.json"
_PIECE = 1 << 20  # bytes copied at once


class StagingFile:
    """The file `<root>/.incoming/model.safetensors`, beside it .offer.json, which says what it belongs to.

    All tensors lie in the order of the final file. Those that the receiver has already are copied when the file has
    grown up to them, dense ones are appended as they arrive. The bytes of an encoded one gather in a file of its own,
    named by its spec, and are decoded into the big one when they are complete. So the sizes of the two files say how
    far the transfer is, whatever was killed when, and nothing is copied or moved at the end. Each tensor is checked as
    it becomes complete; digests are computed on a second thread while the bytes are written.

    All methods work on the disk: call them on a thread, one at a time.

    Args:
        root: folder of the versions.
        manifest: of the version.
        specs: all its tensors.
        local: dense bytes of those that are there already, by name.
        bases: dense bytes of what the encoded ones start from, by digest.
        distrusted: digests of tensors whose local bytes turned out wrong; added to here.

    Raises:
        OSError: the folder can't be written, or the disk is full.
    """

    def __init__(self, root: Path, manifest: VersionManifest, specs: Sequence[TensorSpec],
                 local: Mapping[str, memoryview], bases: Mapping[bytes, memoryview], distrusted: set[bytes]) -> None:
        self.manifest = manifest
        self.specs = file_order(specs)
        self.folder = root / INCOMING
        self._local = local
        self._bases = bases
        self._distrusted = distrusted
        head = header(self.specs)
        self.needed = [spec.name for spec in self.specs if spec.name not in local]  #: in the order of sending
        self.total = 0  #: bytes of the transfer
        self._places: list[tuple[int, int]] = []
        self._before: list[int] = []  # bytes of the transfer before each tensor
        at = len(head)
        for spec in self.specs:
            stop = at + dense_bytes(spec.dtype, spec.shape)
            self._places.append((at, stop))
            self._before.append(self.total)
            at = stop
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
        self._final = at
        self._earlier = self._size  # bytes before this one are of an earlier process, and may be damaged
        self._frame: Frame | None = None  # of the tensor that is due, when it is an encoded one
        self._hasher = ThreadPoolExecutor(1, "digests")
        self._hashing: Future[None] | None = None
        self._checked = 0  # up to where the digest of the tensor that is due has come
        self._begin_check()
        try:
            if self._size > at:
                self._truncate(at)
            self._advance(opening=True)
        except BaseException:
            self.close()
            raise

    @property
    def received(self) -> int:
        """Bytes of the transfer that are on disk."""
        if self.complete:
            return self.total
        there = self._frame.size if self._frame else self._size - self._places[self._index][0]
        return self._before[self._index] + there

    @property
    def complete(self) -> bool:
        """All tensors are there and right."""
        return self._index == len(self.specs)

    @property
    def missing(self) -> int:
        """Bytes by which the file has yet to grow."""
        return self._final - self._size

    @property
    def dense_specs(self) -> list[TensorSpec]:
        """All tensors, as they lie in the file."""
        return [make_spec(spec.name, spec.dtype, spec.shape, spec.sha256) for spec in self.specs]

    def append(self, data: bytes) -> None:
        """Add the next bytes of the transfer.

        Raises:
            SyncError: a tensor that became complete is not what was offered, or there are more bytes than tensors.
            OSError: the disk is full or can't be written; what was written counts.
        """
        rest = memoryview(data)
        while rest:
            if self.complete:
                raise SyncError(pb.WEIGHT_REJECT_REASON_BAD_CHUNK, "there are more bytes than the tensors have")
            if self._frame is not None:
                rest = self._frame.append(rest)
            else:
                room = self._places[self._index][1] - self._size
                self._write(rest[:room])
                rest = rest[room:]
            self._advance()

    def close(self) -> None:
        """Close the files; they stay for another time."""
        self._hasher.shutdown()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._close_frame()

    def clean(self) -> None:
        """Leave nothing but the version, which is complete, and the adapters that it came as: whoever takes it from
        here gets them too."""
        self._close_frame()
        gather_adapters(self.folder, self.specs)

    @staticmethod
    def discard(root: Path, versions: Collection[int] | None = None) -> None:
        """Delete what is on its way below a root; when `versions` are given, only if it is one of them."""
        folder = root / INCOMING
        if versions is not None:
            try:
                offer = parse_json((folder / _OFFER_FILE).read_bytes())
            except (OSError, ValueError):
                return  # nothing, or nothing that anybody goes on with
            if offer.get("version") not in versions:
                return
        if folder.exists():
            shutil.rmtree(folder)

    def _offer(self) -> bytes:
        return json.dumps({"version": self.manifest.version, "digest": self.manifest.digest}).encode()

    def _advance(self, opening: bool = False) -> None:
        """Check the tensors that have become complete, and make those that are due from what is here."""
        while self._index < len(self.specs):
            spec, (start, stop) = self.specs[self._index], self._places[self._index]
            made = self._size < stop and (spec.name in self._local or spec.encoding != pb.TENSOR_ENCODING_DENSE)
            problem = None
            if made and self._size > start:
                self._truncate(start)
            if made and spec.name not in self._local:
                frame = self._frame = self._frame or Frame(self.folder, spec)
                if frame.size < spec.encoded_bytes:
                    return
                problem = self._decode(spec, frame)
            elif made:
                self._fill(_pieces(self._local[spec.name]))
            if self._size < stop and problem is None:
                return
            problem = problem or self._check(spec, start, stop)
            if problem is None:
                if self._frame is not None:
                    self._frame.keep() if spec.encoding == pb.TENSOR_ENCODING_LOW_RANK_ZSTD else self._frame.delete()
                    self._frame = None
                self._index += 1
                self._begin_check()
                continue
            damaged = start < self._earlier and problem.reason == pb.WEIGHT_REJECT_REASON_DIGEST_MISMATCH
            self._truncate(start)
            if self._frame is not None:
                self._frame.delete()
                self._frame = None
            if damaged and opening:
                continue
            if spec.name in self._local:
                self._distrusted.add(spec.sha256)
            problem.retryable = problem.retryable or damaged or spec.name in self._local
            raise problem

    def _decode(self, spec: TensorSpec, frame: Frame) -> SyncError | None:
        """Append a tensor from its encoded bytes; what speaks against them."""
        from openclaw_rl.weights.format.encoding import EncodingError, decode  # needs numpy

        try:
            self._fill(decode(spec, frame.read(), self._bases[spec.base_sha256]))
        except EncodingError as error:
            return SyncError(pb.WEIGHT_REJECT_REASON_DIGEST_MISMATCH,
                             f"tensor {spec.name} can't be decoded: {error}", retryable=True)
        return None

    def _check(self, spec: TensorSpec, start: int, stop: int) -> SyncError | None:
        if self._checked < stop:  # of an earlier process
            with mmap.mmap(self._fd, stop, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view, \
                    view[self._checked : stop] as data:
                self._wait()
                self._tensor.update(data)
                self._checked = stop
        self._wait()
        digest, finite = self._tensor.result()
        encoded = spec.name not in self._local and spec.encoding != pb.TENSOR_ENCODING_DENSE
        if digest != spec.sha256:
            if encoded and tensor_digest(self._bases[spec.base_sha256]) != spec.base_sha256:
                self._distrusted.add(spec.base_sha256)
                return SyncError(pb.WEIGHT_REJECT_REASON_WRONG_BASE, f"the tensor that {spec.name} starts from is "
                                 "damaged here; send it dense", retryable=True)
            return SyncError(pb.WEIGHT_REJECT_REASON_DIGEST_MISMATCH,
                             f"tensor {spec.name} is not what was offered: its SHA-256 is {digest.hex()}, "
                             f"not {spec.sha256.hex()}", retryable=encoded)
        if playbook.is_playbook(spec):
            try:
                playbook.parse(os.pread(self._fd, stop - start, start))
            except playbook.PlaybookError as error:
                return SyncError(pb.WEIGHT_REJECT_REASON_WRONG_SHAPE, f"tensor {spec.name} is no playbook: {error}")
        if not finite and spec.name not in self._local:
            return SyncError(pb.WEIGHT_REJECT_REASON_NOT_FINITE, f"tensor {spec.name} has NaN or infinite values")
        return None

    def _fill(self, pieces: Iterable[memoryview]) -> None:
        for piece in pieces:
            self._write(piece)

    def _write(self, data: memoryview) -> None:
        """Append to the file, and to the digest of the tensor that is due."""
        self._wait()
        if data and self._checked == self._size:
            self._checked += len(data)
            self._hashing = self._hasher.submit(self._tensor.update, data)
        try:
            while data:
                written = os.pwrite(self._fd, data, self._size)
                self._size += written
                data = data[written:]
        except OSError:
            self._begin_check()  # all of it was taken in; begin again with what is in the file
            raise

    def _begin_check(self) -> None:
        """Begin the digest of the tensor that is due."""
        self._wait()
        self._tensor = TensorCheck(self.specs[self._index].dtype if self._index < len(self.specs) else "U8")
        self._checked = self._places[self._index][0] if self._index < len(self.specs) else self._final

    def _wait(self) -> None:
        if self._hashing is not None:
            hashing, self._hashing = self._hashing, None
            hashing.result()

    def _truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self._size = size
        self._earlier = min(self._earlier, size)
        self._begin_check()

    def _close_frame(self) -> None:
        if self._frame is not None:
            self._frame.close()
            self._frame = None


def _pieces(data: memoryview) -> Iterable[memoryview]:
    return (data[start : start + _PIECE] for start in range(0, len(data), _PIECE))
