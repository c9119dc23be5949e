"""The small policy server: it answers with a few words that it makes up, and does all else as the contract has it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from openclaw_rl.conformance.weights_stream import piece
from openclaw_rl.rpc.channel import COMMON_OPTIONS
from openclaw_rl.rpc.errors import MeshError, failed_precondition, invalid, invalid_many, not_found
from openclaw_rl.rpc.interceptor import ErrorInterceptor
from openclaw_rl.rpc.messages import new_id, now
from openclaw_rl.serving.validation import check_id, check_messages, check_sampling, check_tool_choice, check_tools
from openclaw_rl.v1 import component_pb2, component_pb2_grpc, environment_pb2, policy_pb2_grpc, turn_pb2
from openclaw_rl.v1 import policy_pb2 as pb
from openclaw_rl.v1.common_pb2 import VersionSpan
from openclaw_rl.v1.weights_pb2 import WeightOffer
from tests.conformance.wrong_weights.outbox import Outbox
from tests.conformance.wrong_weights.stream import Receiver
from tests.conformance.wrong_weights.versions import Versions, spec_of

#: Log-probabilities of all its tokens.
LOGPROB, MODEL_LOGPROB = -0.5, -0.25
STEP = 0.002


class _Stream:
    """One stream of SyncWeights."""

    def __init__(self, trainer: str) -> None:
        self.trainer = trainer
        self.open = True
        self.answers: asyncio.Queue[Any] = asyncio.Queue()


class SmallPolicy(policy_pb2_grpc.PolicyServiceServicer, component_pb2_grpc.ComponentServiceServicer):
    """Each method is a place where a wrong one does otherwise; see faults.py.

    Args:
        data: folder of its own.
        environment: HOST:PORT; "" has none.
    """

    receiver_type: type[Receiver] = Receiver
    outbox_type: type[Outbox] = Outbox
    versions_type: type[Versions] = Versions
    tokens = False  #: it tells token ids: the bytes of its words

    def __init__(self, data: Path, environment: str = "") -> None:
        data.mkdir(parents=True, exist_ok=True)
        self.versions = self.versions_type(data / "versions", self.tokens)
        self.receiver = self.receiver_type(self.versions, data / "incoming")
        self.outbox = self.outbox_type(data / "outbox", environment)
        self.running = 0
        self.stream: _Stream | None = None

    def close(self) -> None:
        """Nothing to close here."""

    # -- chat ----------------------------------------------------------------------------------------------------

    async def Chat(self, request: pb.ChatRequest, context: Any) -> AsyncIterator[pb.ChatResponse]:
        self.check(request)
        version, turn_id = self.versions.active, self.turn_id()
        session = self.session(request)
        words = self.words(request)
        turn = turn_pb2.Turn(
            turn_id=turn_id, session_id=session, declared_type=request.turn.turn_type, model="small",
            session_done=request.turn.session_done, messages=request.messages, tools=request.tools,
            metadata=request.metadata, policy_version=self.told(version), requested_at=now(), api="grpc.chat",
            finish_reason=turn_pb2.FINISH_REASON_CANCELLED, response=turn_pb2.ChatMessage(role="assistant"))
        self.running += 1
        try:
            yield self.start(pb.ChatStart(turn_id=turn_id, session_id=session, policy_version=self.told(version),
                                          model="small"))
            for word in words:
                await asyncio.sleep(STEP)
                turn.response.content += word
                yield pb.ChatResponse(delta=pb.ChatDelta(
                    content=self.said(word), tokens=self.token_chunks(word, version)))
            turn.finish_reason = turn_pb2.FINISH_REASON_STOP
            generation = self.generation(turn.response.content, version)
            if self.tokens:
                ids = list(turn.response.content.encode())
                turn.tokens.CopyFrom(turn_pb2.TokenRecord(
                    prompt_ids=[1, 2, 3], response_ids=ids, logprobs=[LOGPROB] * len(ids),
                    model_logprobs=[MODEL_LOGPROB] * len(ids), spans=generation.spans))
            self.record(request, turn)
            yield pb.ChatResponse(end=pb.ChatEnd(generation=generation, message=turn.response))
        except (asyncio.CancelledError, GeneratorExit):
            self.record(request, turn)
            raise
        finally:
            self.ended()

    def check(self, request: pb.ChatRequest) -> None:
        check_messages(request.messages)
        check_tools(request.tools)
        check_tool_choice(request.tool_choice, request.tools)
        check_sampling(request.sampling)
        check_id("session_id", request.turn.session_id)
        self.check_version(request.turn)

    def check_version(self, options: turn_pb2.TurnOptions) -> None:
        active = self.versions.active
        if (options.HasField("min_version") and active < options.min_version) or (
                options.HasField("exact_version") and active != options.exact_version):
            raise MeshError(grpc.StatusCode.FAILED_PRECONDITION, "VERSION_NOT_ACTIVE", f"version {active} is active",
                            retry_after=1.0)

    def turn_id(self) -> str:
        return new_id("turn_")

    def session(self, request: pb.ChatRequest) -> str:
        return request.turn.session_id or new_id("ses_")

    def words(self, request: pb.ChatRequest) -> list[str]:
        count = 400 if "long" in request.messages[-1].content else 8
        return [f"word{i} " for i in range(min(count, request.sampling.max_tokens or 8))]

    def told(self, version: int) -> int:
        return version

    def start(self, start: pb.ChatStart) -> pb.ChatResponse:
        return pb.ChatResponse(start=start)

    def said(self, word: str) -> str:
        return word

    def token_chunks(self, text: str, version: int) -> list[pb.TokenChunk]:
        return [pb.TokenChunk(id=byte, logprob=LOGPROB, model_logprob=MODEL_LOGPROB, version=version)
                for byte in text.encode()] if self.tokens else []

    def generation(self, text: str, version: int) -> pb.GenerationEnd:
        count = len(text.encode())
        return pb.GenerationEnd(finish_reason=turn_pb2.FINISH_REASON_STOP, prompt_tokens=3, completion_tokens=count,
                                spans=self.spans(count, version))

    def spans(self, count: int, version: int) -> list[VersionSpan]:
        return [VersionSpan(version=version, begin=0, end=count)]

    def record(self, request: pb.ChatRequest, turn: turn_pb2.Turn) -> None:
        if not request.turn.no_record:
            turn.finished_at.CopyFrom(now())
            self.outbox.put(environment_pb2.PolicyEvent(turn=turn))

    def ended(self) -> None:
        self.running -= 1

    async def SubmitFeedback(self, request: pb.SubmitFeedbackRequest, context: Any) -> pb.SubmitFeedbackResponse:
        given = request.feedback
        bad = [("turn_id", "is missing")] * (not given.turn_id and not given.session_id)
        bad += [("score", "is missing")] * (not given.HasField("score") and not given.comment)
        bad += [("score", "is not from -1 to 1")] * (abs(given.score) > 1)
        if bad:
            raise invalid_many(bad)
        given.feedback_id = self.feedback_id(given)
        if not given.HasField("given_at"):
            given.given_at.CopyFrom(now())
        self.outbox.put(environment_pb2.PolicyEvent(feedback=given))
        return pb.SubmitFeedbackResponse(feedback_id=given.feedback_id)

    def feedback_id(self, given: turn_pb2.Feedback) -> str:
        return given.feedback_id or new_id("fb_")

    # -- token ids -----------------------------------------------------------------------------------------------

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        self.has_tokens()
        self.check_ids("prompt_ids", request.prompt_ids, 1)
        count = min(8, request.sampling.max_tokens or 8)
        for i in range(count):
            yield pb.GenerateResponse(token=self.generated(pb.TokenChunk(
                id=i, logprob=LOGPROB, model_logprob=MODEL_LOGPROB, version=self.versions.active,
                top=[pb.TokenAlternative(id=k, model_logprob=-1.0) for k in range(request.sampling.top_logprobs)])))
        yield pb.GenerateResponse(end=pb.GenerationEnd(
            finish_reason=turn_pb2.FINISH_REASON_LENGTH, prompt_tokens=len(request.prompt_ids), completion_tokens=count,
            spans=self.spans(count, self.versions.active)))

    def generated(self, token: pb.TokenChunk) -> pb.TokenChunk:
        return token

    def has_tokens(self) -> None:
        if not self.tokens:
            raise failed_precondition("NO_WEIGHTS", "there are no token ids")

    def check_ids(self, field: str, ids: Any, least: int) -> None:
        if len(ids) < least:
            raise invalid(field, list(ids), f"at least {least}")
        for i, token in enumerate(ids):
            if not 0 <= token < 256:
                raise invalid(f"{field}[{i}]", token, "from 0 to 255")

    async def Score(self, request: pb.ScoreRequest, context: Any) -> pb.ScoreResponse:
        self.has_tokens()
        self.check_ids("token_ids", request.token_ids, 2)
        if request.HasField("version") and request.version != self.versions.active:
            raise failed_precondition("VERSION_UNKNOWN", "another version is active")
        return pb.ScoreResponse(logprobs=self.scores(len(request.token_ids)), version=self.versions.active)

    def scores(self, count: int) -> list[float]:
        return [MODEL_LOGPROB] * (count - 1)

    # -- versions ------------------------------------------------------------------------------------------------

    def state(self) -> pb.PolicyState:
        return self.versions.state()

    async def GetPolicy(self, request: pb.GetPolicyRequest, context: Any) -> pb.GetPolicyResponse:
        return pb.GetPolicyResponse(state=self.state(), manifests=map(self.versions.manifest, self.versions.kept()))

    async def WatchPolicy(self, request: pb.WatchPolicyRequest, context: Any) -> AsyncIterator[pb.WatchPolicyResponse]:
        async with contextlib.aclosing(self.versions.subscribe()) as states:
            async for state in states:
                yield pb.WatchPolicyResponse(state=state)

    async def ActivateVersion(self, request: pb.ActivateVersionRequest, context: Any) -> pb.ActivateVersionResponse:
        self.versions.activate(request)
        if self.stream is not None:
            self.tell(self.stream)
        return pb.ActivateVersionResponse(state=self.versions.state())

    def tell(self, stream: _Stream) -> None:
        stream.answers.put_nowait(pb.SyncWeightsResponse(state=self.versions.state()))

    async def FetchWeights(self, request: pb.PolicyServiceFetchWeightsRequest, context: Any
                           ) -> AsyncIterator[pb.PolicyServiceFetchWeightsResponse]:
        if not self.versions.accepts_weights:
            raise failed_precondition("NO_WEIGHTS", "there are no weights to fetch")
        version = request.version if request.HasField("version") else self.versions.active
        if version not in self.versions.kept():
            raise not_found("version", str(version))
        data = self.versions.data(version)
        yield pb.PolicyServiceFetchWeightsResponse(offer=WeightOffer(
            manifest=self.versions.manifest(version), tensors=[spec_of(data)]))
        yield pb.PolicyServiceFetchWeightsResponse(chunk=piece(version, request.from_byte, data[request.from_byte :]))

    async def SyncWeights(self, requests: Any, context: Any) -> AsyncIterator[pb.SyncWeightsResponse]:
        trainer = dict(context.invocation_metadata() or ()).get("openclaw-trainer", "")
        before, stream = self.stream, _Stream(trainer)
        self.admit(before, trainer)
        self.stream = stream
        if before is not None and before.open:
            self.end_older(before)
        self.receiver.connected()
        self.opened(stream)

        async def serve() -> None:
            try:
                async for request in requests:
                    await self.take(request, stream)
            finally:
                stream.answers.put_nowait(None)

        serving = asyncio.create_task(serve())
        try:
            while (answer := await stream.answers.get()) is not None:
                if isinstance(answer, Exception):
                    raise answer
                yield answer
        finally:
            stream.open = False
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    def admit(self, before: _Stream | None, trainer: str) -> None:
        if before is not None and before.open and trainer and before.trainer and trainer != before.trainer:
            raise failed_precondition("ANOTHER_TRAINER", f"{before.trainer} is connected")

    def end_older(self, older: _Stream) -> None:
        older.answers.put_nowait(MeshError(grpc.StatusCode.ABORTED, "ABORTED", "a newer stream took over"))

    def opened(self, stream: _Stream) -> None:
        self.tell(stream)

    async def take(self, request: pb.SyncWeightsRequest, stream: _Stream) -> None:
        for answer in self.receiver.handle(request):
            stream.answers.put_nowait(answer)

    # -- the component -------------------------------------------------------------------------------------------

    async def GetStatus(self, request: Any, context: Any) -> component_pb2.GetStatusResponse:
        return component_pb2.GetStatusResponse(status=component_pb2.ComponentStatus(
            name="policy_server", state=component_pb2.COMPONENT_STATE_RUNNING, contract_version="1.0",
            policy_version=self.versions.active, gauges={"running": float(self.running)}))


class Serving:
    """A small policy server, listening from `start` to `stop`."""

    def __init__(self, policy: SmallPolicy, address: str = "127.0.0.1:0") -> None:
        self.policy, self.address = policy, address

    async def start(self) -> None:
        self._server = grpc.aio.server(interceptors=[ErrorInterceptor()], options=[
            *COMMON_OPTIONS, ("grpc.so_reuseport", 0), ("grpc.http2.min_ping_interval_without_data_ms", 10_000)])
        policy_pb2_grpc.add_PolicyServiceServicer_to_server(self.policy, self._server)
        component_pb2_grpc.add_ComponentServiceServicer_to_server(self.policy, self._server)
        checks = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(checks, self._server)
        await checks.set("", health_pb2.HealthCheckResponse.SERVING)
        port = self._server.add_insecure_port(self.address)
        self.address = f"127.0.0.1:{port}"
        await self._server.start()
        self._sending = asyncio.create_task(self.policy.outbox.run())

    async def stop(self) -> None:
        self.policy.close()
        self._sending.cancel()
        await asyncio.gather(self._sending, return_exceptions=True)
        await self._server.stop(0)
