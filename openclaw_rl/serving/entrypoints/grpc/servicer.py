"""PolicyService over gRPC: translates between its messages and the chat service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

import grpc
from opentelemetry.trace import Span

from openclaw_rl.observability import request_spans
from openclaw_rl.rpc import errors
from openclaw_rl.rpc.auth.authorize import called_by, caller
from openclaw_rl.rpc.auth.callers import client_of
from openclaw_rl.serving.chat_service import ChatService
from openclaw_rl.serving.entrypoints.grpc.weights_service import WeightsService
from openclaw_rl.serving.interfaces import ChatCall, End, Origin, RequestContext, SampledToken, Start, version_limits
from openclaw_rl.serving.long_input import off_loop
from openclaw_rl.serving.token_policy import TokenPolicy
from openclaw_rl.serving.validation import check_messages, check_tool_choice, check_tools
from openclaw_rl.sessions.fingerprint import Digests, both_digests
from openclaw_rl.v1 import policy_pb2, policy_pb2_grpc, turn_pb2
from openclaw_rl.weights.identity import TRAINER_KEY


class PolicyServicer(policy_pb2_grpc.PolicyServiceServicer):
    """The policy server's RPCs.

    Callers are authenticated, limited and authorized by the server's interceptors, which also send errors.

    Attributes:
        scorer: None until the policy is ready, and for an API model.
        weights: None until the policy is ready.
    """

    def __init__(self, service: ChatService) -> None:
        self._service = service
        self.scorer: TokenPolicy | None = None
        self.weights: WeightsService | None = None

    async def Chat(self, request: policy_pb2.ChatRequest,
                   context: grpc.aio.ServicerContext) -> AsyncIterator[policy_pb2.ChatResponse]:
        size = request.ByteSize()
        if (limits := self._service.prompt_limits) is not None:
            limits.check_request(size)
            limits.check_messages(len(request.messages))

        def read() -> tuple[ChatCall, Digests]:
            check_messages(request.messages)
            check_tools(request.tools)
            messages, tools = list(request.messages), list(request.tools)
            return ChatCall(
                **version_limits(request.turn), messages=messages, tools=tools, sampling=request.sampling,
                tool_choice=check_tool_choice(request.tool_choice, tools), seconds=context.time_remaining(),
                parallel_tool_calls=request.parallel_tool_calls or not request.HasField("parallel_tool_calls")
            ), both_digests(messages)

        call, digests = await off_loop(size, read)
        async with self._opened(context, "Chat", request.turn, call.messages, dict(request.metadata),
                                digests, call.tools) as opened, \
                aclosing(self._service.run(opened, call)) as events:
            async for event in events:
                if isinstance(event, Start):
                    yield policy_pb2.ChatResponse(start=policy_pb2.ChatStart(
                        turn_id=opened.turn_id, session_id=opened.session_id, policy_version=event.version,
                        model=self._service.model))
                elif isinstance(event, End):
                    yield policy_pb2.ChatResponse(end=policy_pb2.ChatEnd(
                        generation=_generation_end(event), message=event.message))
                else:
                    yield policy_pb2.ChatResponse(delta=policy_pb2.ChatDelta(
                        content=event.text, tool_calls=event.tool_calls, tokens=map(_token, event.tokens)))

    async def Generate(self, request: policy_pb2.GenerateRequest,
                       context: grpc.aio.ServicerContext) -> AsyncIterator[policy_pb2.GenerateResponse]:
        self._check_tokens("prompt_ids", len(request.prompt_ids))
        options = turn_pb2.TurnOptions()
        options.CopyFrom(request.turn)
        if not options.session_id:
            options.no_record = True
        call = ChatCall(**version_limits(options), prompt_ids=list(request.prompt_ids), sampling=request.sampling)
        async with self._opened(context, "Generate", options, [], {}) as opened, \
                aclosing(self._service.run(opened, call)) as events:
            async for event in events:
                if isinstance(event, End):
                    yield policy_pb2.GenerateResponse(end=_generation_end(event))
                elif not isinstance(event, Start):
                    for token in event.tokens:
                        yield policy_pb2.GenerateResponse(token=_token(token))

    async def Score(self, request: policy_pb2.ScoreRequest,
                    context: grpc.aio.ServicerContext) -> policy_pb2.ScoreResponse:
        if not self._service.ready:
            raise errors.unavailable(self._service.state, retry_after=2.0)
        if self.scorer is None:
            raise errors.failed_precondition("NO_WEIGHTS", "the policy is an API model: it scores no tokens")
        self._check_tokens("token_ids", len(request.token_ids))
        logprobs, version = await self.scorer.score(
            list(request.token_ids), request.version if request.HasField("version") else None)
        return policy_pb2.ScoreResponse(logprobs=logprobs, version=version)

    async def SubmitFeedback(self, request: policy_pb2.SubmitFeedbackRequest,
                             context: grpc.aio.ServicerContext) -> policy_pb2.SubmitFeedbackResponse:
        request.feedback.client = client_of(context)
        return policy_pb2.SubmitFeedbackResponse(feedback_id=await self._service.feedback(request.feedback))

    async def SyncWeights(self, request_iterator: AsyncIterator[policy_pb2.SyncWeightsRequest],
                          context: grpc.aio.ServicerContext) -> AsyncIterator[policy_pb2.SyncWeightsResponse]:
        trainer = dict(context.invocation_metadata() or ()).get(TRAINER_KEY, "")
        stream = self._weights().sync(request_iterator, str(trainer))
        async with aclosing(stream) as responses:  # type: ignore[type-var]
            async for response in responses:
                yield response

    async def GetPolicy(self, request: policy_pb2.GetPolicyRequest,
                        context: grpc.aio.ServicerContext) -> policy_pb2.GetPolicyResponse:
        return await self._weights().get()

    async def WatchPolicy(self, request: policy_pb2.WatchPolicyRequest,
                          context: grpc.aio.ServicerContext) -> AsyncIterator[policy_pb2.WatchPolicyResponse]:
        async with aclosing(self._weights().watch()) as responses:  # type: ignore[type-var]
            async for response in responses:
                yield response

    async def ActivateVersion(self, request: policy_pb2.ActivateVersionRequest,
                              context: grpc.aio.ServicerContext) -> policy_pb2.ActivateVersionResponse:
        return await self._weights().activate(request)

    async def FetchWeights(self, request: policy_pb2.PolicyServiceFetchWeightsRequest,
                           context: grpc.aio.ServicerContext
                           ) -> AsyncIterator[policy_pb2.PolicyServiceFetchWeightsResponse]:
        async with aclosing(self._weights().fetch(request)) as responses:  # type: ignore[type-var]
            async for response in responses:
                yield response

    @asynccontextmanager
    async def _opened(self, context: grpc.aio.ServicerContext, method: str, options: turn_pb2.TurnOptions,
                      messages: list[turn_pb2.ChatMessage], metadata: dict[str, str], digests: Digests | None = None,
                      tools: Sequence[turn_pb2.ToolDefinition] = ()) -> AsyncIterator[RequestContext]:
        """Open a request and trace it to its end, in the trace that the caller's metadata names."""
        span = request_spans.rpc(f"openclaw_rl.v1.PolicyService/{method}", context.invocation_metadata() or ())
        status = "CANCELLED"
        try:
            origin = _origin(context, f"grpc.{method.lower()}", options, span)
            yield self._service.open(origin, options, messages, metadata, digests=digests, tools=tools)
            status = "OK"
        except errors.MeshError as error:
            status = error.code.name
            raise
        except Exception:
            status = "INTERNAL"
            raise
        finally:
            request_spans.answered(span, status)

    def _check_tokens(self, field: str, count: int) -> None:
        """Refuse more tokens than can fit, before a list is made of them."""
        if (limits := self._service.prompt_limits) is not None:
            limits.check_tokens(count, field)

    def _weights(self) -> WeightsService:
        if self.weights is None:
            raise errors.unavailable(self._service.state, retry_after=2.0)
        return self.weights


def _origin(context: grpc.aio.ServicerContext, api: str, options: turn_pb2.TurnOptions, span: Span | None) -> Origin:
    """The calling client, or the one on whose behalf the environment server calls."""
    client, payer = client_of(context), caller.get()[1]
    if not called_by("env_server"):  # from anybody else it is only a claim
        options.ClearField("episode")
        options.ClearField("on_behalf_of")
    if options.HasField("on_behalf_of"):
        client, payer = options.on_behalf_of.client, options.on_behalf_of.key_id
    return Origin(client=client, payer=payer, api=api, span=span)


def _token(token: SampledToken) -> policy_pb2.TokenChunk:
    return policy_pb2.TokenChunk(
        id=token.id, logprob=token.logprob, model_logprob=token.model_logprob, version=token.version,
        top=[policy_pb2.TokenAlternative(id=index, model_logprob=value) for index, value in token.top])


def _generation_end(end: End) -> policy_pb2.GenerationEnd:
    return policy_pb2.GenerationEnd(
        finish_reason=end.finish_reason, prompt_tokens=end.prompt_tokens, completion_tokens=end.completion_tokens,
        spans=end.record.spans if end.record else [])
