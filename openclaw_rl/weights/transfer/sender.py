"""Transfer of one version to one receiver."""

from __future__ import annotations

import asyncio
import bisect
from enum import IntEnum
from typing import Any

import google_crc32c

from openclaw_rl.v1 import weights_pb2 as pb
from openclaw_rl.v1.policy_pb2 import PolicyState, SyncWeightsRequest
from openclaw_rl.weights import playbook
from openclaw_rl.weights.store import VersionStore
from openclaw_rl.weights.transfer.buffers import keep_buffers

#: Bytes of a chunk; larger ones are no quicker.
CHUNK = 1 << 20


class Phase(IntEnum):
    """How far a transfer is."""

    OFFERED = 0
    SENDING = 1
    STAGED = 2
    COMMITTED = 3


#: Refusals after which a version goes dense: the receiver lacks or distrusts the base, or computes something else.
WANTS_DENSE = {pb.WEIGHT_REJECT_REASON_WRONG_BASE, pb.WEIGHT_REJECT_REASON_DIGEST_MISMATCH,
                pb.WEIGHT_REJECT_REASON_UNSUPPORTED}


def base_for(store: VersionStore, version: int, state: PolicyState, full_every: int) -> int | None:
    """The version to build an update on: the newest that both ends have, at last the base model, 0.

    Args:
        store: the sender's.
        version: to be sent.
        state: what the receiver has.
        full_every: each version that is a multiple of it goes dense.

    Returns:
        None when all tensors are to be sent dense.
    """
    if version % full_every == 0:
        return None
    kept = (set(state.kept_versions) & set(store.versions())) - set(state.withdrawn_versions) - {version}
    active = state.active_version
    if active in kept and store.manifest(active).digest == state.active_digest:
        return active
    return max(kept - {active}, default=0)


class Transfer:
    """What was offered, asked for, granted and sent. Reads the version's file through memory, piece by piece.

    Making one may take seconds and reads the disk (tensors are compared and compressed): do it on a thread.

    Args:
        store: where the version is.
        version: to be sent.
        base: a version of the store that the receiver has too; tensors travel as what changed since, where that is
            smaller. None sends all dense. See `base_for`.

    Raises:
        KeyError, CorruptFile, OSError: the version or the base can't be read.
    """

    def __init__(self, store: VersionStore, version: int, base: int | None = None) -> None:
        self.version = version
        self.base = base
        self.phase = Phase.OFFERED
        self.total = 0  #: bytes of the transfer
        self.received = 0  #: bytes of it that the receiver has
        self.span: Any = None  #: of the trace; None when it is not traced
        keep_buffers()
        self._manifest = store.manifest(version)
        self._specs = {spec.name: spec for spec in store.specs(version)}
        self._tensors = store.open(version)
        self._frames: dict[str, memoryview] = {}  # of tensors that are not sent dense
        # A playbook is sent as it is: without numpy, which the rest needs.
        if base is not None and not all(map(playbook.is_playbook, self._specs.values())):
            self._encode(store, base)
        self._names: list[str] = []
        self._starts: list[int] = []  # place of each needed tensor in the transfer
        self._sent = 0
        self._credit = 0
        self._ahead: asyncio.Future[tuple[SyncWeightsRequest, int]] | None = None

    def offer(self) -> pb.WeightOffer:
        """The offer: all tensors, each in its encoding."""
        return pb.WeightOffer(manifest=self._manifest, tensors=self._specs.values())

    def need(self, need: pb.WeightNeed) -> None:
        """Take in what the receiver lacks, or more credit.

        Raises:
            ValueError: it asks for what was not offered.
        """
        self._credit += need.credit_bytes
        if self.phase != Phase.OFFERED:
            return
        for name in need.tensors:
            if name not in self._specs:
                raise ValueError(f"the policy server asks for tensor {name!r}, which was not offered")
            self._names.append(name)
            self._starts.append(self.total)
            self.total += self._specs[name].encoded_bytes
        if not 0 <= need.from_byte <= self.total:
            raise ValueError(f"the policy server asks for byte {need.from_byte} of {self.total}")
        self.phase = Phase.SENDING
        self._sent = self.received = need.from_byte

    def progress(self, progress: pb.WeightProgress) -> None:
        """Take in how far the receiver is, and its credit."""
        self.received = progress.received_bytes
        self._credit += progress.credit_bytes

    def due(self, chunk: int) -> int:
        """Bytes of the next chunk; 0 when there is something to wait for."""
        if self.phase != Phase.SENDING:
            return 0
        return max(0, min(chunk, self.total - self._sent, self._credit))

    def wants_dense(self, rejected: pb.WeightRejected) -> bool:
        """Whether the version, refused so, may be taken when it is sent again with base None."""
        return self.base is not None and rejected.retryable and rejected.reason in WANTS_DENSE

    def advance(self, size: int) -> int:
        """Count the next `size` bytes as sent; returns the place of the first one."""
        self._sent += size
        self._credit -= size
        return self._sent - size

    def read(self, start: int, size: int) -> pb.WeightChunk:
        """`size` bytes of the transfer; may wait for the disk."""
        chunk = pb.WeightChunk()
        self._read_into(chunk, start, size)
        return chunk

    async def next_request(self, chunk: int) -> tuple[SyncWeightsRequest, int] | None:
        """The next chunk and its bytes, and begin to read the one after it; None when there is something to wait for.

        Args:
            chunk: bytes of a chunk.

        Raises:
            OSError: the version can't be read.
        """
        reading, self._ahead = self._ahead or self._begin_to_read(chunk), None
        if reading is None:
            return None
        request = await reading
        self._ahead = self._begin_to_read(chunk)
        return request

    def _begin_to_read(self, chunk: int) -> asyncio.Future[tuple[SyncWeightsRequest, int]] | None:
        size = self.due(chunk)
        if not size:
            return None
        return asyncio.get_running_loop().run_in_executor(None, self._request, self.advance(size), size)

    def _request(self, start: int, size: int) -> tuple[SyncWeightsRequest, int]:
        request = SyncWeightsRequest()
        self._read_into(request.chunk, start, size)
        return request, size

    def _read_into(self, chunk: pb.WeightChunk, start: int, size: int) -> None:
        pieces: list[memoryview] = []
        index, at = bisect.bisect_right(self._starts, start) - 1, start
        while at < start + size:
            begin = at - self._starts[index]
            name = self._names[index]
            piece = (self._frames.get(name) or self._tensors[name])[begin : begin + start + size - at]
            pieces.append(piece)
            at += len(piece)
            index += 1
        data = b"".join(pieces)
        chunk.version, chunk.offset, chunk.data, chunk.crc32c = self.version, start, data, google_crc32c.value(data)

    def _encode(self, store: VersionStore, base: int) -> None:
        """Choose the smallest encoding of each tensor."""
        from openclaw_rl.weights.format import diff  # needs numpy; a version that is sent dense does without

        updates = [diff.adapters(store, self.version), diff.changes(store, self.version, base)]
        for update in filter(None, updates):
            for name, spec in update.specs.items():
                there = self._specs.get(name)
                if there is not None and spec.sha256 == there.sha256 and spec.encoded_bytes < there.encoded_bytes:
                    self._specs[name] = spec
                    self._frames[name] = update.frame(name)
