"""Our own receiver of versions, of a small model with weights, behind the small policy server's chat."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from openclaw_rl.serving.entrypoints.grpc.weights_service import WeightsService
from openclaw_rl.serving.versions.registry import PolicyVersions
from openclaw_rl.v1 import policy_pb2 as pb
from openclaw_rl.weights.identity import TRAINER_KEY
from openclaw_rl.weights.transfer.receiver import WeightReceiver
from tests.conformance.wrong_weights.right import SmallPolicy
from tests.serving.peers import FakeEngine

WINDOW = 256 << 10


class _Versions:
    """What the small policy server's chat asks of versions."""

    def __init__(self, real: PolicyVersions) -> None:
        self.real = real

    @property
    def active(self) -> int:
        return self.real.state().active_version


class OurReceiver(SmallPolicy):
    """Await `begin` before it serves, `end` behind it.

    Args:
        data: folder of its own.
        model: folder of the base model.
    """

    def __init__(self, data: Path, model: Path) -> None:
        super().__init__(data)
        self.real = PolicyVersions(data / "ours", model, FakeEngine(), 3)
        self.versions: Any = _Versions(self.real)

    async def begin(self) -> None:
        await self.real.start()
        self.service = WeightsService(self.real, WeightReceiver(self.real, WINDOW))

    async def end(self) -> None:
        await self.service.close()

    async def GetPolicy(self, request: pb.GetPolicyRequest, context: Any) -> pb.GetPolicyResponse:
        return await self.service.get()

    async def WatchPolicy(self, request: pb.WatchPolicyRequest, context: Any) -> AsyncIterator[pb.WatchPolicyResponse]:
        async with aclosing(self.service.watch()) as responses:
            async for response in responses:
                yield response

    async def ActivateVersion(self, request: pb.ActivateVersionRequest, context: Any) -> pb.ActivateVersionResponse:
        return await self.service.activate(request)

    async def FetchWeights(self, request: pb.PolicyServiceFetchWeightsRequest, context: Any
                           ) -> AsyncIterator[pb.PolicyServiceFetchWeightsResponse]:
        async with aclosing(self.service.fetch(request)) as responses:
            async for response in responses:
                yield response

    async def SyncWeights(self, requests: Any, context: Any) -> AsyncIterator[pb.SyncWeightsResponse]:
        trainer = dict(context.invocation_metadata() or ()).get(TRAINER_KEY, "")
        async with aclosing(self.service.sync(requests, trainer)) as responses:
            async for response in responses:
                yield response
