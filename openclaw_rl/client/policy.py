"""Clients of PolicyService: answers, and takes new weights."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Unpack

from openclaw_rl.client.base import AsyncClient, Client
from openclaw_rl.client.calls import BidiStream, ServerStream, Unary
from openclaw_rl.client.chat import Ask, AsyncChatAnswer, ChatAnswer, Messages, request
from openclaw_rl.client.options import check
from openclaw_rl.client.watches import OnBreak, follow, follow_async
from openclaw_rl.v1 import policy_pb2 as pb
from openclaw_rl.v1 import policy_pb2_grpc
from openclaw_rl.v1.turn_pb2 import Feedback


class _PolicyRpcs:
    stub = policy_pb2_grpc.PolicyServiceStub
    component = "policy_server"

    chat = ServerStream(pb.ChatRequest, pb.ChatResponse)
    """Answers a conversation, token by token."""
    generate = ServerStream(pb.GenerateRequest, pb.GenerateResponse)
    """Continues token ids, token by token."""
    score = Unary(pb.ScoreRequest, pb.ScoreResponse)
    """Gives the log-probabilities of given tokens."""
    sync_weights = BidiStream(pb.SyncWeightsRequest, pb.SyncWeightsResponse)
    """Takes new versions from the trainer: offer, need, chunks, staged, commit, activated."""
    get_policy = Unary(pb.GetPolicyRequest, pb.GetPolicyResponse)
    """Tells the active version and those that can be activated."""
    watch_policy = ServerStream(pb.WatchPolicyRequest, pb.WatchPolicyResponse)
    """Tells the same at once and again at each change."""
    activate_version = Unary(pb.ActivateVersionRequest, pb.ActivateVersionResponse)
    """Makes a kept version the active one (roll back, or forward again)."""
    submit_feedback = Unary(pb.SubmitFeedbackRequest, pb.SubmitFeedbackResponse)
    """Takes explicit feedback on a turn or a session."""
    fetch_weights = ServerStream(pb.PolicyServiceFetchWeightsRequest, pb.PolicyServiceFetchWeightsResponse)
    """Sends a kept version's tensors to another policy server (a relay)."""


class PolicyServiceClient(_PolicyRpcs, Client):
    """Blocking client of PolicyService."""

    def ask(self, messages: Messages, **options: Unpack[Ask]) -> ChatAnswer:
        """Chat: the answer is an iterator of its text.

        Args:
            messages: a user's message, or the conversation.
            options: see `chat.Ask`.
        """
        check("ask()", options, Ask)
        asked = request(messages, options)
        return ChatAnswer(lambda: self.chat(asked, timeout=options.get("timeout")))

    def feedback(self, turn_id: str = "", score: float | None = None, comment: str = "", *,
                 session_id: str = "") -> str:
        """Say what you think of a turn, or of a session's last main one: a score from -1 to 1, a comment, or both.
        Returns the feedback's id."""
        return self.submit_feedback(feedback=_feedback(turn_id, score, comment, session_id)).feedback_id

    def pin(self, version: int | None = None, reason: str = "") -> pb.PolicyState:
        """Stay with a kept version (default: the active one), whatever the trainer offers."""
        return self.activate_version(version=version, reason=reason, pin=True).state

    def unpin(self, reason: str = "") -> pb.PolicyState:
        """Take versions from the trainer again."""
        return self.activate_version(reason=reason, pin=False).state

    def roll_back(self, version: int, reason: str = "") -> pb.PolicyState:
        """Make a kept version the active one; those above it are taken back."""
        return self.activate_version(version=version, reason=reason).state

    def follow_policy(self, on_break: OnBreak | None = None) -> Iterator[pb.PolicyState]:
        """WatchPolicy that connects again when it breaks; see `follow.follow`."""
        return follow(self.watch_policy, lambda change: change.state, on_break)


class AsyncPolicyServiceClient(_PolicyRpcs, AsyncClient):
    """Asynchronous client of PolicyService."""

    def ask(self, messages: Messages, **options: Unpack[Ask]) -> AsyncChatAnswer:
        """As `PolicyServiceClient.ask`, for `async for`."""
        check("ask()", options, Ask)
        asked = request(messages, options)
        return AsyncChatAnswer(lambda: self.chat(asked, timeout=options.get("timeout")))

    async def feedback(self, turn_id: str = "", score: float | None = None, comment: str = "", *,
                       session_id: str = "") -> str:
        """As `PolicyServiceClient.feedback`."""
        return (await self.submit_feedback(feedback=_feedback(turn_id, score, comment, session_id))).feedback_id

    async def pin(self, version: int | None = None, reason: str = "") -> pb.PolicyState:
        """As `PolicyServiceClient.pin`."""
        return (await self.activate_version(version=version, reason=reason, pin=True)).state

    async def unpin(self, reason: str = "") -> pb.PolicyState:
        """As `PolicyServiceClient.unpin`."""
        return (await self.activate_version(reason=reason, pin=False)).state

    async def roll_back(self, version: int, reason: str = "") -> pb.PolicyState:
        """As `PolicyServiceClient.roll_back`."""
        return (await self.activate_version(version=version, reason=reason)).state

    def follow_policy(self, on_break: OnBreak | None = None) -> AsyncIterator[pb.PolicyState]:
        """As `PolicyServiceClient.follow_policy`."""
        return follow_async(self.watch_policy, lambda change: change.state, on_break)


def _feedback(turn_id: str, score: float | None, comment: str, session_id: str) -> Feedback:
    return Feedback(turn_id=turn_id, session_id=session_id, score=score, comment=comment)
