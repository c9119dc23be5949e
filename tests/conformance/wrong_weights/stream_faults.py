"""Policy servers that are wrong in one thing each: in how they take versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from openclaw_rl.rpc.errors import unavailable
from openclaw_rl.v1 import policy_pb2 as pb
from openclaw_rl.v1 import weights_pb2
from tests.conformance.wrong_weights.fault import Fixed, fault
from tests.conformance.wrong_weights.right import SmallPolicy
from tests.conformance.wrong_weights.stream import Receiver, Rejected
from tests.conformance.wrong_weights.versions import Versions


@fault("weights.state", "nothing came within")
class ForgetsState(SmallPolicy):
    def opened(self, stream: Any) -> None:
        pass


@fault("weights.cycle", "was staged and not committed, and version 1 is active in place of 0")
class ActivatesWhenStaged(Receiver):
    def complete(self) -> Iterator[pb.SyncWeightsResponse]:
        yield from super().complete()
        assert self.manifest is not None
        self.versions.commit(self.manifest, self.part.read_bytes())


@fault("weights.cycle", "`activated` told version 1, and a chat is answered by version 0")
class ServesTheOldOne(SmallPolicy):
    def told(self, version: int) -> int:
        return 0


@fault("weights.cycle", "`activated` told version 1, and GetPolicy says that 0 is active")
class NeverSwitches(Receiver):
    def switch(self, manifest: weights_pb2.VersionManifest) -> None:
        pass


@fault("weights.cycle", "`need` grants no credit")
class GrantsNothing(Receiver):
    def window(self) -> int:
        return 0


@fault("weights.cycle", "where the credit is used up, was not answered within")
class NeverGrantsMore(Receiver):
    def chunk(self, chunk: weights_pb2.WeightChunk) -> Iterator[pb.SyncWeightsResponse]:
        for answer in super().chunk(chunk):
            if not answer.HasField("progress"):
                yield answer


@fault("weights.serving", "a chat failed while version")
class StopsWhileStaging(SmallPolicy):
    def check(self, request: pb.ChatRequest) -> None:
        if self.receiver.manifest is not None and "ten" in request.messages[0].content:
            raise unavailable("a version is on its way")
        super().check(request)


@fault("weights.nothing_lacking", "which the active version has alike")
class WantsAll(Receiver):
    def lacking(self) -> bool:
        return True


@fault("weights.refuses.unsupported_engine", "not as UNSUPPORTED")
class AnyEngine(Fixed):
    class receiver_type(Receiver):
        def takes_weights(self) -> None:
            pass

        def lacking(self) -> bool:
            return False


@fault("weights.refuses.credit", "a chunk of 65537 bytes, where 65536 were granted, was answered `progress`")
class IgnoresCredit(Receiver):
    def within_credit(self, chunk: weights_pb2.WeightChunk) -> None:
        pass


@fault("weights.refuses.crc", "a chunk with a wrong CRC-32C was answered")
class IgnoresCrc(Receiver):
    def crc(self, chunk: weights_pb2.WeightChunk) -> None:
        pass


@fault("weights.refuses.crc", "ended with ABORTED")
class DropsTheStream(SmallPolicy):
    async def take(self, request: pb.SyncWeightsRequest, stream: Any) -> None:
        for answer in self.receiver.handle(request):
            if answer.rejected.reason == weights_pb2.WEIGHT_REJECT_REASON_BAD_CHUNK:
                self.end_older(stream)
                return
            stream.answers.put_nowait(answer)


@fault("weights.refuses.offset", "a chunk at byte 1, where byte 0 was due, was answered `progress`")
class IgnoresOffsets(Receiver):
    def look_at(self, chunk: weights_pb2.WeightChunk) -> None:
        self.crc(chunk)
        if chunk.offset + len(chunk.data) > self.spec.encoded_bytes:
            raise Rejected("BAD_CHUNK", "beyond the end", True)
        self.within_credit(chunk)

    def chunk(self, chunk: weights_pb2.WeightChunk) -> Iterator[pb.SyncWeightsResponse]:
        yield from super().chunk(chunk)
        if self.manifest is not None and not self.staged:
            yield pb.SyncWeightsResponse(progress=weights_pb2.WeightProgress(
                version=chunk.version, received_bytes=self.have(), total_bytes=self.spec.encoded_bytes,
                credit_bytes=self.unreported))
            self.unreported = 0


@fault("weights.refuses.tensor_digest", "was answered `staged` where `rejected` (DIGEST_MISMATCH) was due")
class NoDigestCheck(Receiver):
    def digest(self, data: bytes) -> None:
        pass


@fault("weights.refuses.manifest_digest", "was answered `staged` where `rejected` (DIGEST_MISMATCH) was due")
class NoManifestCheck(Receiver):
    def check(self, offer: weights_pb2.WeightOffer) -> None:
        offer.manifest.digest = self._right(offer)
        super().check(offer)

    @staticmethod
    def _right(offer: weights_pb2.WeightOffer) -> str:
        from openclaw_rl.weights.format.digest import manifest_digest

        return manifest_digest(offer.tensors)


@fault("weights.refuses.model", "a version of another base model was answered `staged`")
class AnyModel(Receiver):
    def admit(self, manifest: weights_pb2.VersionManifest) -> None:
        manifest.model_id = self.versions.state().model_id
        super().admit(manifest)


@fault("weights.refuses.unknown_tensor", "was rejected as WRONG_SHAPE")
class WrongReason(Receiver):
    def check(self, offer: weights_pb2.WeightOffer) -> None:
        try:
            super().check(offer)
        except Rejected as why:
            raise Rejected("WRONG_SHAPE" if why.reason == "UNKNOWN_TENSOR" else why.reason, str(why), why.retryable
                           ) from None


@fault("weights.refuses.content", "a playbook that is no JSON was answered `staged`")
class TakesNaN(Receiver):
    def content(self, data: bytes) -> None:
        pass


@fault("weights.refuses.order", "a commit of a version that was offered and not sent was answered `activated`")
class CommitsAtOnce(Receiver):
    def may_commit(self, version: int) -> None:
        if self.manifest is None:
            super().may_commit(version)


@fault("weights.abort", "a commit of a version that the trainer has given up was answered `activated`")
class IgnoresAbort(Receiver):
    def abort(self, abort: weights_pb2.WeightAbort) -> Iterator[pb.SyncWeightsResponse]:
        yield from ()

    def may_commit(self, version: int) -> None:
        if self.have() < self.spec.encoded_bytes // 2:
            super().may_commit(version)


@fault("weights.resume", "and it is wanted from byte 0 again")
class FromTheBeginning(Receiver):
    def connected(self) -> None:
        super().connected()
        if self.part.exists() and self.have() < self.spec.encoded_bytes:
            self.part.write_bytes(b"")


@fault("weights.resume", "the stream was closed at 10 %; ")
class SaysMoreThanItHas(Receiver):
    offered = False

    def open(self) -> None:
        super().open()
        self.offered = True

    def have(self) -> int:
        there = super().have()
        return there + 1 if self.offered and there else there

    def chunk(self, chunk: weights_pb2.WeightChunk) -> Iterator[pb.SyncWeightsResponse]:
        self.offered = False
        yield from super().chunk(chunk)


@fault("weights.resume.activated", "was answered `staged` where `rejected` (ALREADY_ACTIVE) was due")
class TakesTheActiveOne(Receiver):
    def admit(self, manifest: weights_pb2.VersionManifest) -> None:
        if manifest.version != self.versions.active or manifest.digest != self.versions.state().active_digest:
            super().admit(manifest)


@fault("weights.killed", "the server was killed at 60 %", start=True)
class PartInMemory(Receiver):
    def __init__(self, versions: Versions, folder: Path) -> None:
        super().__init__(versions, folder)
        self.part.unlink(missing_ok=True)
        self.part.touch()


@fault("weights.killed.active", "and GetPolicy says that 0 is active", start=True)
class ForgetsWhatIsActive(Versions):
    def __init__(self, folder: Path, tokens: bool) -> None:
        super().__init__(folder, tokens)
        self.active = 0


@fault("weights.newest", "the older of two streams of one trainer did not end")
class KeepsBoth(SmallPolicy):
    def end_older(self, older: Any) -> None:
        pass


@fault("weights.newest", "the older of two streams of one trainer was closed by the server")
class ClosesQuietly(SmallPolicy):
    def end_older(self, older: Any) -> None:
        older.answers.put_nowait(None)


@fault("weights.another_trainer", "the stream of a second trainer was let in while the first was connected")
class AnyTrainer(SmallPolicy):
    def admit(self, before: Any, trainer: str) -> None:
        pass


@fault("weights.pin", "an offer while the active version is pinned was answered `staged`")
class IgnoresPin(Receiver):
    def admit(self, manifest: weights_pb2.VersionManifest) -> None:
        try:
            super().admit(manifest)
        except Rejected as why:
            if why.reason != "PINNED":
                raise


@fault("weights.pin", "must say true")
class PinnedForGood(Receiver):
    def reject(self, version: int, why: Rejected) -> Iterator[pb.SyncWeightsResponse]:
        why.retryable = why.retryable and why.reason != "PINNED"
        yield from super().reject(version, why)


@fault("weights.rollback", "was answered `staged` where `rejected` (TOO_OLD) was due")
class TakesOldOnes(Receiver):
    def not_too_old(self, version: int) -> None:
        pass


@fault("weights.rollback", "and withdrawn_versions do not have")
class NothingTakenBack(Versions):
    def take_back(self, version: int) -> None:
        pass


@fault("weights.rollback", "the trainer was not told by `state` that an operator activated another version")
class DoesNotTell(SmallPolicy):
    def tell(self, stream: Any) -> None:
        if stream is not self.stream or (stream.answers.empty() and not getattr(stream, "told", False)):
            stream.told = True
            super().tell(stream)


@fault("weights.superseded", "was answered `activated` where `rejected` (PROTOCOL) was due")
class CommitsWhatWasGivenUp(Receiver):
    before: weights_pb2.VersionManifest | None = None

    def offer(self, offer: weights_pb2.WeightOffer) -> Iterator[pb.SyncWeightsResponse]:
        self.before = self.manifest if self.staged else None
        yield from super().offer(offer)

    def may_commit(self, version: int) -> None:
        if self.before is None or version != self.before.version:
            super().may_commit(version)
        else:
            self.manifest = self.before
