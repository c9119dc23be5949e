"""The trainer as a whole: over gRPC, with a backend that counts, against a policy server's weight stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from openclaw_rl.client import TrainerServiceClient
from openclaw_rl.config import TrainerConfig
from openclaw_rl.rpc.channel import connect
from openclaw_rl.rpc.errors import from_rpc_error
from openclaw_rl.rpc.server import ComponentServer
from openclaw_rl.runtime.home import Home
from openclaw_rl.training import servicer as servicer_module
from openclaw_rl.training import training_loop
from openclaw_rl.training.learner import Learner
from openclaw_rl.training.service import TrainerService
from openclaw_rl.training.servicer import SERVICE, TrainerServicer
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.v1 import (
    common_pb2,
    component_pb2,
    component_pb2_grpc,
    policy_pb2,
    trainer_pb2,
    trainer_pb2_grpc,
    weights_pb2,
)
from tests.support.waiting import eventually
from tests.training.fakes import AbnormalStep, FakeBackend, make_sample

pb = trainer_pb2


class FakePublisher:
    def __init__(self) -> None:
        self.offered: list[int] = []

    async def start(self) -> None: ...

    async def stop(self, grace: float) -> None: ...

    def offer(self, version: int) -> None:
        self.offered.append(version)

    def take_back(self, versions: set[int]) -> None: ...

    def status(self) -> dict[str, object]:
        return {"sending": None}

    def sending(self, version: int) -> bool:
        return False

    def needed(self) -> set[int]:
        return set()

    def deliveries(self, version: int, own: pb.VersionDelivery) -> list[pb.VersionDelivery]:
        return [own]

    def alarms(self) -> list[tuple[str, str]]:
        return []


class Rig:
    """A trainer that serves."""

    def __init__(self, root: Path, model: Path, config: TrainerConfig) -> None:
        self.store = TrainerStore(root / "trainer" / "state.db", "group", config)
        self.learner = Learner(config, self.store, root / "trainer", lambda: model, 3, FakeBackend)
        self.publisher = FakePublisher()
        self.service = TrainerService(config, self.store, self.learner,
                                      lambda service, versions: self.publisher)  # type: ignore[arg-type,return-value]
        self.server = ComponentServer("trainer", "127.0.0.1", 0, Home(root).create(), self.service.status)
        self.server.add(trainer_pb2_grpc.add_TrainerServiceServicer_to_server,
                        TrainerServicer(self.service, self.store), SERVICE)
        self.channel: grpc.aio.Channel
        self.stub: trainer_pb2_grpc.TrainerServiceAsyncStub

    @property
    def status(self) -> component_pb2.ComponentStatus:
        return self.server.status()

    async def submit(self, *samples: object) -> list[common_pb2.Ack]:
        async def requests() -> AsyncIterator[pb.SubmitSamplesRequest]:
            yield pb.SubmitSamplesRequest(samples=samples)  # type: ignore[arg-type]

        return [ack async for response in self.stub.SubmitSamples(requests()) for ack in response.acks]


@asynccontextmanager
async def trainer(root: Path, model: Path, **settings: object) -> AsyncIterator[Rig]:
    config = TrainerConfig(**{"min_samples": 2, "update_interval": 3600, **settings})
    rig = Rig(root, model, config)
    await rig.server.start()
    rig.service.start()
    try:
        async with connect(rig.server.address) as channel:
            rig.channel = channel
            rig.stub = trainer_pb2_grpc.TrainerServiceStub(channel)  # type: ignore[assignment]
            await asyncio.wait_for(rig.service.loop.ready.wait(), 10)
            yield rig
    finally:
        await rig.server.stop(0)
        await rig.service.stop()
        rig.store.close()


@pytest.fixture(autouse=True)
def _reset() -> None:
    FakeBackend.reset()


async def test_a_neutral_sample_does_not_wait_for_the_next_one(tmp_path: Path, model: Path) -> None:
    """It is let go when its time is over, and not when something else wakes the trainer."""
    async with trainer(tmp_path, model, update_interval=0.05) as rig:
        await rig.submit(make_sample("a", 0))
        await eventually(lambda: not rig.store.samples.statuses([]), 30, "the end of its wait")
        status, = rig.store.samples.statuses(["a"])
        assert status.reason.startswith("no signal: ")


async def test_the_status_is_answered_while_the_store_is_damaged(tmp_path: Path, model: Path) -> None:
    async with trainer(tmp_path, model) as rig:
        database = rig.store.database
        assert "pending" in rig.status.gauges
        with database._lock, database._upkeep.lock:
            database._upkeep.checkpoint("TRUNCATE", 0)  # so that nobody takes anything from memory or the log
            database.path.write_bytes(b"garbage!" * (database.path.stat().st_size // 8))
        stub = component_pb2_grpc.ComponentServiceStub(rig.channel)
        status = (await stub.GetStatus(component_pb2.GetStatusRequest())).status  # type: ignore[misc]
        [alarm] = [alarm for alarm in status.alarms if alarm.name == "state_unusable"]
        assert status.state == component_pb2.COMPONENT_STATE_DEGRADED and "is damaged; a restart" in alarm.message
        assert status.pid and "pending" not in status.gauges


async def test_min_samples_make_a_version(tmp_path: Path, model: Path) -> None:
    async with trainer(tmp_path, model) as rig:
        assert [ack.status for ack in await rig.submit(make_sample("a"))] == [common_pb2.ACK_STATUS_ACCEPTED]
        assert rig.status.detail.startswith("needs 1 more sample or ")
        await rig.submit(make_sample("b", 1))
        await eventually(lambda: rig.publisher.offered == [1])
        listed = (await rig.stub.ListVersions(pb.ListVersionsRequest())).versions
        assert [v.manifest.version for v in listed] == [0, 1]
        assert list(listed[1].manifest.turn_ids) == ["a", "b"]
        assert (listed[1].active, listed[1].kept, listed[1].detail) == (False, True, "not sent yet")
        fates = (await rig.stub.ListSamples(pb.ListSamplesRequest(turn_ids=["b", "x", "a"]))).samples
        assert [(s.turn_id, s.fate, s.version, s.score) for s in fates] == [
            ("b", pb.SAMPLE_FATE_TRAINED, 1, 1), ("a", pb.SAMPLE_FATE_TRAINED, 1, -1)]
        status = rig.status
        assert status.state == component_pb2.COMPONENT_STATE_RUNNING
        assert dict(status.counters) == {"samples_accepted": 2, "samples_trained": 2,
                                         "updates": 1, "steps_skipped": 0, "groups_whole": 0, "groups_incomplete": 0,
                                         "groups_dropped": 0, "groups_alike": 0}
        assert status.gauges["loss"] == 0.5
        assert status.policy_version == 1


async def test_the_interval_makes_a_version_of_fewer(tmp_path: Path, model: Path) -> None:
    async with trainer(tmp_path, model, update_interval=0.3) as rig:
        await rig.submit(make_sample("a"))
        await eventually(lambda: rig.publisher.offered == [1])


async def test_neutral_samples_alone_are_not_trained(tmp_path: Path, model: Path) -> None:
    async with trainer(tmp_path, model, update_interval=0.05) as rig:
        await rig.submit(make_sample("a", 0), make_sample("b", 0), make_sample("c", 0))
        assert rig.status.detail == "has 3 neutral samples; needs one with a score or a hint"
        assert not (await rig.stub.TrainNow(pb.TrainNowRequest())).samples
        await rig.submit(make_sample("d"))
        await eventually(lambda: rig.publisher.offered == [1])
        manifest = (await rig.stub.GetVersion(pb.GetVersionRequest(version=1))).version.manifest
        assert list(manifest.turn_ids) == ["d", "a"]


async def test_it_says_what_is_missing_and_what_was_dropped(tmp_path: Path, model: Path) -> None:
    async with trainer(tmp_path, model, min_samples=4) as rig:
        failed = [make_sample(f"f{i}") for i in range(3)]
        for sample in failed:
            sample.judgement.failed = True
        await rig.submit(make_sample("a"), make_sample("b"), *failed)
        assert rig.status.detail.startswith("needs 2 more samples or 3")
        assert rig.status.detail.endswith(" s; 3 dropped: judge failed")
        assert dict(rig.status.dropped) == {"judge failed": 3}


async def test_engine_and_trainer_that_differ_are_an_alarm_until_they_agree(tmp_path: Path, model: Path) -> None:
    async with trainer(tmp_path, model) as rig:
        FakeBackend.apart, FakeBackend.compared = 1.7, 20
        await make_versions(rig, 1)
        await eventually(lambda: rig.status.gauges["logprob_diff"] == 1.7)
        assert rig.status.state == component_pb2.COMPONENT_STATE_RUNNING, "a few tokens say little"
        FakeBackend.compared = 400
        await rig.submit(make_sample("a"), make_sample("b"))
        await eventually(lambda: rig.status.state == component_pb2.COMPONENT_STATE_DEGRADED)
        assert rig.status.detail.startswith("the log-probabilities of engine and trainer were 1.70 nats apart in the "
                                            "last step, logprob_alarm is 1: check")
        FakeBackend.apart = 0.1
        await rig.submit(make_sample("c"), make_sample("d"))
        await eventually(lambda: rig.status.gauges["logprob_diff"] == 0.1)
        assert rig.status.state == component_pb2.COMPONENT_STATE_RUNNING


async def test_a_session_with_much_to_say_waits_its_turn(tmp_path: Path, model: Path) -> None:
    async with trainer(tmp_path, model, min_samples=3, max_per_session=2) as rig:
        await rig.submit(*(make_sample(f"s{i}") for i in range(5)))
        assert rig.status.detail.startswith("needs 1 more sample or ")
        assert rig.status.detail.endswith(" s (3 samples of the same sessions must wait for later steps)")
        await rig.submit(make_sample("o", session="other"))
        await eventually(lambda: rig.publisher.offered == [1])
        assert list((await rig.stub.GetVersion(pb.GetVersionRequest(version=1))).version.manifest.turn_ids) == [
            "s0", "s1", "o"]
        assert (await rig.stub.TrainNow(pb.TrainNowRequest())).samples == 2
        await eventually(lambda: rig.publisher.offered == [1, 2])


async def test_train_now_waits_for_nothing(tmp_path: Path, model: Path) -> None:
    async with trainer(tmp_path, model, min_samples=99) as rig:
        assert (await rig.stub.TrainNow(pb.TrainNowRequest())).message == "waits for samples"
        await rig.submit(make_sample("a"))
        answer = await rig.stub.TrainNow(pb.TrainNowRequest())
        assert (answer.samples, answer.message) == (1, "a step on 1 samples begins")
        await eventually(lambda: rig.publisher.offered == [1])


async def test_a_pause_holds_until_it_is_resumed(tmp_path: Path, model: Path) -> None:
    async with trainer(tmp_path, model) as rig:
        await rig.stub.Pause(pb.PauseRequest(reason="an experiment"))
        await rig.submit(make_sample("a"), make_sample("b"))
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await rig.stub.TrainNow(pb.TrainNowRequest())
        assert from_rpc_error(failure.value).reason == "PAUSED"
    async with trainer(tmp_path, model) as rig:
        assert rig.status.detail == "paused: an experiment (`openclaw-rl resume` ends it)"
        assert rig.publisher.offered == []
        await rig.stub.Resume(pb.ResumeRequest())
        await eventually(lambda: rig.publisher.offered == [1])


async def test_those_who_watch_are_told(tmp_path: Path, model: Path) -> None:
    async with trainer(tmp_path, model) as rig:
        events: list[pb.WatchTrainingResponse] = []
        call = rig.stub.WatchTraining(pb.WatchTrainingRequest())
        await call.initial_metadata()
        await eventually(lambda: bool(rig.service.events._subscribers))

        async def watch() -> None:
            async for event in call:
                events.append(event)

        task = asyncio.create_task(watch())
        await rig.submit(make_sample("a"), make_sample("b"))
        await eventually(lambda: len(events) == 2)
        FakeBackend.fail = AbnormalStep("the loss is nan")
        await rig.submit(make_sample("c"), make_sample("d"))
        await eventually(lambda: len(events) == 4)
        await rig.service.delivery.on_activated(1, weights_pb2.WeightActivated(version=1, pause_ms=7, pause_steps=1))
        await rig.service.delivery.on_rejected(1, weights_pb2.WeightRejected(version=1, message="no room"))
        await eventually(lambda: len(events) == 6)
        assert [event.kind for event in events] == [
            pb.TRAINING_EVENT_KIND_STEP_STARTED, pb.TRAINING_EVENT_KIND_VERSION_CREATED,
            pb.TRAINING_EVENT_KIND_STEP_STARTED, pb.TRAINING_EVENT_KIND_STEP_SKIPPED,
            pb.TRAINING_EVENT_KIND_VERSION_ACTIVATED, pb.TRAINING_EVENT_KIND_VERSION_REJECTED]
        assert (events[1].version, list(events[1].turn_ids), events[1].metrics["loss"]) == (1, ["a", "b"], 0.5)
        manifest = (await rig.stub.GetVersion(pb.GetVersionRequest(version=1))).version.manifest
        assert (manifest.metrics["pause_ms"], manifest.metrics["pause_steps"], manifest.metrics["loss"]) == (7, 1, 0.5)
        assert (events[3].message, list(events[3].turn_ids)) == ("abnormal step: the loss is nan", ["c", "d"])
        call.cancel()
        await eventually(lambda: not rig.service.events._subscribers)
        task.cancel()


def state(active: int, *, highest: int, withdrawn: tuple[int, ...] = ()) -> policy_pb2.PolicyState:
    state = policy_pb2.PolicyState(active_version=active, highest_version=highest, withdrawn_versions=withdrawn)
    state.activated_at.GetCurrentTime()
    return state


async def make_versions(rig: Rig, count: int) -> None:
    for number in range(1, count + 1):
        await rig.submit(make_sample(f"{number}a"), make_sample(f"{number}b"))
        await eventually(lambda number=number: rig.publisher.offered == list(range(1, number + 1)))  # type: ignore[misc]


async def test_a_version_that_the_gate_refuses_is_told_and_not_offered(tmp_path: Path, model: Path) -> None:
    async with trainer(tmp_path, model) as rig:
        await make_versions(rig, 1)
        events: list[pb.WatchTrainingResponse] = []
        call = rig.stub.WatchTraining(pb.WatchTrainingRequest())
        await call.initial_metadata()
        await eventually(lambda: bool(rig.service.events._subscribers))

        async def watch() -> None:
            async for event in call:
                events.append(event)

        task = asyncio.create_task(watch())
        FakeBackend.says = ("no no no", [5, 6] * 10, 12.0)
        await rig.submit(make_sample("a"), make_sample("b"))
        await eventually(lambda: len(events) == 3)
        assert (events[2].kind, events[2].version, list(events[2].turn_ids)) == (
            pb.TRAINING_EVENT_KIND_VERSION_REFUSED, 2, ["a", "b"])
        assert (rig.publisher.offered, rig.store.versions.head) == ([1], 1)
        assert rig.status.state == component_pb2.COMPONENT_STATE_DEGRADED
        assert rig.status.detail.startswith("the gate refused version 2, training goes on from version 1: 100% of the "
                                            "answers are empty or one phrase again and again; allowed is 25%")
        await rig.service.delivery.on_state(state(1, highest=1))
        assert rig.publisher.offered == [1], "not to one that connects anew either"
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            async for _ in rig.stub.FetchWeights(pb.FetchWeightsRequest(version=2)):
                pass
        assert from_rpc_error(failure.value).reason == "REFUSED_BY_GATE"
        FakeBackend.says = ("a fair answer", list(range(10)), 12.0)
        await rig.submit(make_sample("c"), make_sample("d"))
        await eventually(lambda: rig.publisher.offered == [1, 3])
        await eventually(lambda: rig.status.state == component_pb2.COMPONENT_STATE_RUNNING)
        call.cancel()
        task.cancel()


async def test_it_follows_a_rollback_and_back(tmp_path: Path, model: Path) -> None:
    async with trainer(tmp_path, model) as rig:
        await make_versions(rig, 3)
        await rig.service.delivery.on_state(state(3, highest=3))
        listed = (await rig.stub.ListVersions(pb.ListVersionsRequest())).versions
        assert [v.active for v in listed] == [False, False, False, True]
        await rig.service.delivery.on_state(state(1, highest=3, withdrawn=(2, 3)))
        assert rig.store.versions.head == 1
        listed = (await rig.stub.ListVersions(pb.ListVersionsRequest())).versions
        assert [v.active for v in listed] == [False, True, False, False]
        assert [v.detail for v in listed][2:] == ["rolled back", "rolled back"]
        await rig.service.delivery.on_state(state(2, highest=3, withdrawn=(3,)))
        assert rig.store.versions.head == 2
        await rig.submit(make_sample("x"), make_sample("y"))
        await eventually(lambda: rig.publisher.offered[-1] == 4)
        manifest = (await rig.stub.GetVersion(pb.GetVersionRequest(version=4))).version.manifest
        assert manifest.parent == 2


async def test_a_rollback_while_a_step_runs_gives_its_samples_back(tmp_path: Path, model: Path) -> None:
    """The step ended before the trainer heard of the rollback: its version never serves, nobody learned from it."""
    async with trainer(tmp_path, model) as rig:
        await make_versions(rig, 3)
        for version in (1, 2):
            await rig.service.delivery.on_state(state(version, highest=3))
        events: list[tuple[int, str]] = []
        rig.service.events.tell = lambda kind, message, **facts: events.append((kind, message))
        await rig.service.delivery.on_state(state(1, highest=3, withdrawn=(2,)))
        made = (await rig.stub.GetVersion(pb.GetVersionRequest(version=3))).version
        assert made.detail == ("rejected: it was made from version 2, which was taken back meanwhile; its 2 samples "
                               "wait for another step")
        assert not made.manifest.turn_ids, "or two versions would name them"
        rejected = weights_pb2.WeightRejected(version=3, message="it was trained from version 2")
        await rig.service.delivery.on_rejected(3, rejected)  # the policy server says so too
        assert [message for kind, message in events if kind == pb.TRAINING_EVENT_KIND_VERSION_REJECTED] == [
            made.detail.removeprefix("rejected: ")], "once"
        assert (await rig.stub.GetVersion(pb.GetVersionRequest(version=2))).version.detail == "rolled back"
        offered = rig.publisher.offered.copy()
        rig.service.delivery.offer(3)
        assert rig.publisher.offered == offered, "it is offered no more"
        await eventually(lambda: rig.store.versions.head == 4)
        again = (await rig.stub.GetVersion(pb.GetVersionRequest(version=4))).version.manifest
        assert (again.parent, sorted(again.turn_ids)) == (1, ["3a", "3b"])
        samples = (await rig.stub.ListSamples(pb.ListSamplesRequest(turn_ids=["1a", "2a", "3a"]))).samples
        assert [sample.version for sample in samples] == [1, 2, 4]
        assert rig.status.counters["samples_trained"] == 6
        assert 3 not in rig.learner.versions.versions(), "what it learned is deleted"


async def test_what_was_learned_from_or_is_gone_is_not_given_back(tmp_path: Path, model: Path) -> None:
    """A version that never answered itself, but whose successor did, was not in vain; nor can what is deleted wait."""
    async with trainer(tmp_path, model) as rig:
        await make_versions(rig, 4)
        for version in (1, 3):
            await rig.service.delivery.on_state(state(version, highest=4))
        await rig.service.delivery.on_activated(1, weights_pb2.WeightActivated())
        await rig.service.delivery.on_activated(3, weights_pb2.WeightActivated())
        with rig.store.database.transaction() as db:
            db.execute("UPDATE samples SET payload = NULL WHERE turn_id = '4a'")
        await rig.service.delivery.on_state(state(0, highest=4, withdrawn=(1,)))
        versions = {v.manifest.version: v for v in (await rig.stub.ListVersions(pb.ListVersionsRequest())).versions}
        assert {number: sorted(v.manifest.turn_ids) for number, v in versions.items() if number in (2, 3, 4)} == {
            2: ["2a", "2b"], 3: ["3a", "3b"], 4: ["4a"]}
        samples = (await rig.stub.ListSamples(pb.ListSamplesRequest(turn_ids=["2a", "3a", "4a"]))).samples
        assert [sample.version for sample in samples] == [2, 3, 4]


async def test_a_rollback_to_what_cannot_be_built_on_goes_to_the_version_before(tmp_path: Path, model: Path) -> None:
    async with trainer(tmp_path, model) as rig:
        await make_versions(rig, 3)
        rig.store.versions.lose(2, "its checkpoint is damaged")
        await rig.service.delivery.on_state(state(2, highest=3))
        assert rig.store.versions.head == 3, "it only does not have version 3 yet"
        await rig.service.delivery.on_state(state(2, highest=3, withdrawn=(3,)))
        assert rig.store.versions.head == 1, "what is made from version 3 would be refused"
        await rig.service.delivery.on_state(state(2, highest=3, withdrawn=(3,)))
        assert rig.store.versions.head == 1


async def test_versions_are_listed_however_many_there_are(tmp_path: Path, model: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servicer_module, "PAGE", 2)
    async with trainer(tmp_path, model) as rig:
        await make_versions(rig, 4)
        answer = await rig.stub.ListVersions(pb.ListVersionsRequest())
        assert ([v.manifest.version for v in answer.versions], answer.more) == ([3, 4], True)
        with TrainerServiceClient(rig.server.address) as client:
            every = await asyncio.to_thread(lambda: list(client.every_version()))
        assert [v.manifest.version for v in every] == [4, 3, 2, 1, 0]
        answer = await rig.stub.ListVersions(pb.ListVersionsRequest(before=2))
        assert ([v.manifest.version for v in answer.versions], answer.more) == ([0, 1], False)


async def test_a_policy_server_that_is_behind_is_offered_the_newest(tmp_path: Path, model: Path) -> None:
    async with trainer(tmp_path, model) as rig:
        await make_versions(rig, 2)
    async with trainer(tmp_path, model) as rig:
        assert rig.publisher.offered == []
        await rig.service.delivery.on_state(state(1, highest=1))
        assert (rig.publisher.offered, rig.store.versions.head) == ([2], 2)
        await rig.service.delivery.on_rejected(2, weights_pb2.WeightRejected(version=2, message="another model"))
        await rig.service.delivery.on_state(state(1, highest=1))
        assert rig.publisher.offered == [2]


async def test_a_policy_server_that_knows_more_is_never_sent_an_old_number(tmp_path: Path, model: Path) -> None:
    async with trainer(tmp_path, model) as rig:
        await rig.service.delivery.on_state(state(7, highest=9))
        await rig.submit(make_sample("a"), make_sample("b"))
        await eventually(lambda: rig.publisher.offered == [10])
        manifest = (await rig.stub.GetVersion(pb.GetVersionRequest(version=10))).version.manifest
        assert manifest.parent == 0


async def test_a_model_that_cannot_be_had_is_told_and_tried_again(
        tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(training_loop, "RETRY", 0.05)
    failing = True

    def create(*args: object) -> FakeBackend:
        if failing:
            raise OSError("no such model")
        return FakeBackend(*args)  # type: ignore[arg-type]

    async with trainer(tmp_path, model) as rig:
        rig.learner._create = create  # type: ignore[assignment]
        await rig.submit(make_sample("a"), make_sample("b"))
        await eventually(lambda: rig.status.state == component_pb2.COMPONENT_STATE_DEGRADED)
        assert "can't train: OSError: no such model" in rig.status.detail
        (logged,) = [record for record in caplog.records if "no such model" in record.getMessage()]
        assert not logged.exc_info  # a full or read-only disk is no fault of the program
        assert (await rig.submit(make_sample("c")))[0].status == common_pb2.ACK_STATUS_ACCEPTED
        failing = False
        await eventually(lambda: rig.publisher.offered == [1])
        await eventually(lambda: rig.status.state == component_pb2.COMPONENT_STATE_RUNNING)


async def test_the_model_is_given_back_when_idle(
        tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_loop, "IDLE_RELEASE", 0.05)
    async with trainer(tmp_path, model) as rig:
        await rig.submit(make_sample("a"), make_sample("b"))
        await eventually(lambda: rig.publisher.offered == [1])
        await eventually(lambda: rig.learner._backend is None)


async def test_a_stop_does_not_wait_for_a_step_to_end(tmp_path: Path, model: Path) -> None:
    async with trainer(tmp_path, model) as rig:
        FakeBackend.during = staticmethod(lambda: _wait(lambda: rig.learner._stopping))
        await rig.submit(make_sample("a"), make_sample("b"))
        await eventually(lambda: rig.status.gauges["training"] == 1)
    async with trainer(tmp_path, model, min_samples=9) as rig:
        assert rig.status.gauges["pending"] == 2


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


async def test_errors_name_the_field(tmp_path: Path, model: Path) -> None:
    async with trainer(tmp_path, model) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await rig.stub.GetVersion(pb.GetVersionRequest(version=5))
        assert failure.value.code() == grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await rig.stub.ListSamples(pb.ListSamplesRequest(turn_ids=["t"] * 1001))
        assert from_rpc_error(failure.value).violations[0][0] == "turn_ids"
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            async for _ in rig.stub.FetchWeights(pb.FetchWeightsRequest(version=7)):
                pass
        assert "there is no version '7'; here are 0" in str(failure.value.details())
        acks = await rig.submit(make_sample(""))
        assert acks[0].status == common_pb2.ACK_STATUS_REJECTED


async def test_versions_can_be_fetched(tmp_path: Path, model: Path) -> None:
    async def fetch(rig: Rig, **fields: int) -> tuple[weights_pb2.WeightOffer, bytes]:
        pieces = [piece async for piece in rig.stub.FetchWeights(pb.FetchWeightsRequest(**fields))]
        return pieces[0].offer, b"".join(piece.chunk.data for piece in pieces[1:])

    async with trainer(tmp_path / "a", model) as rig:
        await make_versions(rig, 2)
        offer, data = await fetch(rig)
        assert offer.manifest.version == 2, "the newest"
        opened = rig.learner.versions.open(2)
        assert data == b"".join(opened[spec.name] for spec in offer.tensors)
        offer, changed = await fetch(rig, version=1, base_version=0)
        assert offer.manifest.version == 1 and 0 < len(changed) < len(data) / 10, "one tensor differs"
        with pytest.raises(grpc.aio.AioRpcError, match="base_version 9 is not here"):
            await fetch(rig, base_version=9)
