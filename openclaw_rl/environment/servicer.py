"""EnvironmentService over gRPC: translate, call, translate back."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc

from openclaw_rl.delivery.receiver import receive
from openclaw_rl.delivery.store import Store
from openclaw_rl.environment import views
from openclaw_rl.environment.sessions import SessionBook
from openclaw_rl.mesh.errors import invalid, unimplemented
from openclaw_rl.v1 import environment_pb2 as pb
from openclaw_rl.v1 import environment_pb2_grpc

SERVICE = pb.DESCRIPTOR.services_by_name["EnvironmentService"].full_name


class EnvironmentServicer(environment_pb2_grpc.EnvironmentServiceServicer):
    """Sessions work; live sessions and sandboxes are part of the contract, and come later."""

    def __init__(self, book: SessionBook, store: Store) -> None:
        self._book, self._store = book, store

    async def RecordTurns(self, request_iterator: AsyncIterator[pb.RecordTurnsRequest],
                          context: grpc.aio.ServicerContext) -> AsyncIterator[pb.RecordTurnsResponse]:
        async for response in receive(request_iterator, lambda request: list(request.events), self._book.handle,
                                      lambda acks: pb.RecordTurnsResponse(acks=acks)):
            yield response

    async def GetSession(self, request: pb.GetSessionRequest,
                         context: grpc.aio.ServicerContext) -> pb.GetSessionResponse:
        session, turns = views.session(self._store, _session_id(request))
        return pb.GetSessionResponse(session=session, turns=turns)

    async def EndSession(self, request: pb.EndSessionRequest,
                         context: grpc.aio.ServicerContext) -> pb.EndSessionResponse:
        views.row_of_session(self._store, _session_id(request))  # raises when there is none
        return pb.EndSessionResponse(closed_turns=self._book.end(request.session_id))

    async def ListTurns(self, request: pb.ListTurnsRequest, context: grpc.aio.ServicerContext) -> pb.ListTurnsResponse:
        return views.turns(self._store, request)

    async def Interact(self, request_iterator: AsyncIterator[pb.InteractRequest],
                       context: grpc.aio.ServicerContext) -> AsyncIterator[pb.InteractResponse]:
        raise unimplemented("Interact")
        yield  # makes this a stream handler

    async def Acquire(self, request: pb.AcquireRequest, context: grpc.aio.ServicerContext) -> pb.AcquireResponse:
        raise unimplemented("leasing sandboxes")

    async def Reset(self, request: pb.ResetRequest, context: grpc.aio.ServicerContext) -> pb.ResetResponse:
        raise unimplemented("leasing sandboxes")

    async def Step(self, request: pb.StepRequest, context: grpc.aio.ServicerContext) -> pb.StepResponse:
        raise unimplemented("leasing sandboxes")

    async def Evaluate(self, request: pb.EvaluateRequest, context: grpc.aio.ServicerContext) -> pb.EvaluateResponse:
        raise unimplemented("leasing sandboxes")

    async def Renew(self, request: pb.RenewRequest, context: grpc.aio.ServicerContext) -> pb.RenewResponse:
        raise unimplemented("leasing sandboxes")

    async def Release(self, request: pb.ReleaseRequest, context: grpc.aio.ServicerContext) -> pb.ReleaseResponse:
        raise unimplemented("leasing sandboxes")

    async def RunEpisodes(self, request: pb.RunEpisodesRequest,
                          context: grpc.aio.ServicerContext) -> AsyncIterator[pb.RunEpisodesResponse]:
        raise unimplemented("RunEpisodes")
        yield  # makes this a stream handler


def _session_id(request: pb.GetSessionRequest | pb.EndSessionRequest) -> str:
    if not request.session_id:
        raise invalid("session_id", "", "the id of a session")
    return request.session_id
