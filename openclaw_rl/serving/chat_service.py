"""The chat service: sessions, admission, generation and recording, for every entrypoint."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from weakref import WeakValueDictionary

from openclaw_rl.observability import request_spans
from openclaw_rl.observability.gen_ai import Generation
from openclaw_rl.rpc import errors
from openclaw_rl.rpc.membership import current_mesh
from openclaw_rl.rpc.messages import new_id, now, to_timestamp
from openclaw_rl.serving.admission import FairQueue
from openclaw_rl.serving.event_recorder import TurnRecorder
from openclaw_rl.serving.heartbeat import SessionHeartbeat
from openclaw_rl.serving.interfaces import ChatCall, End, Event, Origin, RequestContext, Start
from openclaw_rl.serving.latency import Latency
from openclaw_rl.serving.long_input import PromptLimits
from openclaw_rl.serving.rates import RateMeter
from openclaw_rl.serving.response_history import Conversation, ResponseHistory
from openclaw_rl.serving.token_policy import Policy, TokenPolicy, Transcript
from openclaw_rl.serving.tracing import generated
from openclaw_rl.serving.validation import check_id
from openclaw_rl.sessions.declared import declared
from openclaw_rl.sessions.fingerprint import Digests, both_digests, text_of
from openclaw_rl.sessions.index import ConversationIndex, in_flight_key
from openclaw_rl.v1 import turn_pb2

logger = logging.getLogger(__name__)

#: Repetitions of a request that are taken for one client's; more are many agents that ask the same at once.
_MOST_REPEATS = 8


class ChatService:
    """Serves the requests of all entrypoints.

    Finds the session, runs the policy, and records the turn before the client is told that the response is complete.
    A response that is cancelled or fails is recorded as far as it came.
    """

    def __init__(self, recorder: TurnRecorder, model: str, aliases: frozenset[str] = frozenset(),
                 index: ConversationIndex | None = None, heartbeat: SessionHeartbeat | None = None) -> None:
        """
        Args:
            model: its name; `aliases` are others that it answers to.
            index: conversations of earlier runs; default none.
            heartbeat: keeps sessions alive while a response is generated.
        """
        self.model, self.aliases = model, aliases
        self.state = "the policy is getting ready"  #: why requests are refused, for people; empty when they are not
        self.running = 0  #: responses in progress
        self.meter = RateMeter()  #: of requests
        self.latency = Latency()
        self.queue: FairQueue | None = None  #: admission to an engine with a limited number of slots
        self.on_ended: Callable[[Generation], None] = lambda _: None  #: called with every generation that has ended
        self.on_forgotten: Callable[[], None] = lambda: None  #: called when a turn ended whose session was forgotten
        self.history = ResponseHistory()
        #: Whether the turn or session that feedback is on is certainly not there.
        self.missing: Callable[[turn_pb2.Feedback], Awaitable[bool]] | None = None
        self._policy: Policy | None = None
        self._recorder, self._heartbeat = recorder, heartbeat
        self._index = index if index is not None else ConversationIndex()
        self._open: WeakValueDictionary[str, RequestContext] = WeakValueDictionary()  # not answered yet, by turn id
        # Those of them without a session id.
        self._unanswered: WeakValueDictionary[bytes, RequestContext] = WeakValueDictionary()
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def ready(self) -> bool:
        """Whether requests are accepted."""
        return self._policy is not None and not self._draining

    @property
    def version(self) -> int:
        """The active policy version; 0 before there is a policy."""
        return self._policy.version if self._policy else 0

    @property
    def prompt_limits(self) -> PromptLimits | None:
        """What no prompt can exceed; None where that is not known."""
        return self._policy.prompt_limits if self._policy else None

    def mark_ready(self, policy: Policy) -> None:
        """Accept requests."""
        self._policy, self.state = policy, ""

    async def drain(self, grace: float) -> None:
        """Refuse new requests and wait for the running ones, at most `grace` seconds."""
        self._draining, self.state = True, "the policy server is about to stop"
        try:
            await asyncio.wait_for(self._idle.wait(), grace)
        except TimeoutError:
            logger.warning("%d responses are cut short", self.running)

    def open(self, origin: Origin, options: turn_pb2.TurnOptions, messages: list[turn_pb2.ChatMessage],
             metadata: dict[str, str], choices: int = 1, digests: Digests | None = None,
             tools: Sequence[turn_pb2.ToolDefinition] = ()) -> RequestContext:
        """Accept a request: find its session and give it ids.

        Args:
            digests: of the messages. Of a long conversation they are computed beside the event loop (`off_loop`).

        Raises:
            MeshError: UNAVAILABLE, not ready; INVALID_ARGUMENT, an option is out of range.
        """
        self._ready()
        check_id("session_id", options.session_id)
        check_id("turn_type", options.turn_type)
        options = _with_declared(options, messages, origin.client)
        digests = digests or both_digests(messages)
        key = b"" if options.session_id else in_flight_key(origin.client, tools, digests)
        same = self._unanswered.get(key)
        if not messages or same is None or same.open_choices <= 0 or same.repeats >= _MOST_REPEATS:
            same = None
        session, source = self._session(origin, options, messages, digests, same)
        self._recorder.count("requests")
        self.meter.tick()
        context = RequestContext(turn_id=new_id("turn_"), session_id=session, session_source=source, options=options,
                                 origin=origin, metadata=metadata, requested_at=time.time(), open_choices=choices,
                                 digests=digests, repeats=same.repeats + 1 if same else 0)
        if key:
            self._unanswered[key] = context
        self._open[context.turn_id] = context
        request_spans.opened(origin.span, context.turn_id, context.session_id)
        return context

    async def run(self, context: RequestContext, call: ChatCall, choice: int = 0) -> AsyncGenerator[Event, None]:
        """Generate one response. Closing the iterator cancels it; its turn is recorded all the same.

        Raises:
            MeshError: from the first `anext`, the request can't be served; later, the engine failed.
        """
        policy = self._ready()
        transcript = Transcript()
        settled = False
        began, failure = time.perf_counter(), "cancelled"
        first: float | None = None  # seconds to the first token
        end: End | None = None
        self.running += 1
        self._idle.clear()
        try:
            call.sampling, call.session = policy.fill(call.sampling), context.session_id
            call.background = context.options.background
            async with AsyncExitStack() as stack:
                if self._heartbeat is not None and not context.options.no_record:
                    stack.enter_context(self._heartbeat.during(context.session_id))
                if self.queue is not None:
                    payer = context.origin.payer or context.origin.client
                    await stack.enter_async_context(self.queue.slot(payer, context.options.background))
                events = await stack.enter_async_context(aclosing(policy.chat(call, transcript)))
                async for event in events:
                    if isinstance(event, Start):
                        first = time.perf_counter() - began
                    elif isinstance(event, End):
                        settled, end, failure = True, event, ""
                        self._note_latency(context, transcript)
                        turn = self._settle(context, call, choice, transcript, event.finish_reason)
                        if turn is not None:
                            await self._recorder.turn(turn)
                    yield event
        except (asyncio.CancelledError, GeneratorExit):
            if not settled:
                turn = self._settle(context, call, choice, transcript, turn_pb2.FINISH_REASON_CANCELLED)
                if turn is not None:
                    self._recorder.turn_now(turn)
            raise
        except Exception as error:
            failure = error.reason if isinstance(error, errors.MeshError) else "INTERNAL"
            self._recorder.count("failed")
            if not settled:
                # Refused before its first token: no response, so no turn; the client is told.
                turn = self._settle(context, call, choice, transcript, turn_pb2.FINISH_REASON_ERROR,
                                    refused=transcript.first_token_at is None)
                if turn is not None:
                    await self._recorder.turn(turn)
            if isinstance(error, errors.MeshError):
                raise
            logger.exception("turn %s failed", context.choice_id(choice))
            raise errors.internal(context.choice_id(choice)) from error
        finally:
            self.running -= 1
            if not self.running:
                self._idle.set()
            self.on_ended(Generation(
                context.origin.api, time.perf_counter() - began, first, end.prompt_tokens if end else 0,
                end.completion_tokens if end else 0, failure, context.options.background))

    async def check_known(self, feedback: turn_pb2.Feedback) -> None:
        """Check that the turn or session that feedback is on exists, as far as that can be told.

        Raises:
            MeshError: NOT_FOUND.
        """
        open_turns = list(self._open.values())
        if self.missing is None or self._recorder.problem or any(
                feedback.turn_id.startswith(context.turn_id) if feedback.turn_id
                else feedback.session_id == context.session_id for context in open_turns):
            return
        if await self.missing(feedback):
            kind, value = ("turn", feedback.turn_id) if feedback.turn_id else ("session", feedback.session_id)
            raise errors.not_found(kind, value, "it is not of this mesh, or was forgotten. A turn's id is in the "
                                                "header X-OpenClaw-Turn-Id and in the `id` of a response")

    async def feedback(self, feedback: turn_pb2.Feedback) -> str:
        """Record feedback on a turn or session; returns its id.

        Raises:
            MeshError: INVALID_ARGUMENT, neither turn nor session, no content, or a score out of range.
        """
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

    def tokenizer(self) -> TokenPolicy:
        """The policy, for its tokenizer.

        Raises:
            MeshError: UNAVAILABLE, not ready; FAILED_PRECONDITION, an API model's tokenizer is not here.
        """
        policy = self._ready()
        if isinstance(policy, TokenPolicy):
            return policy
        raise errors.failed_precondition("NO_WEIGHTS", f"{self.model} is an API model, whose tokenizer is not here")

    def _ready(self) -> Policy:
        if self._policy is None or self._draining:
            raise errors.unavailable(self.state, retry_after=2.0)
        return self._policy

    def _session(self, origin: Origin, options: turn_pb2.TurnOptions, messages: list[turn_pb2.ChatMessage],
                 digests: Digests, same: RequestContext | None) -> tuple[str, turn_pb2.SessionSource.ValueType]:
        """Find a request's session. `same`: a request that it repeats while that one is still answered."""
        if options.session_id:
            return options.session_id, turn_pb2.SESSION_SOURCE_CLIENT
        if same is not None:
            return same.session_id, turn_pb2.SESSION_SOURCE_INFERRED
        if known := self._index.match(origin.client, messages, digests):
            return known, turn_pb2.SESSION_SOURCE_INFERRED
        return new_id("ses_"), turn_pb2.SESSION_SOURCE_NEW

    def _note_latency(self, context: RequestContext, transcript: Transcript) -> None:
        if not context.options.background:
            first = transcript.first_token_at
            self.latency.ended(time.time() - context.requested_at,
                               None if first is None else first - context.requested_at)

    def _settle(self, context: RequestContext, call: ChatCall, choice: int, transcript: Transcript,
                reason: turn_pb2.FinishReason.ValueType, refused: bool = False) -> turn_pb2.Turn | None:
        """End a choice; the turn to record, or None."""
        context.open_choices -= 1
        trace = generated(context, call, choice, transcript, reason, self.model, self.version)
        done = context.options.session_done and context.open_choices <= 0  # the last choice ends the session
        if refused or context.options.no_record:
            if done and context.options.session_id:
                self._recorder.session_end(turn_pb2.SessionEnd(
                    event_id=new_id("end_"), session_id=context.session_id, ended_at=now()))
            return None
        response = transcript.message()
        origin = context.origin
        turn = turn_pb2.Turn(
            turn_id=context.choice_id(choice), session_id=context.session_id, session_source=context.session_source,
            declared_type=context.options.turn_type, session_done=done, messages=call.messages, tools=call.tools,
            response=response, finish_reason=reason, tokens=transcript.record(), sampling=call.sampling,
            model=self.model, policy_version=transcript.version if transcript.first_token_at else self.version,
            requested_at=to_timestamp(context.requested_at), finished_at=now(), client=origin.client,
            metadata=context.metadata, api=origin.api, choice_index=choice, trace=trace, mesh_id=current_mesh())
        if transcript.first_token_at is not None:
            turn.first_token_at.CopyFrom(to_timestamp(transcript.first_token_at))
        if context.options.HasField("episode"):
            turn.episode.CopyFrom(context.options.episode)
        if self._recorder.forgot(turn):
            self.on_forgotten()
            return None
        if context.kept_messages is not None:
            self.history.keep(context.turn_id, Conversation(origin.payer or origin.client, context.session_id,
                                                            [*context.kept_messages, response]))
        if call.messages:
            complete = reason not in (turn_pb2.FINISH_REASON_CANCELLED, turn_pb2.FINISH_REASON_ERROR)
            said, digests = list(call.messages), context.digests
            if call.continue_final:  # the client keeps both parts as one message
                response.content, digests = text_of(said.pop()) + response.content, None
            self._index.remember(origin.client, context.session_id, said, response, digests, complete=complete,
                                 done=done)
        return turn


def _with_declared(options: turn_pb2.TurnOptions, messages: Sequence[turn_pb2.ChatMessage],
                   client: str) -> turn_pb2.TurnOptions:
    """The options, with what a framework says in its system message where the request itself says nothing."""
    said = declared(messages, client)
    if (options.session_id or not said.session_id) and (options.turn_type or not said.turn_type):
        return options
    result = turn_pb2.TurnOptions()
    result.CopyFrom(options)
    result.session_id = options.session_id or said.session_id
    result.turn_type = options.turn_type or said.turn_type
    return result
