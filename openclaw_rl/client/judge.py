"""Clients of JudgeService: votes on transitions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from openclaw_rl.client.base import AsyncClient, Client
from openclaw_rl.client.calls import BidiStream, ServerStream, Unary
from openclaw_rl.client.watches import OnBreak, follow, follow_async
from openclaw_rl.v1 import judge_pb2 as pb
from openclaw_rl.v1 import judge_pb2_grpc


class _JudgeRpcs:
    stub = judge_pb2_grpc.JudgeServiceStub
    component = "prm_judge"

    judge_transitions = BidiStream(pb.JudgeTransitionsRequest, pb.JudgeTransitionsResponse)
    """Takes transitions from the environment server; acknowledges each by id once it is on disk."""
    judge = Unary(pb.JudgeRequest, pb.JudgeResponse)
    """Judges one transition now, without keeping it."""
    watch_judgements = ServerStream(pb.WatchJudgementsRequest, pb.WatchJudgementsResponse)
    """Tells each judgement as it is made."""
    list_judgements = Unary(pb.ListJudgementsRequest, pb.ListJudgementsResponse)
    """Tells the judgements of given turns."""


class JudgeServiceClient(_JudgeRpcs, Client):
    """Blocking client of JudgeService."""

    def follow_judgements(self, session_id: str = "", on_break: OnBreak | None = None
                          ) -> Iterator[pb.WatchJudgementsResponse]:
        """WatchJudgements that connects again when it breaks; see `follow.follow`. What was judged meanwhile is not
        told: ListJudgements has it."""
        return follow(lambda: self.watch_judgements(session_id=session_id), lambda told: told, on_break)


class AsyncJudgeServiceClient(_JudgeRpcs, AsyncClient):
    """Asynchronous client of JudgeService."""

    def follow_judgements(self, session_id: str = "", on_break: OnBreak | None = None
                          ) -> AsyncIterator[pb.WatchJudgementsResponse]:
        """As `JudgeServiceClient.follow_judgements`."""
        return follow_async(lambda: self.watch_judgements(session_id=session_id), lambda told: told, on_break)
