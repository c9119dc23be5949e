"""gRPC servicer of the judge."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc

from openclaw_rl.delivery.receiver import receive
from openclaw_rl.reward.service import JudgeService
from openclaw_rl.rpc.errors import invalid, invalid_many
from openclaw_rl.v1 import judge_pb2 as pb
from openclaw_rl.v1 import judge_pb2_grpc

SERVICE = pb.DESCRIPTOR.services_by_name["JudgeService"].full_name
#: Turns of one ListJudgements.
_MOST_TURNS = 1000


class JudgeServicer(judge_pb2_grpc.JudgeServiceServicer):
    """Translates between messages and the service."""

    def __init__(self, service: JudgeService) -> None:
        self._service = service

    async def JudgeTransitions(self, request_iterator: AsyncIterator[pb.JudgeTransitionsRequest],
                               context: grpc.aio.ServicerContext) -> AsyncIterator[pb.JudgeTransitionsResponse]:
        async for response in receive(request_iterator, lambda request: list(request.transitions),
                                      self._service.accept, lambda acks: pb.JudgeTransitionsResponse(acks=acks)):
            yield response

    async def Judge(self, request: pb.JudgeRequest, context: grpc.aio.ServicerContext) -> pb.JudgeResponse:
        transition = request.transition
        missing = [(field, "must be set") for field, there in (
            ("transition.turn.messages", transition.turn.messages),
            ("transition.turn.response", transition.turn.HasField("response")),
            ("transition.next_state", transition.HasField("next_state"))) if not there]
        if missing:
            raise invalid_many(missing)
        return pb.JudgeResponse(judgement=await self._service.judge(transition))

    async def WatchJudgements(self, request: pb.WatchJudgementsRequest, context: grpc.aio.ServicerContext
                              ) -> AsyncIterator[pb.WatchJudgementsResponse]:
        async for session_id, judgement in self._service.broadcast.subscribe(request.session_id):
            yield pb.WatchJudgementsResponse(judgement=judgement, session_id=session_id)

    async def ListJudgements(self, request: pb.ListJudgementsRequest,
                             context: grpc.aio.ServicerContext) -> pb.ListJudgementsResponse:
        if len(request.turn_ids) > _MOST_TURNS:
            raise invalid("turn_ids", f"{len(request.turn_ids)} turns", f"at most {_MOST_TURNS} turns")
        queue = self._service.queue
        return pb.ListJudgementsResponse(judgements=await queue.read(queue.judgements, list(request.turn_ids)))
