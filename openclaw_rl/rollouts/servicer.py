"""gRPC servicer of the environment server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import grpc

from openclaw_rl.delivery.receiver import receive
from openclaw_rl.rollouts.episodes.runner import Episodes
from openclaw_rl.rollouts.episodes.servicer import EpisodeRpcs
from openclaw_rl.rollouts.leases.pool import LeasePool
from openclaw_rl.rollouts.leases.servicer import LeaseRpcs
from openclaw_rl.rollouts.tracking import views
from openclaw_rl.rollouts.tracking.tracker import SessionTracker
from openclaw_rl.rpc.errors import invalid
from openclaw_rl.storage.database import Database
from openclaw_rl.v1 import environment_pb2 as pb
from openclaw_rl.v1 import environment_pb2_grpc

SERVICE = pb.DESCRIPTOR.services_by_name["EnvironmentService"].full_name


class EnvironmentServicer(LeaseRpcs, EpisodeRpcs, environment_pb2_grpc.EnvironmentServiceServicer):
    """Sessions; leases and episodes have servicers of their own."""

    def __init__(self, tracker: SessionTracker, store: Database, pool: LeasePool, episodes: Episodes) -> None:
        LeaseRpcs.__init__(self, pool)
        EpisodeRpcs.__init__(self, episodes)
        self._tracker, self._store = tracker, store

    async def RecordTurns(self, request_iterator: AsyncIterator[pb.RecordTurnsRequest],
                          context: grpc.aio.ServicerContext) -> AsyncIterator[pb.RecordTurnsResponse]:
        handle = partial(self._store.call, self._tracker.handle)
        async for response in receive(request_iterator, lambda request: list(request.events), handle,
                                      lambda acks: pb.RecordTurnsResponse(acks=acks)):
            yield response

    async def GetSession(self, request: pb.GetSessionRequest,
                         context: grpc.aio.ServicerContext) -> pb.GetSessionResponse:
        session, turns = await self._store.read(views.session, self._store, _session_id(request))
        feedback = await self._store.read(views.feedback, self._store, request.session_id)
        return pb.GetSessionResponse(session=session, turns=turns, feedback=feedback)

    async def EndSession(self, request: pb.EndSessionRequest,
                         context: grpc.aio.ServicerContext) -> pb.EndSessionResponse:
        await self._store.read(views.row_of_session, self._store, _session_id(request))  # raises when there is none
        return pb.EndSessionResponse(closed_turns=await self._store.call(self._tracker.end, request.session_id))

    async def ListTurns(self, request: pb.ListTurnsRequest, context: grpc.aio.ServicerContext) -> pb.ListTurnsResponse:
        return await self._store.read(views.turns, self._store, request)


def _session_id(request: pb.GetSessionRequest | pb.EndSessionRequest) -> str:
    if not request.session_id:
        raise invalid("session_id", "", "the id of a session")
    return request.session_id
