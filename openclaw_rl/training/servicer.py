"""gRPC entrypoint of TrainerService: translates requests and responses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc

from openclaw_rl.delivery.receiver import receive
from openclaw_rl.rpc.errors import failed_precondition, invalid, not_found
from openclaw_rl.rpc.messages import to_timestamp
from openclaw_rl.training.service import TrainerService
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.training.tables.scores import Scores
from openclaw_rl.training.tables.versions import Version, refused
from openclaw_rl.v1 import trainer_pb2, trainer_pb2_grpc, weights_pb2
from openclaw_rl.weights.transfer.fetch import fetch

SERVICE = trainer_pb2.DESCRIPTOR.services_by_name["TrainerService"].full_name
#: Most turns of a ListSamples request.
MAX_TURNS = 1000
#: Versions of one ListVersions answer. With a gate's answers and many turns, one takes some 50 KB.
PAGE = 200


class TrainerServicer(trainer_pb2_grpc.TrainerServiceServicer):
    """See trainer.proto."""

    def __init__(self, service: TrainerService, store: TrainerStore) -> None:
        self._service = service
        self._store = store

    async def SubmitSamples(self, request_iterator: AsyncIterator[trainer_pb2.SubmitSamplesRequest],
                            context: grpc.aio.ServicerContext) -> AsyncIterator[trainer_pb2.SubmitSamplesResponse]:
        async for response in receive(request_iterator, lambda request: list(request.samples), self._service.accept,
                                      lambda acks: trainer_pb2.SubmitSamplesResponse(acks=acks)):
            yield response

    async def ListSamples(self, request: trainer_pb2.ListSamplesRequest,
                          context: grpc.aio.ServicerContext) -> trainer_pb2.ListSamplesResponse:
        if len(request.turn_ids) > MAX_TURNS:
            raise invalid("turn_ids", f"{len(request.turn_ids)} turns", f"at most {MAX_TURNS} of them")
        statuses = await self._store.database.read(self._store.samples.statuses, list(request.turn_ids))
        return trainer_pb2.ListSamplesResponse(samples=statuses)

    async def GetVersion(self, request: trainer_pb2.GetVersionRequest,
                         context: grpc.aio.ServicerContext) -> trainer_pb2.GetVersionResponse:
        def read() -> trainer_pb2.PolicyVersion | None:
            version = self._store.versions.get(request.version)
            return None if version is None else self._translate(version, self._store.scores.all())

        if (version := await self._store.database.read(read)) is None:
            raise not_found("version", str(request.version), "ListVersions tells those there are")
        return trainer_pb2.GetVersionResponse(version=version)

    async def ListVersions(self, request: trainer_pb2.ListVersionsRequest,
                           context: grpc.aio.ServicerContext) -> trainer_pb2.ListVersionsResponse:
        def read() -> trainer_pb2.ListVersionsResponse:
            live = self._store.scores.all()
            found = self._store.versions.page(request.before if request.HasField("before") else None, PAGE + 1)
            return trainer_pb2.ListVersionsResponse(
                versions=[self._translate(version, live) for version in found[-PAGE:]], more=len(found) > PAGE)

        return await self._store.database.read(read)

    async def WatchTraining(self, request: trainer_pb2.WatchTrainingRequest, context: grpc.aio.ServicerContext
                            ) -> AsyncIterator[trainer_pb2.WatchTrainingResponse]:
        async for event in self._service.events.watch():
            yield event

    async def TrainNow(self, request: trainer_pb2.TrainNowRequest,
                       context: grpc.aio.ServicerContext) -> trainer_pb2.TrainNowResponse:
        samples, message = await self._service.train_now()
        return trainer_pb2.TrainNowResponse(samples=samples, message=message)

    async def Pause(self, request: trainer_pb2.PauseRequest,
                    context: grpc.aio.ServicerContext) -> trainer_pb2.PauseResponse:
        await self._service.pause(request.reason)
        return trainer_pb2.PauseResponse()

    async def Resume(self, request: trainer_pb2.ResumeRequest,
                     context: grpc.aio.ServicerContext) -> trainer_pb2.ResumeResponse:
        await self._service.resume()
        return trainer_pb2.ResumeResponse()

    async def FetchWeights(self, request: trainer_pb2.FetchWeightsRequest, context: grpc.aio.ServicerContext
                           ) -> AsyncIterator[trainer_pb2.FetchWeightsResponse]:
        weights = self._service.weights()
        known, head = await self._store.database.read(lambda: (
            self._store.versions.get(request.version) if request.HasField("version") else None,
            self._store.versions.head))
        if known is not None and refused(known.manifest):
            raise failed_precondition("REFUSED_BY_GATE", f"version {request.version}: {known.status}")
        async with aclosing(fetch(weights, request, head)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                yield (trainer_pb2.FetchWeightsResponse(offer=piece) if isinstance(piece, weights_pb2.WeightOffer)
                       else trainer_pb2.FetchWeightsResponse(chunk=piece))

    def _translate(self, version: Version, live: dict[int, Scores]) -> trainer_pb2.PolicyVersion:
        number = version.manifest.version
        judged = live.get(number)
        active = self._store.versions.active == number
        activated_at = None if version.activated_at is None else to_timestamp(version.activated_at)
        if active:
            detail = ""
        elif self._service.delivery.sending(number):
            detail = "being sent"
        else:
            detail = str(version.status) or ("another one is active" if activated_at or number == 0 else "not active")
        return trainer_pb2.PolicyVersion(
            manifest=version.manifest, active=active, activated_at=activated_at, detail=detail,
            live=trainer_pb2.LiveScore(turns=judged.turns, mean=judged.mean) if judged else None,
            kept=self._service.delivery.keeps(number), deliveries=self._service.delivery.deliveries(
                number, trainer_pb2.VersionDelivery(active=active, activated_at=activated_at, detail=detail)))
