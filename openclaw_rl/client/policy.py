"""Clients of PolicyService: answers, and takes new weights."""

from __future__ import annotations

from ..v1 import policy_pb2 as pb
from ..v1 import policy_pb2_grpc
from .base import AsyncClient, BidiStream, Client, ServerStream, Unary


class _PolicyRpcs:
    stub = policy_pb2_grpc.PolicyServiceStub
    component = "policy_server"

    chat = ServerStream(pb.ChatRequest, pb.ChatResponse)
    """Answers a conversation, token by token."""
    generate = ServerStream(pb.GenerateRequest, pb.GenerateResponse)
    """Continues token ids, token by token."""
    score = Unary(pb.ScoreRequest, pb.ScoreResponse)
    """Gives the log-probabilities of given tokens."""
    sync_weights = BidiStream(pb.SyncWeightsRequest, pb.SyncWeightsResponse)
    """Takes new versions from the trainer: offer, need, chunks, staged, commit, activated."""
    get_policy = Unary(pb.GetPolicyRequest, pb.GetPolicyResponse)
    """Tells the active version and those that can be activated."""
    watch_policy = ServerStream(pb.WatchPolicyRequest, pb.WatchPolicyResponse)
    """Tells the same at once and again at each change."""
    activate_version = Unary(pb.ActivateVersionRequest, pb.ActivateVersionResponse)
    """Makes a kept version the active one (roll back, or forward again)."""
    submit_feedback = Unary(pb.SubmitFeedbackRequest, pb.SubmitFeedbackResponse)
    """Takes explicit feedback on a turn or a session."""
    fetch_weights = ServerStream(pb.PolicyServiceFetchWeightsRequest, pb.PolicyServiceFetchWeightsResponse)
    """Sends a kept version's tensors to another policy server (a relay)."""


class PolicyServiceClient(_PolicyRpcs, Client):
    """Blocking client of PolicyService."""


class AsyncPolicyServiceClient(_PolicyRpcs, AsyncClient):
    """Asynchronous client of PolicyService."""
