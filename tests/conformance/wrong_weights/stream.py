"""The small policy server's side of the weight stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import google_crc32c

from openclaw_rl.v1 import weights_pb2 as pb
from openclaw_rl.v1.policy_pb2 import SyncWeightsRequest, SyncWeightsResponse
from openclaw_rl.weights import playbook
from openclaw_rl.weights.format.digest import manifest_digest, tensor_digest
from tests.conformance.wrong_weights.versions import MODEL_ID, Versions

WINDOW = 64 << 10


class Rejected(Exception):
    def __init__(self, reason: str, text: str, retryable: bool = False) -> None:
        super().__init__(text)
        self.reason, self.retryable = reason, retryable


class Receiver:
    """Takes a version in. Every method is a place where a wrong one does otherwise."""

    def __init__(self, versions: Versions, folder: Path) -> None:
        self.versions, self.folder = versions, folder
        self.manifest: pb.VersionManifest | None = None
        self.spec = pb.TensorSpec()
        self.staged = False
        self.rejected = -1
        self.credit = self.unreported = 0
        self.active_then = 0
        folder.mkdir(exist_ok=True)

    def connected(self) -> None:
        self.manifest, self.staged, self.rejected = None, False, -1

    def handle(self, request: SyncWeightsRequest) -> Iterator[SyncWeightsResponse]:
        kind = request.WhichOneof("message")
        message = getattr(request, kind) if kind else None
        version = message.manifest.version if kind == "offer" else getattr(message, "version", 0)
        try:
            if kind is not None:
                yield from getattr(self, kind)(message)
        except Rejected as why:
            if self.manifest is None or self.manifest.version == version:
                self.manifest, self.staged, self.rejected = None, False, version
            yield from self.reject(version, why)

    def reject(self, version: int, why: Rejected) -> Iterator[SyncWeightsResponse]:
        yield SyncWeightsResponse(rejected=pb.WeightRejected(
            version=version, reason=pb.WeightRejectReason.Value(f"WEIGHT_REJECT_REASON_{why.reason}"),
            message=str(why), retryable=why.retryable))

    # -- an offer ------------------------------------------------------------------------------------------------

    def offer(self, offer: pb.WeightOffer) -> Iterator[SyncWeightsResponse]:
        self.admit(offer.manifest)
        self.check(offer)
        self.manifest, self.staged, self.rejected = offer.manifest, False, -1
        self.active_then = self.versions.active
        self.spec, = offer.tensors
        lacking = self.lacking()
        self.open()
        self.credit, self.unreported = self.window(), 0
        need = pb.WeightNeed(version=offer.manifest.version, tensors=[playbook.TENSOR] if lacking else [],
                             from_byte=self.have() if lacking else 0, credit_bytes=self.credit if lacking else 0)
        yield SyncWeightsResponse(need=need)
        if not lacking:
            self.part.write_bytes(self.versions.data(self.versions.active))
        if self.have() == self.spec.encoded_bytes:
            yield from self.complete()

    def window(self) -> int:
        return WINDOW

    def admit(self, manifest: pb.VersionManifest) -> None:
        state = self.versions.state()
        version, active = manifest.version, state.active_version
        self.takes_weights()
        if manifest.model_id != MODEL_ID:
            raise Rejected("WRONG_MODEL", "it is of another model")
        if version == active and manifest.digest == state.active_digest:
            raise Rejected("ALREADY_ACTIVE", "it is active")
        if version == active:
            raise Rejected("DIGEST_MISMATCH", "another one of this number is active")
        if state.pinned:
            raise Rejected("PINNED", "the active version is pinned", True)
        self.not_too_old(version)
        if manifest.parent in state.withdrawn_versions:
            raise Rejected("WRONG_BASE", f"it was made from {manifest.parent}, which was taken back")

    def takes_weights(self) -> None:
        if not self.versions.accepts_weights:
            raise Rejected("UNSUPPORTED", "the engine takes no weights")

    def not_too_old(self, version: int) -> None:
        if version < self.versions.active or version <= max(self.versions.withdrawn, default=0):
            raise Rejected("TOO_OLD", "it is older than one that was active")

    def check(self, offer: pb.WeightOffer) -> None:
        for spec in offer.tensors:
            if spec.name != playbook.TENSOR:
                raise Rejected("UNKNOWN_TENSOR", f"there is no tensor {spec.name}")
            if spec.dtype != playbook.DTYPE or len(spec.shape) != 1:
                raise Rejected("WRONG_SHAPE", f"tensor {spec.name} has another shape")
            if spec.encoding != pb.TENSOR_ENCODING_DENSE:
                raise Rejected("UNSUPPORTED", "it must come dense", True)
        if offer.HasField("base_version") and offer.base_version not in self.versions.kept():
            raise Rejected("WRONG_BASE", f"version {offer.base_version} is not here")
        if manifest_digest(offer.tensors) != offer.manifest.digest:
            raise Rejected("DIGEST_MISMATCH", "the tensors' digests do not make the manifest's")

    def lacking(self) -> bool:
        return self.spec.sha256 != tensor_digest(self.versions.data(self.versions.active))

    # -- its bytes -----------------------------------------------------------------------------------------------

    @property
    def part(self) -> Path:
        return self.folder / "part"

    def open(self) -> None:
        """What is there of another one goes."""
        assert self.manifest is not None
        known = self.folder / "digest"
        if not known.exists() or known.read_text() != self.manifest.digest:
            known.write_text(self.manifest.digest)
            self.part.write_bytes(b"")

    def have(self) -> int:
        return self.part.stat().st_size

    def chunk(self, chunk: pb.WeightChunk) -> Iterator[SyncWeightsResponse]:
        if chunk.version == self.rejected:
            return
        if self.manifest is None or self.staged or chunk.version != self.manifest.version:
            raise Rejected("PROTOCOL", "a chunk that is not due")
        self.look_at(chunk)
        with self.part.open("ab") as file:
            file.write(chunk.data)
        self.credit -= len(chunk.data)
        self.unreported += len(chunk.data)
        done = self.have() == self.spec.encoded_bytes
        if done or self.unreported * 4 >= self.window():
            yield SyncWeightsResponse(progress=pb.WeightProgress(
                version=chunk.version, received_bytes=self.have(), total_bytes=self.spec.encoded_bytes,
                credit_bytes=self.unreported))
            self.credit, self.unreported = self.credit + self.unreported, 0
        if done:
            yield from self.complete()

    def look_at(self, chunk: pb.WeightChunk) -> None:
        self.crc(chunk)
        if chunk.offset != self.have() or chunk.offset + len(chunk.data) > self.spec.encoded_bytes:
            raise Rejected("BAD_CHUNK", f"byte {self.have()} is due", True)
        self.within_credit(chunk)

    def crc(self, chunk: pb.WeightChunk) -> None:
        if google_crc32c.value(chunk.data) != chunk.crc32c:
            raise Rejected("BAD_CHUNK", "the CRC is wrong", True)

    def within_credit(self, chunk: pb.WeightChunk) -> None:
        if len(chunk.data) > self.credit:
            raise Rejected("BAD_CHUNK", f"{self.credit} bytes were granted", True)

    # -- its end -------------------------------------------------------------------------------------------------

    def complete(self) -> Iterator[SyncWeightsResponse]:
        assert self.manifest is not None
        data = self.part.read_bytes()
        try:
            self.digest(data)
            self.content(data)
        except Rejected:
            self.part.write_bytes(b"")
            raise
        self.staged = True
        yield SyncWeightsResponse(staged=pb.WeightStaged(version=self.manifest.version))

    def digest(self, data: bytes) -> None:
        if tensor_digest(data) != self.spec.sha256:
            raise Rejected("DIGEST_MISMATCH", "the playbook has another digest")

    def content(self, data: bytes) -> None:
        try:
            playbook.parse(data)
        except playbook.PlaybookError as error:
            raise Rejected("WRONG_SHAPE", str(error)) from None

    def commit(self, commit: pb.WeightCommit) -> Iterator[SyncWeightsResponse]:
        if commit.version == self.rejected:
            return
        self.may_commit(commit.version)
        manifest = self.manifest
        assert manifest is not None
        self.admit(manifest)
        if self.versions.active != self.active_then:
            raise Rejected("WRONG_BASE", "an operator went to another version meanwhile", True)
        self.switch(manifest)
        self.manifest, self.staged = None, False
        yield SyncWeightsResponse(activated=pb.WeightActivated(version=commit.version))

    def may_commit(self, version: int) -> None:
        if self.manifest is None or not self.staged or version != self.manifest.version:
            raise Rejected("PROTOCOL", "it is not staged")

    def switch(self, manifest: pb.VersionManifest) -> None:
        self.versions.commit(manifest, self.part.read_bytes())

    def abort(self, abort: pb.WeightAbort) -> Iterator[SyncWeightsResponse]:
        if self.manifest is not None and abort.version == self.manifest.version:
            self.manifest, self.staged = None, False
        yield from ()

