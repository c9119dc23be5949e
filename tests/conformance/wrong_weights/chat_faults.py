"""Policy servers that are wrong in one thing each: in what they answer, or what they send on."""

from __future__ import annotations

import time
from pathlib import Path

from openclaw_rl.v1 import policy_pb2 as pb
from openclaw_rl.v1 import turn_pb2
from openclaw_rl.v1.common_pb2 import VersionSpan
from tests.conformance.wrong_weights.fault import Tokens, fault
from tests.conformance.wrong_weights.outbox import Outbox
from tests.conformance.wrong_weights.right import SmallPolicy
from tests.conformance.wrong_weights.versions import Versions


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
        from openclaw_rl.rpc.errors import failed_precondition

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
