"""Live sessions: messages in, the policy's turns out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from openclaw_rl.rollouts.episodes.servicer import EpisodeRpcs
from openclaw_rl.rpc.auth.callers import client_digest
from openclaw_rl.rpc.channel import connect
from openclaw_rl.rpc.errors import CATALOGUE, MeshError
from openclaw_rl.rpc.interceptor import ErrorInterceptor
from openclaw_rl.v1 import environment_pb2 as pb
from openclaw_rl.v1 import environment_pb2_grpc
from openclaw_rl.v1.turn_pb2 import (
    NEXT_STATE_KIND_CONTINUED,
    NEXT_STATE_KIND_SESSION_ENDED,
    ChatMessage,
    EpisodeStep,
    OnBehalfOf,
    SamplingParams,
    ToolDefinition,
    TurnOptions,
)
from tests.rollouts.episodes.rig import Rig, say
from tests.rollouts.harness import user
from tests.support.waiting import eventually

ANN = OnBehalfOf(client="ann:0", key_id="key_ann")


class Client:
    """Says what a test wants, and reads what comes."""

    def __init__(self, rig: Rig, user: OnBehalfOf = ANN) -> None:
        self.said: asyncio.Queue[pb.InteractRequest | None] = asyncio.Queue()
        self.responses = rig.episodes.live_session(user).run(self._requests())

    async def _requests(self) -> AsyncIterator[pb.InteractRequest]:
        while (request := await self.said.get()) is not None:
            yield request

    async def turn(self, request: pb.InteractRequest) -> tuple[str, pb.InteractResponse]:
        """Say something; gives the text as it came, and the turn."""
        self.said.put_nowait(request)
        text = ""
        async with asyncio.timeout(10):
            while not (response := await anext(self.responses)).HasField("turn"):
                text += response.content
        return text, response

    async def leave(self) -> None:
        self.said.put_nowait(None)
        async with asyncio.timeout(15):
            assert [response async for response in self.responses] == []


async def test_a_session_goes_on_message_by_message(rig: Rig) -> None:
    rig.policy.script = lambda request: say(f"you said {len(request.messages)} things")
    client = Client(rig)
    tools = [ToolDefinition(name="ls")]
    text, first = await client.turn(pb.InteractRequest(
        messages=[ChatMessage(role="system", content="Be brief."), user("hi")], tools=tools,
        sampling=SamplingParams(temperature=0.5),
        turn=TurnOptions(turn_type="main", episode=EpisodeStep(episode_id="e"))))
    assert text == "you said 2 things " and first.turn.response.content == "you said 2 things"
    assert first.turn.session_id and first.turn.turn_id and len(first.turn.messages) == 2
    _, second = await client.turn(pb.InteractRequest(messages=[user("again")]))
    assert second.turn.response.content == "you said 4 things" and second.turn.session_id == first.turn.session_id
    last = rig.policy.requests[-1]
    assert last.turn.session_id == first.turn.session_id and list(last.tools) == tools
    assert last.sampling.temperature == 0.5 and not last.turn.HasField("episode")
    await client.leave()
    [transition] = rig.sent()
    assert transition.next_state.kind == NEXT_STATE_KIND_CONTINUED and transition.turn.turn_id == first.turn.turn_id


async def test_the_end_of_the_stream_ends_the_session_when_that_was_said(rig: Rig) -> None:
    rig.policy.hold = True
    rig.policy.script = lambda request: say("hello")
    client = Client(rig)
    await client.turn(pb.InteractRequest(messages=[user("hi")], turn=TurnOptions(session_id="mine", session_done=True)))
    assert not rig.policy.requests[0].turn.session_done  # another turn may follow
    leaving = asyncio.create_task(client.leave())
    await asyncio.sleep(0)
    rig.harness.tell(*rig.policy.held)  # its record comes late
    await leaving
    [transition] = rig.sent()
    assert transition.next_state.kind == NEXT_STATE_KIND_SESSION_ENDED and transition.turn.session_id == "mine"


async def test_the_policy_is_told_for_whom_it_is_asked_whoever_the_client_says_it_is(rig: Rig) -> None:
    rig.policy.script = lambda request: say("hello")
    bob = OnBehalfOf(client="bob:0", key_id="key_bob")
    client = Client(rig, bob)
    await client.turn(pb.InteractRequest(messages=[user("hi")], turn=TurnOptions(on_behalf_of=ANN)))
    await client.turn(pb.InteractRequest(messages=[user("again")]))
    assert [request.turn.on_behalf_of for request in rig.policy.requests] == [bob, bob]


async def test_who_calls_is_known_by_its_address(rig: Rig) -> None:
    rig.policy.script = lambda request: say("hello")
    server = grpc.aio.server(interceptors=[ErrorInterceptor()])
    service = environment_pb2_grpc.EnvironmentServiceServicer()
    service.Interact = EpisodeRpcs(rig.episodes).Interact  # type: ignore[method-assign]
    environment_pb2_grpc.add_EnvironmentServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    for _ in range(2):  # each connection has a port of its own
        async with connect(f"127.0.0.1:{port}") as channel:
            stream = environment_pb2_grpc.EnvironmentServiceStub(channel).Interact(
                iter([pb.InteractRequest(messages=[user("hi")])]))
            assert [response.turn.response.content async for response in stream][-1] == "hello"
    await server.stop(0)
    assert [request.turn.on_behalf_of for request in rig.policy.requests] == [
        OnBehalfOf(client=client_digest("", "ipv4:127.0.0.1", ""))] * 2


async def test_what_the_policy_refuses_ends_the_stream(rig: Rig) -> None:
    rig.policy.script = lambda request: MeshError(CATALOGUE["INVALID_ARGUMENT"][0], "INVALID_ARGUMENT", "messages: no")
    with pytest.raises(MeshError, match="messages: no"):
        await Client(rig).turn(pb.InteractRequest(messages=[user("hi")]))


async def test_who_goes_away_cancels_the_response(rig: Rig) -> None:
    forever: asyncio.Future[ChatMessage] = asyncio.get_running_loop().create_future()
    rig.policy.script = lambda request: forever
    client = Client(rig)
    waiting = asyncio.create_task(client.turn(pb.InteractRequest(messages=[user("hi")])))
    await eventually(lambda: rig.policy.running)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await eventually(lambda: rig.policy.running == 0)
