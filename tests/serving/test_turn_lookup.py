"""Feedback on a turn that is not there is refused; whatever is not certain is taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from openclaw_rl.serving.event_recorder import SCHEMA
from openclaw_rl.serving.turn_lookup import TurnLookup
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1 import environment_pb2, environment_pb2_grpc, turn_pb2
from tests.serving.entrypoints.conftest import Entrypoint, open_entrypoint, template  # noqa: F401 (fixtures)

ASK = [{"role": "user", "content": "Hi"}]


class Environment(environment_pb2_grpc.EnvironmentServiceServicer):
    """Has the turn t1 of session s1."""

    async def ListTurns(self, request: Any, context: Any) -> environment_pb2.ListTurnsResponse:
        if "t9" in request.turn_ids:
            await context.abort(grpc.StatusCode.INTERNAL, "broken")
        found = "t1" in request.turn_ids or request.session_id == "s1"
        return environment_pb2.ListTurnsResponse(turns=[environment_pb2.TurnSummary(turn_id="t1")] * found)


@asynccontextmanager
async def environment() -> AsyncIterator[str]:
    server = grpc.aio.server()
    environment_pb2_grpc.add_EnvironmentServiceServicer_to_server(Environment(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@pytest.fixture
def outbox(tmp_path: Path) -> Any:
    database = Database(tmp_path / "state.db", "group", SCHEMA)
    yield Outbox(database, "turns")
    database.close()


async def test_where_a_turn_may_be(outbox: Outbox) -> None:
    waiting = environment_pb2.PolicyEvent(turn=turn_pb2.Turn(turn_id="t2", session_id="s2"))
    outbox.put("t2", waiting.SerializeToString())
    async with environment() as address:
        lookup = TurnLookup(outbox, lambda: address)

        async def missing(**fields: str) -> bool:
            return await lookup.missing(turn_pb2.Feedback(**fields))

        assert [await missing(turn_id=name) for name in ("t1", "t2", "t3", "t9")] == [False, False, True, False]
        assert [await missing(session_id=name) for name in ("s1", "s2", "s3")] == [False, False, True]
    for resolve in (lambda: None, lambda: "127.0.0.1:9"):  # not known, not there
        assert not await TurnLookup(outbox, resolve).missing(turn_pb2.Feedback(turn_id="t3"))


async def test_feedback_on_no_turn_is_a_404_that_says_so(open_entrypoint: Any) -> None:  # noqa: F811
    entrypoint: Entrypoint = await open_entrypoint()

    async def all_missing(feedback: turn_pb2.Feedback) -> bool:
        return True

    entrypoint.service.missing = all_missing
    async with entrypoint.http() as http:
        for body, word in (({"turn_id": "turn_nobody"}, "turn 'turn_nobody'"), ({"session_id": "s"}, "session 's'")):
            reply = await http.post("/v1/feedback", json={**body, "rating": "up"})
            assert reply.status_code == 404 and f"there is no {word}" in reply.json()["error"]["message"], reply.text
        assert entrypoint.events() == []
        entrypoint.engine.gate = asyncio.Event()  # after the first token
        asked = {"messages": ASK, "stream": True, "session_id": "running"}
        async with http.stream("POST", "/v1/chat/completions", json=asked) as response:
            turn = response.headers["x-openclaw-turn-id"]
            for body in ({"turn_id": turn}, {"session_id": "running"}):
                reply = await http.post("/v1/feedback", json={**body, "rating": "up"})
                assert reply.status_code == 200, reply.text
            entrypoint.engine.gate.set()
