"""Clients of TrainerService: learns and publishes versions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from openclaw_rl.client.base import AsyncClient, Client
from openclaw_rl.client.calls import BidiStream, ServerStream, Unary
from openclaw_rl.client.watches import OnBreak, follow, follow_async
from openclaw_rl.v1 import trainer_pb2 as pb
from openclaw_rl.v1 import trainer_pb2_grpc


class _TrainerRpcs:
    stub = trainer_pb2_grpc.TrainerServiceStub
    component = "trainer"

    submit_samples = BidiStream(pb.SubmitSamplesRequest, pb.SubmitSamplesResponse)
    """Takes samples from the judge; acknowledges each by id once it is on disk."""
    list_samples = Unary(pb.ListSamplesRequest, pb.ListSamplesResponse)
    """Tells the fate of given turns' samples."""
    get_version = Unary(pb.GetVersionRequest, pb.GetVersionResponse)
    """Tells one version."""
    list_versions = Unary(pb.ListVersionsRequest, pb.ListVersionsResponse)
    """Tells the newest versions, or those before a number; ascending."""
    watch_training = ServerStream(pb.WatchTrainingRequest, pb.WatchTrainingResponse)
    """Tells each training step, publication and skip as it happens."""
    train_now = Unary(pb.TrainNowRequest, pb.TrainNowResponse)
    """Trains now on what there is, without waiting for the number or the interval."""
    pause = Unary(pb.PauseRequest, pb.PauseResponse)
    """Starts no further step until resumed; samples are still taken."""
    resume = Unary(pb.ResumeRequest, pb.ResumeResponse)
    """Ends a pause."""
    fetch_weights = ServerStream(pb.FetchWeightsRequest, pb.FetchWeightsResponse)
    """Sends a version's tensors to a policy server that joins late."""


class TrainerServiceClient(_TrainerRpcs, Client):
    """Blocking client of TrainerService."""

    def every_version(self) -> Iterator[pb.PolicyVersion]:
        """All versions, the newest ones first, in as many calls as that takes.

        Raises:
            MeshError: the trainer does not answer.
        """
        found = self.list_versions()
        yield from reversed(found.versions)
        while found.more:
            found = self.list_versions(before=found.versions[0].manifest.version)
            yield from reversed(found.versions)

    def follow_training(self, on_break: OnBreak | None = None) -> Iterator[pb.WatchTrainingResponse]:
        """WatchTraining that connects again when it breaks; see `follow.follow`."""
        return follow(self.watch_training, lambda event: event, on_break)


class AsyncTrainerServiceClient(_TrainerRpcs, AsyncClient):
    """Asynchronous client of TrainerService."""

    def follow_training(self, on_break: OnBreak | None = None) -> AsyncIterator[pb.WatchTrainingResponse]:
        """As `TrainerServiceClient.follow_training`."""
        return follow_async(self.watch_training, lambda event: event, on_break)
