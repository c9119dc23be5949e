"""gRPC servicer of leases, a part of EnvironmentService."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
from google.protobuf.duration_pb2 import Duration

from openclaw_rl.rollouts.leases import actions, messages
from openclaw_rl.rollouts.leases.broadcast import watch_lease
from openclaw_rl.rollouts.leases.pool import LONGEST_STEP, LONGEST_TTL, LONGEST_WAIT, LeasePool
from openclaw_rl.rpc.auth.callers import address_of
from openclaw_rl.rpc.errors import invalid
from openclaw_rl.rpc.messages import to_timestamp
from openclaw_rl.v1 import environment_pb2 as pb

#: Bounds of the seconds between two views.
SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.1, 3600.0
MOST_HOLDER = 200


class LeaseRpcs:
    """Leases; see EnvironmentServicer."""

    def __init__(self, pool: LeasePool) -> None:
        self._pool = pool

    async def Acquire(self, request: pb.AcquireRequest, context: grpc.aio.ServicerContext) -> pb.AcquireResponse:
        if len(request.holder) > MOST_HOLDER:
            raise invalid("holder", request.holder, f"at most {MOST_HOLDER} characters")
        lease = await self._pool.acquire(
            request.type, request.lease_id, holder=request.holder or address_of(context),
            wait=_seconds(request, "wait", 0, LONGEST_WAIT), ttl=_seconds(request, "ttl", 1, LONGEST_TTL))
        return messages.acquired(lease)

    async def Reset(self, request: pb.ResetRequest, context: grpc.aio.ServicerContext) -> pb.ResetResponse:
        seed = request.seed if request.HasField("seed") else None
        return messages.opening(await self._pool.reset(request.lease_id, request.task_id, seed))

    async def Step(self, request: pb.StepRequest, context: grpc.aio.ServicerContext) -> pb.StepResponse:
        if request.step < 1:
            raise invalid("step", request.step, "1 for the first step after a reset, then one more each time")
        seconds = _seconds(request, "timeout", 0.001, LONGEST_STEP)
        return messages.stepped(await self._pool.step(request.lease_id, request.step,
                                                      actions.parse(request.action_json), seconds))

    async def Evaluate(self, request: pb.EvaluateRequest, context: grpc.aio.ServicerContext) -> pb.EvaluateResponse:
        outcome = await self._pool.evaluate(request.lease_id)
        return pb.EvaluateResponse(outcome=outcome.value, detail=outcome.detail)

    async def Renew(self, request: pb.RenewRequest, context: grpc.aio.ServicerContext) -> pb.RenewResponse:
        return pb.RenewResponse(expires_at=to_timestamp(self._pool.renew(request.lease_id).expires_at))

    async def Release(self, request: pb.ReleaseRequest, context: grpc.aio.ServicerContext) -> pb.ReleaseResponse:
        await self._pool.release(request.lease_id)
        return pb.ReleaseResponse()

    async def ListEnvironments(self, request: pb.ListEnvironmentsRequest,
                               context: grpc.aio.ServicerContext) -> pb.ListEnvironmentsResponse:
        warm_pools = [self._pool.warm_pool(type) for type in self._pool.types]
        await asyncio.gather(*(warm_pool.availability.refresh() for warm_pool in warm_pools))
        return pb.ListEnvironmentsResponse(environments=[
            messages.environment(warm_pool, len(await self._pool.catalog.load(warm_pool.name)))
            for warm_pool in warm_pools])

    async def ListTasks(self, request: pb.ListTasksRequest,
                        context: grpc.aio.ServicerContext) -> pb.ListTasksResponse:
        tasks = map(messages.task, await self._pool.catalog.load(self._pool.warm_pool(request.type).name))
        return pb.ListTasksResponse(tasks=sorted(
            (task for task in tasks if request.split in (pb.TASK_SPLIT_UNSPECIFIED, task.split)),
            key=lambda task: task.task_id))

    async def ListLeases(self, request: pb.ListLeasesRequest,
                         context: grpc.aio.ServicerContext) -> pb.ListLeasesResponse:
        return pb.ListLeasesResponse(leases=map(messages.lease, self._pool.leases(request.type)))

    async def WatchLease(self, request: pb.WatchLeaseRequest,
                         context: grpc.aio.ServicerContext) -> AsyncIterator[pb.WatchLeaseResponse]:
        interval = _seconds(request, "interval", SHORTEST_INTERVAL, LONGEST_INTERVAL)
        async for view in watch_lease(self._pool.lease(request.lease_id), 1.0 if interval is None else interval):
            yield messages.lease_view(view)


def _seconds(request: pb.AcquireRequest | pb.StepRequest | pb.WatchLeaseRequest, field: str, least: float,
             most: float) -> float | None:
    """A duration field in seconds; None if unset."""
    if not request.HasField(field):  # type: ignore[arg-type]
        return None
    duration: Duration = getattr(request, field)
    seconds: float = duration.ToNanoseconds() / 1e9
    if not least <= seconds <= most:
        raise invalid(field, f"{seconds:g} s", f"from {least:g} s to {most:g} s, or unset")
    return seconds
