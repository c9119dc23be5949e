"""A replica: a policy server beside the mesh's own, with a stream of its own, which follows rollbacks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import grpc

from openclaw_rl.rpc.channel import connect
from openclaw_rl.rpc.errors import from_rpc_error
from openclaw_rl.rpc.messages import to_timestamp
from openclaw_rl.v1 import weights_pb2 as pb
from openclaw_rl.v1.policy_pb2 import ActivateVersionRequest, GetPolicyRequest, PolicyState
from openclaw_rl.v1.policy_pb2_grpc import PolicyServiceStub
from openclaw_rl.v1.trainer_pb2 import VersionDelivery
from openclaw_rl.v1.weights_pb2 import VersionManifest
from openclaw_rl.weights.store import VersionStore
from openclaw_rl.weights.transfer.publisher import WeightPublisher

logger = logging.getLogger(__name__)

_RETRY = 5.0  # seconds until a failed ActivateVersion is tried again
_DEADLINE = 60.0  # seconds that it may take: the version is read and loaded


class History(Protocol):
    """What one policy server did with versions; outlives the trainer's process."""

    def activated(self, version: int, at: float) -> None:
        """It answers with a version since `at`, in seconds since the epoch; the first time counts."""

    def refused(self, version: int, reason: str) -> None:
        """It will not take a version."""

    def activated_at(self, version: int) -> float | None: ...

    def reason(self, version: int) -> str: ...


def void(version: int, withdrawn: Collection[int], manifest: Callable[[int], VersionManifest | None]) -> bool:
    """Whether a version, or one that it was made from, was taken back. The policy server that took it back may not
    have heard of those that were made from it."""
    first = min(withdrawn, default=version + 1)
    while version >= first:  # a version's number is higher than its parent's
        if version in withdrawn:
            return True
        known = manifest(version)
        if known is None or not known.HasField("parent"):
            return False
        version = known.parent
    return False


@dataclass(frozen=True, slots=True)
class Step:
    """What to do next with a policy server; at most one of the first two is set."""

    activate: int | None = None
    offer: int | None = None
    apart: str = ""  #: why it does not answer with the version that it should; "" when it does or soon will


def plan(state: PolicyState, authority: PolicyState | None, goal: int,
         manifest: Callable[[int], VersionManifest | None]) -> Step:
    """What brings a policy server to where the mesh's own one is, or to a newer version that was offered.

    Args:
        state: what it has.
        authority: what the mesh's own one has; None while that was not heard of.
        goal: the newest version that was offered and not taken back.
        manifest: of a version that the trainer made; None of one that it never made.
    """
    active = state.active_version
    if state.pinned:
        return Step(apart=f"an operator pinned version {active} there" if active != goal else "")
    if authority is not None and active != authority.active_version:
        target = authority.active_version
        taken_back = void(active, authority.withdrawn_versions, manifest)
        if target in state.kept_versions and (taken_back or active < target):
            return Step(activate=target)
        if taken_back and goal < active:
            return Step(apart=f"it answers with version {active}, which was taken back; version {target}, to which the "
                        "mesh's policy server went, is not kept there and is older, so it can't be sent; the next "
                        "version replaces it")
    if active < goal:
        return Step(offer=goal)
    if manifest(active) is None:
        return Step(apart=f"it answers with version {active}, which this trainer never made; the next version replaces "
                    "it")
    if authority is not None and active == authority.active_version and state.active_digest != authority.active_digest:
        return Step(apart=f"its version {active} has other weights than the mesh's policy server's; the next version "
                    "replaces it")
    return Step()


@dataclass
class _Seen:
    """What was last heard of it."""

    state: PolicyState | None = None  #: None until it was heard of
    connection: int = 0  #: in which it was heard
    refused: set[int] = field(default_factory=set)  #: versions refused in this connection


class Replica:
    """One further policy server.

    Args:
        address: HOST:PORT.
        goal: the version that it is to have.
        authority: what the mesh's own policy server has.
        history: what it did with versions.
        store, manifest, on_number, on_further, full_every: see Replicas.
    """

    def __init__(self, address: str, store: VersionStore, goal: Callable[[], int],
                 authority: Callable[[], PolicyState | None], manifest: Callable[[int], VersionManifest | None],
                 on_number: Callable[[int], None], on_further: Callable[[int, str, str, bool], None],
                 history: History, full_every: int) -> None:
        self.address = address
        self.publisher = WeightPublisher(lambda: address, store, self._on_state, self._on_activated, self._on_rejected,
                                         full_every=full_every, name=f"the policy server at {address}")
        self._store = store
        self._goal, self._authority, self._manifest = goal, authority, manifest
        self._on_number, self._on_further = on_number, on_further
        self._history = history
        self._seen = _Seen()
        self._apart = ""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to connect; returns at once."""
        await self.publisher.start()
        self._task = asyncio.create_task(self._run(), name=f"replica {self.address}")

    async def stop(self, grace: float) -> None:
        """End the stream."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self.publisher.stop(grace)

    def align(self) -> None:
        """Look again at what is to be done: something has changed."""
        self._wake.set()

    def delivery(self, version: int) -> VersionDelivery:
        """How far it is with a version."""
        status = self.publisher.status()
        delivery = VersionDelivery(address=self.address, active=status["active_version"] == version)
        at = self._history.activated_at(version)
        if at is not None:
            delivery.activated_at.CopyFrom(to_timestamp(at))
        if delivery.active:
            return delivery
        if version == self._goal() and not status["connected"]:
            delivery.detail = f"can't be reached: {status['error'] or 'connecting'}"
        elif status["sending"] == version:
            delivery.detail = f"being sent: {status['received_bytes']} of {status['total_bytes']} bytes"
        elif reason := self._history.reason(version):
            delivery.detail = f"rejected: {reason}"
        elif version == self._goal() and self._apart:
            delivery.detail = self._apart
        elif version == status["waiting"]:
            delivery.detail = "waits for its turn"
        else:
            delivery.detail = "another one is active" if at is not None else "not sent"
        return delivery

    def alarms(self, unreachable: float) -> Iterable[tuple[str, str]]:
        """What keeps it from the version that it should have: name and sentence.

        Args:
            unreachable: seconds without a connection that are an alarm.
        """
        status = self.publisher.status()
        if self.publisher.down() > unreachable:
            yield "policy_server_unreachable", (
                f"the policy server at {self.address} has not been reached for {self.publisher.down():.0f} s: "
                f"{status['error']}; it catches up when it is there")
        elif (goal := self._goal()) in self._seen.refused:
            yield "policy_server_rejects", (f"the policy server at {self.address} rejected version {goal}: "
                                            f"{self._history.reason(goal)}")
        elif self._apart and not status["pinned"]:  # who pins a version knows what comes of it
            yield "policy_server_apart", f"the policy server at {self.address}: {self._apart}"

    async def _run(self) -> None:
        wait: float | None = None
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), wait)
            self._wake.clear()
            wait = None
            try:
                await self._follow()
            except grpc.aio.AioRpcError as error:
                self._apart = f"can't be brought to version {self._goal()}: {from_rpc_error(error).message}"
                logger.warning("the policy server at %s %s", self.address, self._apart)
                wait = _RETRY
            except Exception:
                logger.exception("following with the policy server at %s failed", self.address)
                wait = _RETRY

    async def _follow(self) -> None:
        authority, state = self._authority(), self._seen.state
        if authority is not None:
            self.publisher.take_back({version for version in self.publisher.needed()
                                      if void(version, authority.withdrawn_versions, self._manifest)})
        if state is None:
            return
        step = plan(state, authority, self._goal(), self._manifest)
        self._apart = step.apart
        if step.offer is not None and step.offer not in self._seen.refused:
            if step.offer in self._store.versions():
                self.publisher.offer(step.offer)
            else:
                self._apart = f"version {step.offer} is no longer on the trainer's disk; it gets the next one"
        elif step.activate is not None and authority is not None:
            await self._activate(step.activate, authority.active_digest)

    async def _activate(self, version: int, digest: str) -> None:
        """Make a version that it keeps the active one."""
        async with connect(self.address, "policy_server") as channel:
            stub = PolicyServiceStub(channel)
            policy = await stub.GetPolicy(GetPolicyRequest(), timeout=_DEADLINE)
            if version not in policy.state.kept_versions:  # it was pruned since the state was told
                self._seen.state = policy.state
                self.align()
                return
            if digest not in [manifest.digest for manifest in policy.manifests if manifest.version == version]:
                self._apart = f"version {version} has other weights there; the next version replaces what it has"
                return
            await stub.ActivateVersion(ActivateVersionRequest(
                version=version, reason="the mesh's own policy server answers with it"), timeout=_DEADLINE)
        logger.info("the policy server at %s was brought to version %d", self.address, version)

    def _on_state(self, state: PolicyState) -> None:
        if self._seen.connection != self.publisher.connections:  # it may take now what it refused
            self._seen.refused.clear()
        self._seen.state, self._seen.connection = state, self.publisher.connections
        self._on_number(state.highest_version)
        self._history.activated(state.active_version, state.activated_at.ToNanoseconds() / 1e9)
        self.align()

    def _on_activated(self, version: int, activated: pb.WeightActivated) -> None:
        state = self._seen.state
        if state is not None:
            state.active_version, state.active_digest = version, self._store.manifest(version).digest
            state.kept_versions.append(version)
        self._history.activated(version, time.time())
        self._on_further(version, self.address, f"version {version} is active at {self.address}", False)
        self.align()

    def _on_rejected(self, version: int, rejected: pb.WeightRejected) -> None:
        self._seen.refused.add(version)
        self._history.refused(version, rejected.message)
        self._on_further(version, self.address, f"the policy server at {self.address} rejected version {version}: "
                         f"{rejected.message}", True)
        self.align()
