"""Live sessions: messages in, the policy's turns out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from openclaw_rl.mesh.errors import CATALOGUE, MeshError
from openclaw_rl.v1 import environment_pb2 as pb
from openclaw_rl.v1.turn_pb2 import (
    NEXT_STATE_KIND_CONTINUED,
    NEXT_STATE_KIND_SESSION_ENDED,
    ChatMessage,
    EpisodeStep,
    SamplingParams,
    ToolDefinition,
    TurnOptions,
)

from ..pool.fake import until
from ..talk import user
from .rig import Rig, say


class Client:
    """Says what a test wants, and reads what comes."""

    def __init__(self, rig: Rig, owner: str = "") -> None:
        self.said: asyncio.Queue[pb.InteractRequest | None] = asyncio.Queue()
        self.responses = rig.episodes.live_session(owner).run(self._requests())

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
    rig.desk.tell(*rig.policy.held)  # its record comes late
    await leaving
    [transition] = rig.sent()
    assert transition.next_state.kind == NEXT_STATE_KIND_SESSION_ENDED and transition.turn.session_id == "mine"


async def test_sessions_of_two_keys_are_two(rig: Rig) -> None:
    rig.policy.script = lambda request: say("hello")
    said = pb.InteractRequest(messages=[user("hi")], turn=TurnOptions(session_id="mine"))
    _, one = await Client(rig, "a").turn(said)
    _, two = await Client(rig, "b").turn(said)
    assert (one.turn.session_id, two.turn.session_id) == ("mine@a", "mine@b")


async def test_what_the_policy_refuses_ends_the_stream(rig: Rig) -> None:
    rig.policy.script = lambda request: MeshError(CATALOGUE["INVALID_ARGUMENT"][0], "INVALID_ARGUMENT", "messages: no")
    with pytest.raises(MeshError, match="messages: no"):
        await Client(rig).turn(pb.InteractRequest(messages=[user("hi")]))


async def test_who_goes_away_cancels_the_response(rig: Rig) -> None:
    forever: asyncio.Future[ChatMessage] = asyncio.get_running_loop().create_future()
    rig.policy.script = lambda request: forever
    client = Client(rig)
    waiting = asyncio.create_task(client.turn(pb.InteractRequest(messages=[user("hi")])))
    await until(lambda: rig.policy.running)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await until(lambda: rig.policy.running == 0)
