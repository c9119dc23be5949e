"""The leases' part of EnvironmentService: translate, call, translate back."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc

from openclaw_rl.mesh.errors import unimplemented
from openclaw_rl.v1 import environment_pb2 as pb


class LeaseRpcs:
    """Leases."""

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

    async def ListEnvironments(self, request: pb.ListEnvironmentsRequest,
                               context: grpc.aio.ServicerContext) -> pb.ListEnvironmentsResponse:
        raise unimplemented("leasing sandboxes")

    async def ListTasks(self, request: pb.ListTasksRequest,
                        context: grpc.aio.ServicerContext) -> pb.ListTasksResponse:
        raise unimplemented("leasing sandboxes")

    async def ListLeases(self, request: pb.ListLeasesRequest,
                         context: grpc.aio.ServicerContext) -> pb.ListLeasesResponse:
        raise unimplemented("leasing sandboxes")

    async def WatchLease(self, request: pb.WatchLeaseRequest,
                         context: grpc.aio.ServicerContext) -> AsyncIterator[pb.WatchLeaseResponse]:
        raise unimplemented("leasing sandboxes")
        yield  # makes this a stream handler
