"""PolicyService's RPCs for versions, without gRPC."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import aclosing

import grpc

from openclaw_rl.observability import version_spans as traces
from openclaw_rl.rpc.errors import MeshError, failed_precondition, invalid, unavailable
from openclaw_rl.rpc.read_ahead import ReadAhead
from openclaw_rl.runtime.alarms import Raised
from openclaw_rl.serving.engines.interface import EngineError
from openclaw_rl.serving.versions.registry import PolicyVersions
from openclaw_rl.serving.versions.trainer_claim import TrainerClaim
from openclaw_rl.v1 import policy_pb2 as pb
from openclaw_rl.v1.weights_pb2 import WeightOffer
from openclaw_rl.weights.transfer.fetch import fetch
from openclaw_rl.weights.transfer.receiver import WeightReceiver

#: Consecutive refused versions that raise an alarm.
REFUSED_IN_A_ROW = 3


class WeightsService:
    """SyncWeights, GetPolicy, WatchPolicy and ActivateVersion.

    Of two SyncWeights streams of one trainer the newer wins and the older ends with ABORTED: a killed trainer leaves a
    stream that looks alive until keepalive notices, and refusing the newer one would lock the restarted trainer out
    until then. A different trainer is refused while the first is connected; see TrainerClaim.

    Args:
        versions: the policy server's, started.
        receiver: receives versions; default a new one.
        weights_from: address of the policy server to copy from; the trainer's stream is then refused.
    """

    def __init__(self, versions: PolicyVersions, receiver: WeightReceiver | None = None,
                 weights_from: str | None = None) -> None:
        self._versions = versions
        self._receiver = receiver or WeightReceiver(versions)
        self._weights_from = weights_from
        self.trainers = TrainerClaim()
        self._lock = asyncio.Lock()  # held by the stream that uses the receiver
        self._serving: asyncio.Task[None] | None = None

    def alarms(self) -> list[Raised]:
        """Alarms (name, message) of the stream of versions; empty messages are none."""
        refused = self._receiver.refused
        text = ""
        if len(refused) >= REFUSED_IN_A_ROW:
            newest, why = list(refused.items())[-1]
            text = (f"{len(refused)} versions in a row were refused, the last one, {newest}, because {why}; version "
                    f"{self._versions.state().active_version} goes on: check that trainer and policy server have the "
                    "same model, and the trainer's log")
        return [self.trainers.alarm, ("versions_rejected", text)]

    @property
    def pin(self) -> str:
        """See PolicyVersions.pin."""
        return self._versions.pin

    async def close(self) -> None:
        """End the stream and finish writing."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait({self._serving})
        await self._receiver.close()

    async def sync(self, requests: AsyncIterable[pb.SyncWeightsRequest],
                   trainer: str = "") -> AsyncIterator[pb.SyncWeightsResponse]:
        """PolicyService.SyncWeights: the state, then a response to each request, and the state whenever an operator
        activates another version, pins or unpins one.

        Args:
            trainer: id of the trainer; empty when unknown.

        Raises:
            MeshError: ABORTED, a newer stream took over; ANOTHER_TRAINER, that one is connected; FED_BY_RELAY, this
                one copies another policy server's versions.
        """
        if self._weights_from:
            raise failed_precondition(
                "FED_BY_RELAY", f"this policy server copies its versions from {self._weights_from} "
                "(components.policy_server.weights_from); take that line out of its configuration, or its address out "
                "of the trainer's policy_servers")
        self.trainers.admit(trainer, self._serving is not None and not self._serving.done())
        answers: asyncio.Queue[pb.SyncWeightsResponse | None] = asyncio.Queue()
        known = -1  # the active version last reported to the trainer
        pinned = False  # the pin last reported
        committing = -1  # the one that `activated` will report

        def report(state: pb.PolicyState) -> None:
            nonlocal known, pinned
            if state.active_version not in (known, committing) or state.pinned != pinned:
                known, pinned = state.active_version, state.pinned
                answers.put_nowait(pb.SyncWeightsResponse(state=state))

        async def follow() -> None:
            async for state in self._versions.subscribe():
                report(state)

        async def serve() -> None:
            nonlocal known, committing
            async with self._lock, aclosing(ReadAhead(requests)) as ahead:
                self._receiver.connected()
                async for request in ahead:
                    committing = request.commit.version if request.HasField("commit") else -1
                    async for answer in self._receiver.handle(request):
                        if answer.HasField("activated"):
                            known = answer.activated.version
                        answers.put_nowait(answer)
                    committing = -1  # otherwise a rollback and return to this version would not be reported

        report(self._versions.state())
        if self._serving is not None:
            self._serving.cancel()
        serving = self._serving = asyncio.create_task(serve())
        serving.add_done_callback(lambda _: answers.put_nowait(None))
        following = asyncio.create_task(follow())
        try:
            while (answer := await answers.get()) is not None:
                yield answer
            if serving.cancelled():
                raise MeshError(grpc.StatusCode.ABORTED, "ABORTED", "a newer SyncWeights stream took over; one trainer "
                                "at a time can update a policy server", retry_after=5.0)
            serving.result()
        finally:
            serving.cancel()
            following.cancel()
            await asyncio.wait({serving, following})

    async def get(self) -> pb.GetPolicyResponse:
        """PolicyService.GetPolicy."""
        return pb.GetPolicyResponse(state=self._versions.state(), manifests=self._versions.manifests())

    async def watch(self) -> AsyncIterator[pb.WatchPolicyResponse]:
        """PolicyService.WatchPolicy."""
        async for state in self._versions.subscribe():
            yield pb.WatchPolicyResponse(state=state)

    async def fetch(self, request: pb.PolicyServiceFetchWeightsRequest
                    ) -> AsyncIterator[pb.PolicyServiceFetchWeightsResponse]:
        """PolicyService.FetchWeights: of versions that are or were active, not of those in transfer.

        Raises:
            MeshError: NO_WEIGHTS, the engine has none; see weights.transfer.fetch.
        """
        state = self._versions.state()
        if not state.accepts_weights:
            raise failed_precondition("NO_WEIGHTS",
                                      f"the engine of {state.model} takes no weights: there are no weights to fetch")
        pieces = fetch(self._versions.store, request, state.active_version, state.kept_versions)
        async with aclosing(pieces):  # type: ignore[type-var]
            async for piece in pieces:
                yield (pb.PolicyServiceFetchWeightsResponse(offer=piece) if isinstance(piece, WeightOffer)
                       else pb.PolicyServiceFetchWeightsResponse(chunk=piece))

    async def activate(self, request: pb.ActivateVersionRequest) -> pb.ActivateVersionResponse:
        """PolicyService.ActivateVersion.

        Raises:
            MeshError: INVALID_ARGUMENT, neither a version nor a pin; NO_WEIGHTS, a pin for an engine without weights;
                VERSION_UNKNOWN; PINNED; UNAVAILABLE, the engine can't load it or the pin can't be written. The active
                version stays.
        """
        version = request.version if request.HasField("version") else None
        pin = request.pin if request.HasField("pin") else None
        if version is None and pin is None:
            raise invalid("version", "unset", f"one of {list(self._versions.state().kept_versions)}")
        if pin and not self._versions.state().accepts_weights:
            raise failed_precondition("NO_WEIGHTS", "the engine takes no weights: it has no versions to pin")
        before, began = self._versions.state().active_version, time.time_ns()
        try:
            pause = await self._versions.activate(version, request.reason, pin)
        except EngineError as error:
            raise unavailable(f"version {request.version} can't be activated: {error}") from error
        except OSError as error:
            raise unavailable(f"the pin can't be written down, all stays as it was: {error}") from error
        if version is not None:
            traces.activated(None, version, before, began, pause.ms, pause.steps, request.reason or "asked for")
        return pb.ActivateVersionResponse(state=self._versions.state(), pause_ms=pause.ms)
