"""Client of the mesh's own policy server, as far as a rollback needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import grpc

from openclaw_rl.rpc.channel import connect
from openclaw_rl.rpc.errors import from_rpc_error, unavailable
from openclaw_rl.v1.policy_pb2 import ActivateVersionRequest, GetPolicyRequest, GetPolicyResponse, PolicyState
from openclaw_rl.v1.policy_pb2_grpc import PolicyServiceStub

#: Seconds for a call: going back loads weights.
TIMEOUT = 60.0


class PolicyClient(Protocol):
    """State and rollback of a policy server.

    Raises (all methods):
        MeshError: it does not answer, or refuses.
    """

    async def state(self) -> PolicyState:
        """Return its versions as they are now."""
        ...

    async def activate(self, version: int, reason: str) -> None:
        """Make it answer with a version that it keeps."""
        ...


class GrpcPolicyClient:
    """A PolicyClient over gRPC; a connection for each call, since calls are rare.

    Args:
        resolve: HOST:PORT of the policy server; None while it is not known.
    """

    def __init__(self, resolve: Callable[[], str | None]) -> None:
        self._resolve = resolve

    async def state(self) -> PolicyState:
        """See PolicyClient."""
        async with connect(self._address(), "policy_server") as channel:
            try:
                stub = PolicyServiceStub(channel)
                answer: GetPolicyResponse = await stub.GetPolicy(GetPolicyRequest(), timeout=TIMEOUT)
                return answer.state
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error) from None

    async def activate(self, version: int, reason: str) -> None:
        """See PolicyClient."""
        async with connect(self._address(), "policy_server") as channel:
            try:
                request = ActivateVersionRequest(version=version, reason=reason)
                await PolicyServiceStub(channel).ActivateVersion(request, timeout=TIMEOUT)
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error) from None

    def _address(self) -> str:
        address = self._resolve()
        if address is None:
            raise unavailable("the address of the policy server is not known")
        return address
