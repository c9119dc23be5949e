"""Episodes in fake environments, with a scripted policy server over real gRPC."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc

from openclaw_rl.config.environment import EpisodesConfig
from openclaw_rl.rollouts.episodes.policy_client import PolicyCaller
from openclaw_rl.rollouts.episodes.runner import Episodes
from openclaw_rl.rollouts.leases.pool import LeasePool
from openclaw_rl.rollouts.tasks.task import Task
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.rpc.interceptor import ErrorInterceptor
from openclaw_rl.rpc.messages import new_id
from openclaw_rl.v1 import environment_pb2 as pb
from openclaw_rl.v1 import policy_pb2, policy_pb2_grpc
from openclaw_rl.v1.turn_pb2 import FINISH_REASON_STOP, ChatMessage, Transition, Turn
from tests.rollouts.harness import Harness, turn
from tests.rollouts.leases.fake import FakeType, fake_pool

TASKS = [Task(f"t{i}", "fake", f"Say done, {i}") for i in range(4)] + [
    Task("h0", "fake", "Held out", split="held_out"),
    Task("bad", "fake", "Broken", problem="tasks.yaml: check: is no check")]

Answer = ChatMessage | MeshError | Awaitable[ChatMessage]
#: What the policy says to a request.
Script = Callable[[policy_pb2.ChatRequest], Answer]


def call(name: str, arguments: dict[str, Any] | str | None = None, id: str = "") -> ChatMessage:
    """A response that is one call."""
    message = ChatMessage(role="assistant")
    message.tool_calls.add(id=id or new_id("call_"), name=name, arguments_json=arguments if isinstance(arguments, str)
                           else json.dumps(arguments or {}))
    return message


def say(text: str) -> ChatMessage:
    return ChatMessage(role="assistant", content=text)


def steps(*answers: Answer) -> Script:
    """The same answers in each episode, one after another; the last one again and again."""
    return lambda request: answers[min(request.turn.episode.step, len(answers)) - 1]


WELL = steps(call("say", {"text": "done"}, "c1"), call("submit", {}, "c2"))


class FakePolicy(policy_pb2_grpc.PolicyServiceServicer):
    """Records turns in the tracker, as a policy server's outbox does; or keeps them back in `held`."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.script: Script = WELL
        self.requests: list[policy_pb2.ChatRequest] = []
        self.hold = False
        self.held: list[Turn] = []
        self.running = 0
        self.most_running = 0

    async def Chat(self, request: policy_pb2.ChatRequest,
                   context: grpc.aio.ServicerContext) -> AsyncIterator[policy_pb2.ChatResponse]:
        self.requests.append(request)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            said = self.script(request)
            if isinstance(said, MeshError):
                raise said
            turn_id = new_id("turn_")
            session = request.turn.session_id or new_id("ses_")
            yield policy_pb2.ChatResponse(start=policy_pb2.ChatStart(
                turn_id=turn_id, session_id=session, policy_version=7, model="fake"))
            message = said if isinstance(said, ChatMessage) else await said
            for word in message.content.split():
                yield policy_pb2.ChatResponse(delta=policy_pb2.ChatDelta(content=word + " "))
            made = turn(turn_id, request.messages, message, session_id=session, tools=request.tools,
                        declared_type=request.turn.turn_type, api="grpc.chat", policy_version=7)
            if request.turn.HasField("episode"):
                made.episode.CopyFrom(request.turn.episode)
            if self.hold:
                self.held.append(made)
            else:
                self.rig.harness.tell(made)
            end = policy_pb2.GenerationEnd(finish_reason=FINISH_REASON_STOP)
            yield policy_pb2.ChatResponse(end=policy_pb2.ChatEnd(generation=end, message=message))
        finally:
            self.running -= 1


class Rig:
    def __init__(self, folder: Path, count: int = 4, **settings: Any) -> None:
        self.harness = Harness(folder)
        self.policy = FakePolicy(self)
        self.settings = EpisodesConfig(**settings)
        self.count = count
        self.address: str | None = None
        self.pool: LeasePool
        self.kind: FakeType
        self.episodes: Episodes
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self.pool, self.kind = fake_pool(self.count)
        self.pool.catalog._tasks["fake"] = TASKS
        await self.serve()
        self.caller = PolicyCaller(lambda: self.address)
        self.episodes = Episodes(self.pool, self.harness.tracker, self.harness.store, self.caller, self.settings)

    async def serve(self) -> None:
        """Start the policy, at an address of its own."""
        self._server = grpc.aio.server(interceptors=[ErrorInterceptor()])
        policy_pb2_grpc.add_PolicyServiceServicer_to_server(self.policy, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()

    async def kill_policy(self) -> None:
        assert self._server is not None
        await self._server.stop(None)

    async def stop(self) -> None:
        await self.episodes.close()
        await self.pool.close()
        await self.caller.close()
        await self.kill_policy()
        self.harness.store.close()

    async def run(self, **fields: Any) -> list[pb.RunEpisodesResponse]:
        """A whole run; default: one episode of the first task."""
        request = pb.RunEpisodesRequest(**{"type": "fake", "task_ids": ["t0"], "group_size": 1, **fields})
        async with asyncio.timeout(20), aclosing(self.episodes.run(request)) as events:  # type: ignore[type-var]
            return [event async for event in events]

    async def one(self, **fields: Any) -> pb.Episode:
        """An episode of the first task, when it is over."""
        return (await self.run(**fields))[-1].episode

    def sent(self) -> list[Transition]:
        return self.harness._sent()

    def listed(self, **fields: Any) -> list[pb.Episode]:
        return list(self.episodes.page(pb.ListEpisodesRequest(**fields)).episodes)
