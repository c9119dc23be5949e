"""Policy servers that are wrong in one thing each, and what the kit must say of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openclaw_rl.mesh.errors import unavailable
from openclaw_rl.v1 import policy_pb2 as pb
from openclaw_rl.v1 import turn_pb2, weights_pb2
from openclaw_rl.v1.common_pb2 import VersionSpan

from .outbox import Outbox
from .right import SmallPolicy
from .stream import Receiver, Rejected
from .versions import Versions


@dataclass(frozen=True)
class Fault:
    """What is wrong.

    Attributes:
        server: the wrong server.
        check: id of the check that must fail, alone among those that `with_` names too.
        seen: part of the sentence that it must say.
        start: it takes a process that can be killed to see it.
    """

    server: type[SmallPolicy]
    check: str
    seen: str
    start: bool = False


FAULTS: dict[str, Fault] = {}


def fault(check: str, seen: str, *, start: bool = False) -> Any:
    """Enter a wrong server, or a wrong part of one, under its name in words."""
    def register(wrong: type) -> type:
        kinds = {Receiver: "receiver_type", Outbox: "outbox_type", Versions: "versions_type"}
        part = next((attribute for kind, attribute in kinds.items() if issubclass(wrong, kind)), None)
        server = type(wrong.__name__, (SmallPolicy,), {part: wrong}) if part else wrong
        FAULTS[wrong.__name__] = Fault(server, check, seen, start)
        return wrong

    return register


class Tokens(SmallPolicy):
    """The right one with token ids."""

    tokens = True


class _Fixed(Versions):
    accepts_weights = False


class Fixed(SmallPolicy):
    """The right one with an engine that takes no weights."""

    versions_type = _Fixed


# -- chat --------------------------------------------------------------------------------------------------------


@fault("policy.chat", "the first message of the response is `delta`, not `start`")
class NoStart(SmallPolicy):
    def start(self, start: pb.ChatStart) -> pb.ChatResponse:
        return pb.ChatResponse(delta=pb.ChatDelta())


@fault("policy.chat.message", "the deltas make")
class DeltasDoNotAddUp(SmallPolicy):
    def said(self, word: str) -> str:
        return word.strip()


@fault("policy.chat.ids", "two responses have the turn_id 'turn_1'")
class OneTurnId(SmallPolicy):
    def turn_id(self) -> str:
        return "turn_1"


@fault("policy.chat.ids", "`start` has the session 'ses_mine'; the request named")
class OwnSessions(SmallPolicy):
    def session(self, request: pb.ChatRequest) -> str:
        return "ses_mine"


@fault("policy.chat.version", "the version spans of the response cover 0 of its")
class NoSpans(Tokens):
    def spans(self, count: int, version: int) -> list[VersionSpan]:
        return []


@fault("policy.chat.version", "no token came with the deltas")
class NoTokens(Tokens):
    def token_chunks(self, text: str, version: int) -> list[pb.TokenChunk]:
        return []


@fault("policy.chat.version", "`start` says version 7; version 0 is active")
class WrongVersionTold(SmallPolicy):
    def told(self, version: int) -> int:
        return version + 7


@fault("policy.chat.min_version", "a chat with min_version 1000, where version 0 is active, succeeded")
class AnyVersion(SmallPolicy):
    def check_version(self, options: turn_pb2.TurnOptions) -> None:
        pass


@fault("policy.chat.bad_input", "a chat without messages succeeded")
class TakesAnything(SmallPolicy):
    def check(self, request: pb.ChatRequest) -> None:
        if not request.messages:
            request.messages.add(role="user")
        self.check_version(request.turn)


@fault("policy.chat.cancel", "chats were cancelled the status says that 13 are running")
class GoesOnWhenCancelled(SmallPolicy):
    cancelled = 0

    def record(self, request: pb.ChatRequest, turn: turn_pb2.Turn) -> None:
        self.cancelled += turn.finish_reason == turn_pb2.FINISH_REASON_CANCELLED
        super().record(request, turn)

    def ended(self) -> None:
        if not self.cancelled:
            super().ended()


@fault("policy.generate", "tokens 0 to 8 of the generation are told to be of version 0, and one of them of version 5")
class TokenOfAnotherVersion(Tokens):
    def generated(self, token: pb.TokenChunk) -> pb.TokenChunk:
        token.version = 5 if token.id == 7 else token.version
        return token


@fault("policy.generate", "was refused for the reason 'UNIMPLEMENTED', not NO_WEIGHTS")
class GenerateWithoutReason(SmallPolicy):
    def has_tokens(self) -> None:
        from openclaw_rl.mesh.errors import failed_precondition

        raise failed_precondition("UNIMPLEMENTED", "no")


@fault("policy.score", "Score of 6 token ids gives 6 log-probabilities")
class ScoresTheFirst(Tokens):
    def scores(self, count: int) -> list[float]:
        return [-0.25] * count


@fault("policy.score.same", "Generate and Score are 2.75 apart on the same tokens")
class ScoresOtherwise(Tokens):
    def scores(self, count: int) -> list[float]:
        return [-3.0] * (count - 1)


@fault("policy.state", "kept_versions are not ascending")
class StateInDisorder(SmallPolicy):
    def state(self) -> pb.PolicyState:
        state = super().state()
        state.kept_versions.insert(0, 3)
        return state


@fault("policy.activate", "ActivateVersion of 1000, which there is not, succeeded")
class ActivatesAnything(Versions):
    def activate(self, request: pb.ActivateVersionRequest) -> None:
        if not request.HasField("version") or request.version in self.kept():
            super().activate(request)


# -- turns -------------------------------------------------------------------------------------------------------


@fault("policy.turns", "3 of 3 turns did not arrive")
class NeverRecords(SmallPolicy):
    def record(self, request: pb.ChatRequest, turn: turn_pb2.Turn) -> None:
        pass


@fault("policy.turns", "what the server adds for its model does not belong to the turn")
class RecordsItsPlaybook(SmallPolicy):
    def record(self, request: pb.ChatRequest, turn: turn_pb2.Turn) -> None:
        turn.messages.insert(0, turn_pb2.ChatMessage(role="system", content="Follow these."))
        super().record(request, turn)


@fault("policy.turns.no_record", "was sent, though its request has no_record")
class RecordsAll(SmallPolicy):
    def record(self, request: pb.ChatRequest, turn: turn_pb2.Turn) -> None:
        request.turn.no_record = False
        super().record(request, turn)


@fault("policy.turns.session_done", "the turn does not say that its session is done")
class SessionsNeverDone(SmallPolicy):
    def record(self, request: pb.ChatRequest, turn: turn_pb2.Turn) -> None:
        turn.session_done = False
        super().record(request, turn)


@fault("policy.turns.resend", "were not sent again within")
class ForgetsWhatItSent(Outbox):
    def pending(self) -> list[Path]:
        paths = super().pending()
        fresh = [path for path in paths if path not in self.gone]
        self.gone.update(fresh)
        return fresh

    def __init__(self, folder: Path, address: str) -> None:
        super().__init__(folder, address)
        self.gone: set[Path] = set()


@fault("policy.turns.resend", "was sent again, though it had been acknowledged")
class NeverForgets(Outbox):
    def acked(self, path: Path | None) -> None:
        pass


@fault("policy.turns.resend", "after the break the turns came in the order")
class ResendsBackwards(Outbox):
    def pending(self) -> list[Path]:
        return super().pending()[::-1]


@fault("policy.turns.down", "a chat takes")
class WaitsForTheEnvironment(SmallPolicy):
    def __init__(self, data: Path, environment: str = "") -> None:
        super().__init__(data, environment)
        self._connected = time.monotonic()

    def words(self, request: pb.ChatRequest) -> list[str]:
        # It makes the client wait while turns are not acknowledged.
        return super().words(request) * (170 if self.outbox.pending() else 1)


@fault("policy.turns.killed", "that were complete before the server was killed did not arrive", start=True)
class RemembersInMemory(Outbox):
    def __init__(self, folder: Path, address: str) -> None:
        folder.mkdir(exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        super().__init__(folder, address)


@fault("policy.feedback", "SubmitFeedback answers with the id 'fb_mine'")
class OwnFeedbackIds(SmallPolicy):
    def feedback_id(self, given: turn_pb2.Feedback) -> str:
        return "fb_mine"


# -- the weight stream -------------------------------------------------------------------------------------------


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
        from openclaw_rl.weights.digest import manifest_digest

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
