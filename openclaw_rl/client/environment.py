"""Clients of EnvironmentService: sessions and sandboxes."""

from __future__ import annotations

from typing import Unpack

from openclaw_rl.client.base import AsyncClient, Client
from openclaw_rl.client.calls import BidiStream, ServerStream, Unary
from openclaw_rl.client.chat import Talk
from openclaw_rl.client.lease import AsyncLease, Lease, LeaseOptions
from openclaw_rl.client.live import AsyncLiveSession, LiveSession
from openclaw_rl.v1 import environment_pb2 as pb
from openclaw_rl.v1 import environment_pb2_grpc


class _EnvironmentRpcs:
    stub = environment_pb2_grpc.EnvironmentServiceStub
    component = "env_server"

    record_turns = BidiStream(pb.RecordTurnsRequest, pb.RecordTurnsResponse)
    """Takes turns, feedback and session ends from the policy server; acknowledges each by id once it is on disk."""
    interact = BidiStream(pb.InteractRequest, pb.InteractResponse)
    """A live session: the client sends user and tool messages, the policy's turns come back."""
    get_session = Unary(pb.GetSessionRequest, pb.GetSessionResponse)
    """Tells one session and its turns."""
    end_session = Unary(pb.EndSessionRequest, pb.EndSessionResponse)
    """Ends a session: its open turns get their next state."""
    list_turns = Unary(pb.ListTurnsRequest, pb.ListTurnsResponse)
    """Lists turns, newest first, a page at a time."""
    acquire = Unary(pb.AcquireRequest, pb.AcquireResponse)
    """Leases a sandbox."""
    reset = Unary(pb.ResetRequest, pb.ResetResponse)
    """Puts a leased sandbox into the initial state of a task."""
    step = Unary(pb.StepRequest, pb.StepResponse)
    """Does one action in a leased sandbox."""
    evaluate = Unary(pb.EvaluateRequest, pb.EvaluateResponse)
    """Runs the task's check in a leased sandbox."""
    renew = Unary(pb.RenewRequest, pb.RenewResponse)
    """Keeps a lease alive."""
    release = Unary(pb.ReleaseRequest, pb.ReleaseResponse)
    """Gives a lease back; any number of times."""
    run_episodes = ServerStream(pb.RunEpisodesRequest, pb.RunEpisodesResponse)
    """Lets the policy act in sandboxes, and tells each episode's progress."""
    list_episodes = Unary(pb.ListEpisodesRequest, pb.ListEpisodesResponse)
    """Lists episodes, newest first, a page at a time."""
    list_environments = Unary(pb.ListEnvironmentsRequest, pb.ListEnvironmentsResponse)
    """Lists the environments that there are, and how much of each is in use."""
    list_tasks = Unary(pb.ListTasksRequest, pb.ListTasksResponse)
    """Lists the tasks of an environment."""
    list_leases = Unary(pb.ListLeasesRequest, pb.ListLeasesResponse)
    """Lists the leases that run."""
    watch_lease = ServerStream(pb.WatchLeaseRequest, pb.WatchLeaseResponse)
    """Shows what goes on in a leased sandbox, until the lease ends."""


class EnvironmentServiceClient(_EnvironmentRpcs, Client):
    """Blocking client of EnvironmentService."""

    def live(self, **options: Unpack[Talk]) -> LiveSession:
        """A live session over Interact.

        Args:
            options: see `chat.Talk`.
        """
        return LiveSession(lambda requests: self.interact(requests, timeout=options.get("timeout")), options)

    def lease(self, type: str, **options: Unpack[LeaseOptions]) -> Lease:
        """Lease a sandbox of the environment `type`; it is renewed until it is closed, and given back then.

        Raises:
            MeshError: there is none; RESOURCE_EXHAUSTED when all are taken (`wait`: seconds that it may take).
        """
        return Lease(self, type, options)


class AsyncEnvironmentServiceClient(_EnvironmentRpcs, AsyncClient):
    """Asynchronous client of EnvironmentService."""

    def live(self, **options: Unpack[Talk]) -> AsyncLiveSession:
        """As `EnvironmentServiceClient.live`."""
        return AsyncLiveSession(lambda requests: self.interact(requests, timeout=options.get("timeout")), options)

    def lease(self, type: str, **options: Unpack[LeaseOptions]) -> AsyncLease:
        """As `EnvironmentServiceClient.lease`, for `async with`."""
        return AsyncLease(self, type, options)
