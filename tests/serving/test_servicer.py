"""PolicyService over a real gRPC server, with a stub engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import grpc
import pytest

from openclaw_rl.rpc.auth import authorize
from openclaw_rl.rpc.auth.callers import client_digest
from openclaw_rl.rpc.channel import connect
from openclaw_rl.rpc.errors import MeshError, from_rpc_error
from openclaw_rl.rpc.interceptor import ErrorInterceptor
from openclaw_rl.serving.admission import FairQueue
from openclaw_rl.serving.chat_service import ChatService
from openclaw_rl.serving.entrypoints.grpc import servicer
from openclaw_rl.serving.entrypoints.grpc.servicer import PolicyServicer
from openclaw_rl.serving.event_recorder import SCHEMA, TurnRecorder
from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.serving.token_policy import TokenPolicy
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1 import environment_pb2, policy_pb2, policy_pb2_grpc, turn_pb2
from tests.serving.stub import EOS, StubEngine
from tests.support.loop import held_at_most


class Rig:
    """A served policy and what it recorded."""

    def __init__(self, folder: Path, template: ChatTemplate) -> None:
        self.template = template
        self.engine = StubEngine(lambda _prompt: [*template.encode("Hello!"), EOS])
        self.store = Database(folder / "state.db", "group", SCHEMA)
        self.outbox = Outbox(self.store, "turns")
        self.turns = ChatService(TurnRecorder(self.store, self.outbox), "stub")
        self.servicer = PolicyServicer(self.turns)
        self.stub: policy_pb2_grpc.PolicyServiceAsyncStub

    def ready(self) -> None:
        policy = TokenPolicy(self.engine, self.template)
        self.servicer.scorer = policy
        self.turns.mark_ready(policy)

    def recorded(self) -> list[turn_pb2.Turn]:
        rows = self.outbox.window(0, 100, 2**24)
        return [environment_pb2.PolicyEvent.FromString(row.payload).turn for row in rows]


@pytest.fixture
async def rig(tmp_path: Path, template: ChatTemplate) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path, template)
    server = grpc.aio.server(interceptors=[ErrorInterceptor()])
    policy_pb2_grpc.add_PolicyServiceServicer_to_server(rig.servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with connect(f"127.0.0.1:{port}") as channel:
        rig.stub = policy_pb2_grpc.PolicyServiceStub(channel)  # type: ignore[assignment]
        yield rig
    await server.stop(0)
    rig.store.close()


def chat(**kwargs: object) -> policy_pb2.ChatRequest:
    return policy_pb2.ChatRequest(messages=[turn_pb2.ChatMessage(role="user", content="Hi")],
                                  **kwargs)  # type: ignore[arg-type]


async def refused(call: object) -> MeshError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        if hasattr(call, "__aiter__"):
            async for _ in call:  # type: ignore[union-attr]
                pass
        else:
            await call  # type: ignore[misc]
    return from_rpc_error(caught.value)


async def test_chat(rig: Rig) -> None:
    rig.ready()
    events = [event async for event in rig.stub.Chat(chat(
        turn=turn_pb2.TurnOptions(session_id="s", turn_type="side"), metadata={"a": "b"},
        sampling=turn_pb2.SamplingParams(top_logprobs=1)))]
    start, *deltas, end = events
    turn, = rig.recorded()
    assert (start.start.turn_id, start.start.session_id, start.start.policy_version) == (turn.turn_id, "s", 3)
    assert "".join(event.delta.content for event in deltas) == "Hello!" == end.end.message.content
    tokens = [token for event in deltas for token in event.delta.tokens]
    assert [token.id for token in tokens] == list(turn.tokens.response_ids)
    assert (tokens[0].version, tokens[0].model_logprob, len(tokens[0].top)) == (3, -0.25, 1)
    assert end.end.generation.finish_reason == turn_pb2.FINISH_REASON_STOP
    assert end.end.generation.completion_tokens == len(tokens)
    assert (turn.api, turn.declared_type, dict(turn.metadata)) == ("grpc.chat", "side", {"a": "b"})


async def test_generate_is_recorded_only_with_a_session(rig: Rig) -> None:
    rig.ready()
    request = policy_pb2.GenerateRequest(prompt_ids=[5, 6])
    *tokens, end = [event async for event in rig.stub.Generate(request)]
    assert [event.token.id for event in tokens] == [*rig.template.encode("Hello!"), EOS]
    assert (end.end.prompt_tokens, end.end.completion_tokens) == (2, len(tokens))
    assert [(span.version, span.begin, span.end) for span in end.end.spans] == [(3, 0, len(tokens))]
    assert rig.recorded() == []
    request.turn.session_id = "s"
    assert [event async for event in rig.stub.Generate(request)]
    turn, = rig.recorded()
    assert (turn.api, list(turn.tokens.prompt_ids)) == ("grpc.generate", [5, 6])


SAID = turn_pb2.TurnOptions(session_id="s", on_behalf_of=turn_pb2.OnBehalfOf(client="ann:0", key_id="key_ann"),
                            episode=turn_pb2.EpisodeStep(episode_id="e", step=1))


class Slots(FairQueue):
    """Remembers who asked for one."""

    def __init__(self) -> None:
        super().__init__(4, 10)
        self.asked: list[tuple[str, bool]] = []

    def slot(self, client: str, background: bool = False) -> AbstractAsyncContextManager[None]:
        self.asked.append((client, background))
        return super().slot(client, background)


@pytest.mark.parametrize(("role", "believed"), [("", True), ("env_server", True), ("operator", False),
                                                ("trainer", False), ("key", False)])
async def test_only_the_environment_server_asks_for_others_and_has_episodes(
    rig: Rig, role: str, believed: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:
    def certified() -> None:
        if role == "key":
            authorize.caller.set(("sk-bob", "key_bob"))
        else:
            authorize.caller_role.set(role)

    rig.ready()
    rig.turns.queue = slots = Slots()
    for method in ("Chat", "Generate"):
        plain = getattr(PolicyServicer, method)

        async def called(self: PolicyServicer, request: object, context: grpc.aio.ServicerContext,
                         plain: Callable[..., AsyncIterator[object]] = plain) -> AsyncIterator[object]:
            certified()
            async for response in plain(self, request, context):
                yield response

        monkeypatch.setattr(rig.servicer, method, called.__get__(rig.servicer))
    server = grpc.aio.server(interceptors=[ErrorInterceptor()])
    policy_pb2_grpc.add_PolicyServiceServicer_to_server(rig.servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with connect(f"127.0.0.1:{port}") as channel:
        stub = policy_pb2_grpc.PolicyServiceStub(channel)
        assert [event async for event in stub.Chat(chat(turn=SAID))]
        assert [event async for event in stub.Generate(policy_pb2.GenerateRequest(prompt_ids=[5, 6], turn=SAID))]
    await server.stop(0)
    key = "sk-bob" if role == "key" else ""
    client = "ann:0" if believed else client_digest(key, "ipv4:127.0.0.1", "")
    for turn in rig.recorded():
        assert (turn.client, turn.HasField("episode")) == (client, believed), turn.api
    assert {turn.api for turn in rig.recorded()} == {"grpc.chat", "grpc.generate"}
    assert slots.asked == [("key_ann" if believed else "key_bob" if key else client, False)] * 2


async def test_score(rig: Rig) -> None:
    rig.ready()
    reply = await rig.stub.Score(policy_pb2.ScoreRequest(token_ids=[4, 5, 6]))
    assert (list(reply.logprobs), reply.version) == ([-1.0, -1.0], 3)
    for request, field in ((policy_pb2.ScoreRequest(token_ids=[4]), "token_ids"),
                           (policy_pb2.ScoreRequest(token_ids=[4, 99_999]), "token_ids[1]")):
        assert (await refused(rig.stub.Score(request))).violations[0][0] == field
    error = await refused(rig.stub.Score(policy_pb2.ScoreRequest(token_ids=[4, 5], version=9)))
    assert error.reason == "VERSION_NOT_ACTIVE"


@pytest.mark.parametrize(("request_", "field"), [
    (policy_pb2.ChatRequest(), "messages"),
    (policy_pb2.ChatRequest(messages=[turn_pb2.ChatMessage(role="bard")]), "messages[0].role"),
    (chat(sampling=turn_pb2.SamplingParams(temperature=float("nan"))), "temperature"),
    (chat(sampling=turn_pb2.SamplingParams(max_tokens=-5)), "max_tokens"),
    (chat(sampling=turn_pb2.SamplingParams(stop_token_ids=[10**6])), "stop_token_ids[0]"),
    (chat(tool_choice="f"), "tool_choice"),
    (chat(tools=[turn_pb2.ToolDefinition(name="f", parameters_json="[")]), "tools[0].function.parameters"),
    (chat(turn=turn_pb2.TurnOptions(session_id="x" * 300)), "session_id"),
    (policy_pb2.GenerateRequest(), "prompt_ids"),
    (policy_pb2.GenerateRequest(prompt_ids=[1, -7]), "prompt_ids[1]"),
    (policy_pb2.SubmitFeedbackRequest(feedback=turn_pb2.Feedback(score=1)), "turn_id"),
    (policy_pb2.SubmitFeedbackRequest(feedback=turn_pb2.Feedback(turn_id="t", score=3)), "score")])
async def test_bad_requests_name_the_field(rig: Rig, request_: object, field: str) -> None:
    rig.ready()
    method = {"ChatRequest": rig.stub.Chat, "GenerateRequest": rig.stub.Generate,
              "SubmitFeedbackRequest": rig.stub.SubmitFeedback}[type(request_).__name__]
    error = await refused(method(request_))  # type: ignore[operator]
    assert (error.code, error.violations[0][0]) == (grpc.StatusCode.INVALID_ARGUMENT, field)
    assert rig.recorded() == []


@pytest.mark.parametrize(("rpc", "make", "field"), [
    ("Chat", lambda: chat(metadata={"a": "word " * 600_000}), "messages"),
    ("Chat", lambda: policy_pb2.ChatRequest(messages=[*chat().messages] * 3_000), "messages"),
    ("Generate", lambda: policy_pb2.GenerateRequest(prompt_ids=[5] * 1_000_000), "prompt_ids"),
    ("Score", lambda: policy_pb2.ScoreRequest(token_ids=[5] * 1_000_000), "token_ids")],
    ids=["bytes", "messages", "tokens", "score"])
async def test_what_can_not_fit_is_refused_unread(rig: Rig, monkeypatch: pytest.MonkeyPatch, rpc: str,
                                                  make: Callable[[], Any], field: str) -> None:
    def unread(*_: object) -> None:
        raise AssertionError("a request that can't fit was read")

    rig.ready()
    monkeypatch.setattr(servicer, "check_messages", unread)
    monkeypatch.setattr(TokenPolicy, "_check_ids", unread)
    request = make()
    with held_at_most(0.1):
        error = await refused(getattr(rig.stub, rpc)(request))
    assert (error.reason, error.violations[0][0]) == ("CONTEXT_TOO_LONG", field)
    assert not rig.engine.prompts and not rig.recorded()


async def test_versions_can_be_pinned(rig: Rig) -> None:
    rig.ready()
    for options in (turn_pb2.TurnOptions(exact_version=3), turn_pb2.TurnOptions(min_version=2)):
        assert [event async for event in rig.stub.Chat(chat(turn=options))]
    for options in (turn_pb2.TurnOptions(exact_version=2), turn_pb2.TurnOptions(min_version=4)):
        error = await refused(rig.stub.Chat(chat(turn=options)))
        assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "VERSION_NOT_ACTIVE")
        assert error.retryable and "version 3 is active" in error.message


async def test_busy_and_starting(rig: Rig) -> None:
    for call in (rig.stub.Chat(chat()), rig.stub.GetPolicy(policy_pb2.GetPolicyRequest()),
                 rig.stub.Score(policy_pb2.ScoreRequest(token_ids=[1, 2]))):
        error = await refused(call)
        assert (error.code, error.retry_after) == (grpc.StatusCode.UNAVAILABLE, 2.0)
    rig.ready()
    rig.engine.busy = True
    error = await refused(rig.stub.Chat(chat()))
    assert (error.code, error.retry_after) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 3.0)


async def test_a_cancelled_call_leaves_the_engine_and_is_recorded(rig: Rig) -> None:
    rig.ready()
    rig.engine.gate = asyncio.Event()
    call = rig.stub.Chat(chat())
    assert (await call.read()).start.turn_id
    call.cancel()
    async with asyncio.timeout(5):
        while rig.engine.running or not rig.recorded():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    turn, = rig.recorded()
    assert turn.finish_reason == turn_pb2.FINISH_REASON_CANCELLED and rig.turns.running == 0


async def test_feedback(rig: Rig) -> None:
    reply = await rig.stub.SubmitFeedback(policy_pb2.SubmitFeedbackRequest(
        feedback=turn_pb2.Feedback(turn_id="t", score=-1, comment="no")))
    row, = rig.outbox.window(0, 10, 2**20)
    feedback = environment_pb2.PolicyEvent.FromString(row.payload).feedback
    assert (feedback.feedback_id, feedback.turn_id, feedback.score) == (reply.feedback_id, "t", -1)
    assert feedback.client and feedback.HasField("given_at")
