"""A policy server that copies its versions from another one, instead of being fed by the trainer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, Protocol

import grpc

from openclaw_rl.rpc.channel import connect
from openclaw_rl.rpc.membership import confirm, note
from openclaw_rl.rpc.reconnect import ReconnectingStream, TryAgain, together
from openclaw_rl.runtime.alarms import WAITING_SECONDS
from openclaw_rl.v1 import policy_pb2
from openclaw_rl.v1 import weights_pb2 as pb
from openclaw_rl.v1.policy_pb2 import PolicyState, SyncWeightsRequest
from openclaw_rl.v1.policy_pb2_grpc import PolicyServiceStub
from openclaw_rl.weights.transfer.fetch import changed
from openclaw_rl.weights.transfer.receiver import WeightReceiver, WeightTarget
from openclaw_rl.weights.transfer.sender import WANTS_DENSE
from openclaw_rl.weights.transfer.staging import INCOMING

logger = logging.getLogger(__name__)

#: Seconds without an answer after which the other policy server is reported as unreachable.
UNREACHABLE = WAITING_SECONDS
_DEADLINE = 30.0  # seconds for GetPolicy
_PROGRESS_BYTES = 8 << 20  # bytes that are worth connecting again at once after a break


class RelayTarget(WeightTarget, Protocol):
    """Where versions go; see openclaw_rl.serving.versions.registry.PolicyVersions."""

    async def activate(self, version: int, reason: str) -> Any: ...

    def subscribe(self) -> AsyncIterator[PolicyState]: ...


class WeightRelay:
    """Follows another policy server: each version that becomes active there becomes active here.

    A version that is kept here already is activated, as after a rollback there; another one is fetched, as what
    differs from the newest version that both have, and goes through the same receiver as the trainer's do: digests,
    NaN check, staging, commit. After a broken line it goes on from the byte that is on disk here. While the other one
    is down this one goes on serving and tries again with growing pauses (0.1 to 5 s). Others may copy from this one in
    turn. To hold another version here, pin it: without a pin the other policy server's version is activated again.

    Args:
        address: of the other policy server, HOST:PORT.
        target: the versions here, started.
        receiver: that nobody else uses.
    """

    def __init__(self, address: str, target: RelayTarget, receiver: WeightReceiver) -> None:
        self.address = address
        self._target = target
        self._receiver = receiver
        self._peer: PolicyState | None = None  # None while there is no connection
        self._fetching: int | None = None
        self._received = 0
        self._refused: dict[int, str] = {}  # versions that will not be taken, in this connection
        self._whole = -1  # version that is fetched whole, since its differences were not taken
        self._apart = ""
        self._wake = asyncio.Event()
        self._stream = ReconnectingStream(f"versions from {address}", self._connection)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to connect; returns at once."""
        self._task = asyncio.create_task(self._stream.run(), name="relay")

    async def stop(self) -> None:
        """End. What has arrived stays on disk."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def status(self) -> dict[str, Any]:
        """`connected`; `peer_version`, the version active there (None while it is not connected); the version
        `fetching`, with `received_bytes`; `error`, the last one of the line ("" when all is well)."""
        return {"connected": self._peer is not None, "peer_version": self._peer.active_version if self._peer else None,
                "fetching": self._fetching, "received_bytes": self._received, "error": self._stream.error}

    def problems(self) -> list[str]:
        """What keeps this policy server from the version of the other one, for a person."""
        if self._stream.down() > UNREACHABLE:
            return [f"weights_from: the policy server at {self.address} has not been reached for "
                    f"{self._stream.down():.0f} s ({self._stream.error}); this one goes on with the version that "
                    "it has"]
        return [f"weights_from: the policy server at {self.address} {self._apart}"] if self._apart else []

    async def _connection(self) -> None:
        """One connection, until it breaks. Raises what ended it."""
        try:
            async with connect(self.address, "policy_server") as channel:
                stub = PolicyServiceStub(channel)
                await together([self._watch(stub), self._watch_own(), self._follow(stub)], "it cancelled a call")
        except Exception as error:
            note(error, "policy_server")
            raise
        finally:
            self._peer = self._fetching = None
            self._refused.clear()

    async def _watch(self, stub: Any) -> None:
        call = stub.WatchPolicy(policy_pb2.WatchPolicyRequest())
        await confirm(call, "policy_server", self.address)
        async for response in call:
            self._peer = response.state
            self._stream.answered()
            self._wake.set()
        raise TryAgain("it ended the stream")

    async def _watch_own(self) -> None:
        """An operator may have gone to another version here, or lifted a pin."""
        async for _ in self._target.subscribe():
            self._wake.set()

    async def _follow(self, stub: Any) -> None:
        while True:
            self._wake.clear()
            if not await self._step(stub):
                await self._wake.wait()

    async def _step(self, stub: Any) -> bool:
        """Do what is to be done next; false when there is nothing."""
        peer, own = self._peer, self._target.state()
        self._apart = ""
        if peer is None or own.pinned:
            return False
        version = peer.active_version
        if not peer.accepts_weights or peer.model_id != own.model_id:
            self._apart = (f"serves another model ({peer.model}, {peer.model_id or 'an API'}) than this one "
                           f"({own.model}, {own.model_id}): its versions can't be used here")
        elif version == own.active_version and peer.active_digest == own.active_digest:
            return False
        elif version in own.kept_versions and self._target.store.manifest(version).digest == peer.active_digest:
            await self._target.activate(version, f"the policy server at {self.address} answers with it")
            self._stream.progressed()
            return True
        elif version <= max(own.active_version, *own.withdrawn_versions, 0):
            self._apart = (f"answers with version {version}, which is not kept here and not newer than what was active "
                           "here, so it can't be taken; the next version replaces what answers here")
        elif version in self._refused:
            self._apart = f"answers with version {version}, which was not taken: {self._refused[version]}"
        else:
            await self._fetch(stub, version)
            return True
        return False

    async def _fetch(self, stub: Any, version: int) -> None:
        """Bring a version over and make it active; one that is refused for good is remembered.

        Raises:
            grpc.RpcError, TryAgain: the line broke, or it may be taken another time.
        """
        base = None if version == self._whole else await self._base(stub)
        request = policy_pb2.PolicyServiceFetchWeightsRequest(version=version, base_version=base)
        self._receiver.connected()
        self._fetching, self._received = version, 0
        try:
            rejected = await self._transfer(stub, request)
        finally:
            self._fetching = None
        if rejected is None:
            return
        if base is not None and rejected.reason in WANTS_DENSE and rejected.retryable:
            self._whole = version
        elif rejected.retryable:
            raise TryAgain(f"version {version} was not taken: {rejected.message}",
                           stuck=rejected.reason == pb.WEIGHT_REJECT_REASON_STORAGE)
        else:
            self._refused[version] = rejected.message

    async def _transfer(self, stub: Any, request: policy_pb2.PolicyServiceFetchWeightsRequest
                        ) -> pb.WeightRejected | None:
        """Fetch, stage, commit. Returns the refusal when it is not taken; None too when it was taken back there."""
        version, store = request.version, self._target.store
        first = policy_pb2.PolicyServiceFetchWeightsRequest()
        first.CopyFrom(request)
        if (store.root / INCOMING).exists() or version in store.versions():  # some of it may be here
            first.tensors.append(min(store.specs(0), key=lambda spec: spec.encoded_bytes).name)  # the offer is enough
        call = stub.FetchWeights(first)
        try:
            offer = await _offer(call)
            need, done, rejected = await self._handle(SyncWeightsRequest(offer=offer))
            if need is not None and not done and rejected is None:
                self._received = need.from_byte
                base = request.base_version if request.HasField("base_version") else None
                if need.from_byte or list(need.tensors) != (
                        list(first.tensors) or changed(store, base, offer.tensors)):
                    call.cancel()
                    request.tensors.extend(need.tensors)
                    request.from_byte = need.from_byte
                    call = stub.FetchWeights(request)
                    if (await _offer(call)).manifest.digest != offer.manifest.digest:
                        raise TryAgain(f"version {version} became another one while it was fetched")
            while rejected is None and not done:
                if self._peer is not None and version in self._peer.withdrawn_versions:
                    await self._handle(SyncWeightsRequest(abort=pb.WeightAbort(
                        version=version, reason=f"it was taken back at {self.address}")))
                    return None
                response = await call.read()
                if response is grpc.aio.EOF:
                    raise TryAgain(f"version {version} ended too soon")
                self._received += len(response.chunk.data)
                self._stream.progressed(len(response.chunk.data) / _PROGRESS_BYTES)
                _, done, rejected = await self._handle(SyncWeightsRequest(chunk=response.chunk))
        finally:
            call.cancel()
        if rejected is None:
            _, _, rejected = await self._handle(SyncWeightsRequest(commit=pb.WeightCommit(version=version)))
        if rejected is None:
            logger.info("version %d came from %s", version, self.address)
        return rejected

    async def _handle(self, request: SyncWeightsRequest) -> tuple[pb.WeightNeed | None, bool, pb.WeightRejected | None]:
        """What the receiver answers: its need, whether the version is complete and staged, its refusal."""
        need, staged, rejected = None, False, None
        async for response in self._receiver.handle(request):
            match response.WhichOneof("message"):
                case "need":
                    need = response.need
                case "staged":
                    staged = True
                case "rejected":
                    rejected = response.rejected
        return need, staged, rejected

    async def _base(self, stub: Any) -> int | None:
        """The version to tell differences from: what answers here, if the other one has the same, else the newest that
        both have."""
        there = (await stub.GetPolicy(policy_pb2.GetPolicyRequest(), timeout=_DEADLINE)).manifests
        own = self._target.state()
        both = [manifest.version for manifest in there if manifest.version in own.kept_versions
                and manifest.version not in own.withdrawn_versions
                and manifest.digest == self._target.store.manifest(manifest.version).digest]
        return own.active_version if own.active_version in both else max(both, default=None)


async def _offer(call: Any) -> pb.WeightOffer:
    response = await call.read()
    if response is grpc.aio.EOF or not response.HasField("offer"):
        raise TryAgain("it did not begin with an offer")
    return response.offer
