"""Live session over gRPC: messages come in, the policy's turns go out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from openclaw_rl.rollouts.episodes.policy_client import PolicyCaller
from openclaw_rl.rollouts.tracking.tracker import SessionTracker
from openclaw_rl.rpc.errors import invalid, unavailable
from openclaw_rl.rpc.messages import now
from openclaw_rl.storage.database import Database
from openclaw_rl.v1 import environment_pb2 as pb
from openclaw_rl.v1 import policy_pb2, turn_pb2

#: Seconds to wait for the record of the last turn before its session is ended.
_RECORD_SECONDS = 10.0
_POLL_SECONDS = 0.05
#: Most messages of a session.
_MOST_MESSAGES = 5000


class LiveSession:
    """A live session.

    Args:
        user: the caller. For the policy server the turns are this client's, as if it had called there itself.
    """

    def __init__(self, policy: PolicyCaller, tracker: SessionTracker, store: Database,
                 user: turn_pb2.OnBehalfOf) -> None:
        self._policy, self._tracker, self._store, self._user = policy, tracker, store, user
        self._options: turn_pb2.TurnOptions | None = None
        self._done = False
        self._messages: list[turn_pb2.ChatMessage] = []
        self._tools: list[turn_pb2.ToolDefinition] = []
        self._sampling = turn_pb2.SamplingParams()
        self._last = ""  # id of the last turn

    async def run(self, requests: AsyncIterator[pb.InteractRequest]) -> AsyncIterator[pb.InteractResponse]:
        """Answer until the client closes its side. Closing the iterator cancels a response in progress.

        Raises:
            MeshError: the policy server rejects a request.
        """
        async for request in requests:
            self._take(request)
            if request.messages:
                async with aclosing(self._answer()) as responses:  # type: ignore[type-var]
                    async for response in responses:
                        yield response
        if self._done and self._options is not None and self._options.session_id:
            await self._await_record()
            await self._store.call(self._tracker.end, self._options.session_id)

    def _take(self, request: pb.InteractRequest) -> None:
        if self._options is None:
            self._options = turn_pb2.TurnOptions()
            self._options.CopyFrom(request.turn)
            self._options.ClearField("episode")  # the environment server's own
            self._options.on_behalf_of.CopyFrom(self._user)
            self._done, self._options.session_done = self._options.session_done, False
        if len(self._messages) + len(request.messages) > _MOST_MESSAGES:
            raise invalid("messages", f"{len(self._messages) + len(request.messages)} messages",
                          f"at most {_MOST_MESSAGES} in one session")
        self._messages += request.messages
        if request.tools:
            self._tools = list(request.tools)
        if request.HasField("sampling"):
            self._sampling = request.sampling

    async def _answer(self) -> AsyncIterator[pb.InteractResponse]:
        assert self._options is not None
        turn = turn_pb2.Turn(messages=self._messages, tools=self._tools, requested_at=now(), api="grpc.chat",
                             declared_type=self._options.turn_type)
        request = policy_pb2.ChatRequest(messages=self._messages, tools=self._tools, sampling=self._sampling,
                                         turn=self._options)
        async with aclosing(self._policy.stream(request)) as responses:  # type: ignore[type-var]
            async for response in responses:
                kind = response.WhichOneof("event")
                if kind == "start":
                    start = response.start
                    turn.turn_id, turn.session_id, turn.model = start.turn_id, start.session_id, start.model
                    turn.policy_version = start.policy_version
                    turn.first_token_at.CopyFrom(now())
                    self._options.session_id = start.session_id
                elif kind == "delta" and response.delta.content:
                    yield pb.InteractResponse(content=response.delta.content)
                elif kind == "end":
                    turn.response.CopyFrom(response.end.message)
                    turn.finish_reason = response.end.generation.finish_reason
                    turn.sampling.CopyFrom(self._sampling)
                    turn.finished_at.CopyFrom(now())
                    self._messages.append(response.end.message)
                    self._last = turn.turn_id
                    yield pb.InteractResponse(turn=turn)
                    return
        raise unavailable("the policy's response broke off")

    async def _await_record(self) -> None:
        """Wait for the last turn's record: it would reopen the session."""
        if not self._last:
            return
        for _ in range(round(_RECORD_SECONDS / _POLL_SECONDS)):
            rows = await self._store.read(self._store.query, "SELECT 1 FROM turns WHERE id = ?", (self._last,))
            if rows:
                return
            await asyncio.sleep(_POLL_SECONDS)
