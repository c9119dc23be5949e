"""Finding the turn or session that feedback is on."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable

import grpc
from google.protobuf.message import DecodeError

from openclaw_rl.rpc.channel import connect
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1 import environment_pb2, environment_pb2_grpc, turn_pb2

logger = logging.getLogger(__name__)

#: Seconds that the environment server has for its answer; without one the feedback is taken.
SECONDS = 2.0


class TurnLookup:
    """Looks for a turn where it may be: on its way, or with the environment server.

    Args:
        outbox: of turns; a row has the id of its turn.
        resolve: the environment server's address, None while it is not known.
    """

    def __init__(self, outbox: Outbox, resolve: Callable[[], str | None]) -> None:
        self._outbox, self._resolve = outbox, resolve

    async def missing(self, feedback: turn_pb2.Feedback) -> bool:
        """Whether there is certainly no such turn, or no turn of the session. Never raises."""
        request = environment_pb2.ListTurnsRequest(page_size=1, include_superseded=True)
        if feedback.turn_id:
            request.turn_ids.append(feedback.turn_id)
        else:
            request.session_id = feedback.session_id
        try:
            # First on its way, then at its end: it may arrive between the two.
            if await asyncio.to_thread(self._under_way, feedback) or (address := self._resolve()) is None:
                return False
            async with asyncio.timeout(SECONDS), connect(address, "env_server") as channel:
                reply = await environment_pb2_grpc.EnvironmentServiceStub(channel).ListTurns(request)
        except (TimeoutError, grpc.RpcError, MeshError, OSError, sqlite3.Error, DecodeError) as error:
            logger.info("whether there is the turn that feedback is on is not known: %s", error)
            return False
        return not reply.turns

    def _under_way(self, feedback: turn_pb2.Feedback) -> bool:
        if feedback.turn_id:
            return self._outbox.has(feedback.turn_id)
        return bool(self._outbox.find(lambda payload: _session(payload) == feedback.session_id).ids)


def _session(payload: bytes) -> str:
    return environment_pb2.PolicyEvent.FromString(payload).turn.session_id
