"""Clients of JudgeService: votes on transitions."""

from __future__ import annotations

from ..v1 import judge_pb2 as pb
from ..v1 import judge_pb2_grpc
from .base import AsyncClient, BidiStream, Client, ServerStream, Unary


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


class AsyncJudgeServiceClient(_JudgeRpcs, AsyncClient):
    """Asynchronous client of JudgeService."""
