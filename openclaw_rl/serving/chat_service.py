"""From a request to a recorded turn, whichever door it came through."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

from openclaw_rl.delivery.validation import LONGEST_ID
from openclaw_rl.rpc import errors
from openclaw_rl.rpc.messages import new_id, now, to_timestamp
from openclaw_rl.serving.admission import FairQueue
from openclaw_rl.serving.event_recorder import TurnRecorder
from openclaw_rl.serving.heartbeat import SessionHeartbeat
from openclaw_rl.serving.interfaces import ChatCall, End, Event, RequestContext
from openclaw_rl.serving.latency import Latency
from openclaw_rl.serving.rates import RateMeter
from openclaw_rl.serving.token_policy import Policy, Transcript
from openclaw_rl.serving.tracing import generated
from openclaw_rl.sessions.index import ConversationIndex
from openclaw_rl.v1 import turn_pb2

logger = logging.getLogger(__name__)


class ChatService:
    """The desk behind all doors ().

    Finds the session, lets the policy answer, and records the turn before the door can tell the client that the
    response is complete. A response that is cancelled or fails is recorded as far as it came.
    """

    def __init__(self, recorder: TurnRecorder, model: str, aliases: frozenset[str] = frozenset(),
                 index: ConversationIndex | None = None, presence: SessionHeartbeat | None = None) -> None:
        """Args:
            index: the conversations of earlier runs; default: none.
            presence: is told of sessions with a response under way.
        """
        self._presence = presence
        self.model, self.aliases = model, aliases
        self.state = "the policy is getting ready"
        self.running = 0  #: responses that are being made
        self.meter = RateMeter()
        self.latency = Latency()
        self.queue: FairQueue | None = None  #: in front of an engine that makes so many responses at a time
        self._policy: Policy | None = None
        self._recorder = recorder
        self._index = index if index is not None else ConversationIndex()
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def ready(self) -> bool:
        """Whether requests are taken."""
        return self._policy is not None and not self._closed

    @property
    def version(self) -> int:
        """The active policy version; 0 before it is ready."""
        return self._policy.version if self._policy else 0

    def mark_ready(self, policy: Policy) -> None:
        """The policy is there: take requests."""
        self._policy, self.state = policy, ""

    async def drain(self, grace: float) -> None:
        """Take no more requests and wait until the running ones have ended, at most `grace` seconds."""
        self._closed, self.state = True, "the policy server is about to stop"
        try:
            await asyncio.wait_for(self._idle.wait(), grace)
        except TimeoutError:
            logger.warning("%d responses are cut short", self.running)

    def open(self, *, options: turn_pb2.TurnOptions, client: str, api: str, messages: list[turn_pb2.ChatMessage],
             metadata: dict[str, str], choices: int = 1) -> RequestContext:
        """See ."""
        self._ready()
        source: turn_pb2.SessionSource.ValueType = turn_pb2.SESSION_SOURCE_CLIENT
        session = options.session_id
        check_id("session_id", session)
        check_id("turn_type", options.turn_type)
        if not session:
            session, source = self._index.match(client, messages) or "", turn_pb2.SESSION_SOURCE_INFERRED
        if not session:
            session, source = new_id("ses_"), turn_pb2.SESSION_SOURCE_NEW
        self._recorder.count("requests")
        self.meter.tick()
        return RequestContext(turn_id=new_id("turn_"), session_id=session, session_source=source, options=options,
                    client=client, api=api, metadata=metadata, requested_at=time.time(), open_choices=choices)

    async def run(self, head: RequestContext, call: ChatCall, choice: int = 0) -> AsyncGenerator[Event, None]:
        """See ."""
        policy = self._ready()
        transcript = Transcript()
        settled = False
        self.running += 1
        self._idle.clear()
        try:
            call.sampling, call.session = policy.fill(call.sampling), head.session_id
            call.background = head.options.background
            async with AsyncExitStack() as during:
                if self._presence is not None and not head.options.no_record:
                    during.enter_context(self._presence.of(head.session_id))
                if self.queue is not None:
                    slot = self.queue.slot(head.payer or head.client, head.options.background)
                    await during.enter_async_context(slot)
                events = await during.enter_async_context(aclosing(policy.chat(call, transcript)))
                async for event in events:
                    if isinstance(event, End):
                        settled = True
                        self._note_latency(head, transcript)
                        turn = self._settle(head, call, choice, transcript, event.finish_reason)
                        if turn is not None:
                            await self._recorder.turn(turn)
                    yield event
        except (asyncio.CancelledError, GeneratorExit):
            if not settled:
                self._settle_now(head, call, choice, transcript, turn_pb2.FINISH_REASON_CANCELLED)
            raise
        except Exception as error:
            self._recorder.count("failed")
            if not settled:
                # Refused before its first token: no response, so no turn; the client knows.
                self._settle_now(head, call, choice, transcript, turn_pb2.FINISH_REASON_ERROR,
                                 refused=transcript.first_token_at is None)
            if isinstance(error, errors.MeshError):
                raise
            logger.exception("turn %s failed", head.choice_id(choice))
            raise errors.internal(head.choice_id(choice)) from error
        finally:
            self.running -= 1
            if not self.running:
                self._idle.set()

    async def feedback(self, feedback: turn_pb2.Feedback) -> str:
        """See ."""
        bad = []
        if not feedback.turn_id and not feedback.session_id:
            bad.append(("turn_id", "is missing: name a turn_id or a session_id"))
        if not feedback.HasField("score") and not feedback.comment:
            bad.append(("score", "is missing: give a score, thumbs or a comment"))
        if feedback.HasField("score") and not -1 <= feedback.score <= 1:
            bad.append(("score", f"{feedback.score} is not allowed: must be from -1 to 1"))
        if bad:
            raise errors.invalid_many(bad)
        for name in ("turn_id", "session_id", "feedback_id"):
            check_id(name, getattr(feedback, name))
        feedback.feedback_id = feedback.feedback_id or new_id("fb_")
        if not feedback.HasField("given_at"):
            feedback.given_at.CopyFrom(now())
        await self._recorder.feedback(feedback)
        return feedback.feedback_id

    def _note_latency(self, head: RequestContext, transcript: Transcript) -> None:
        if not head.options.background:
            first = transcript.first_token_at
            self.latency.ended(time.time() - head.requested_at, None if first is None else first - head.requested_at)

    def _ready(self) -> Policy:
        if self._policy is None or self._closed:
            raise errors.unavailable(self.state, retry_after=2.0)
        return self._policy

    def _settle(self, head: RequestContext, call: ChatCall, choice: int, transcript: Transcript,
                reason: turn_pb2.FinishReason.ValueType, refused: bool = False) -> turn_pb2.Turn | None:
        """The turn to record; None when there is none."""
        head.open_choices -= 1
        trace = generated(head, call, choice, transcript, reason, self.model, self.version)
        done = head.options.session_done and head.open_choices <= 0  # the last choice ends the session
        if refused or head.options.no_record:
            if done and head.options.session_id:
                self._recorder.session_end(turn_pb2.SessionEnd(
                    event_id=new_id("end_"), session_id=head.session_id, ended_at=now()))
            return None
        response = transcript.message()
        turn = turn_pb2.Turn(
            turn_id=head.choice_id(choice), session_id=head.session_id, session_source=head.session_source,
            declared_type=head.options.turn_type, session_done=done, messages=call.messages, tools=call.tools,
            response=response, finish_reason=reason, tokens=transcript.record(), sampling=call.sampling,
            model=self.model, policy_version=transcript.version if transcript.first_token_at else self.version,
            requested_at=to_timestamp(head.requested_at), finished_at=now(), client=head.client,
            metadata=head.metadata, api=head.api, choice_index=choice, trace=trace)
        if transcript.first_token_at is not None:
            turn.first_token_at.CopyFrom(to_timestamp(transcript.first_token_at))
        if head.options.HasField("episode"):
            turn.episode.CopyFrom(head.options.episode)
        if self._recorder.forgot(turn):
            return None
        if response.content or response.tool_calls:
            self._index.remember(head.client, head.session_id, call.messages, response)
        return turn

    def _settle_now(self, head: RequestContext, call: ChatCall, choice: int, transcript: Transcript,
                    reason: turn_pb2.FinishReason.ValueType, refused: bool = False) -> None:
        """Record without awaiting: the task is being cancelled, or about to raise."""
        turn = self._settle(head, call, choice, transcript, reason, refused)
        if turn is not None:
            self._recorder.turn_now(turn)


def check_id(name: str, value: str) -> None:
    """Check an id or label that a client gave.

    Raises:
        MeshError: INVALID_ARGUMENT, too long or not printable.
    """
    if len(value) > LONGEST_ID:
        raise errors.invalid(name, value, f"at most {LONGEST_ID} characters")
    if not value.isprintable():
        raise errors.invalid(name, value, "printable characters")
