"""The watch against a real policy servicer over gRPC: versions flow there, are judged worse, and are taken back."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from openclaw_rl.config import TrainerConfig
from openclaw_rl.models.identity import model_id
from openclaw_rl.training.learner import Learner
from openclaw_rl.training.release import regression_monitor
from openclaw_rl.training.release.delivery import Delivery
from openclaw_rl.training.release.policy_client import GrpcPolicyClient
from openclaw_rl.training.service import TrainerService
from openclaw_rl.training.servicer import TrainerServicer
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.v1 import component_pb2, policy_pb2, weights_pb2
from openclaw_rl.v1 import trainer_pb2 as pb
from openclaw_rl.weights.store import VersionStore
from openclaw_rl.weights.transfer.replicas import Replicas
from tests.serving import peers
from tests.support.waiting import eventually
from tests.training.fakes import FakeBackend, make_sample


@pytest.fixture
async def policy(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[peers.Server]:
    """A policy server for the tests' model."""
    class Engine(peers.FakeEngine):
        def __init__(self, accepts_weights: bool = True) -> None:
            super().__init__(accepts_weights)
            self.info = replace(self.info, model_id=model_id(model))

    monkeypatch.setattr(peers, "FakeEngine", Engine)
    server = peers.Server(tmp_path / "policy", model, keep=5)
    await server.start()
    yield server
    await server.kill()


class Rig:
    """A trainer that feeds the policy server."""

    def __init__(self, root: Path, model: Path, policy: peers.Server) -> None:
        config = TrainerConfig(min_samples=2, max_batch=2, update_interval=3600)
        self.store = TrainerStore(root / "trainer" / "state.db", "group", config)
        learner = Learner(config, self.store, root / "trainer", lambda: model, 5, FakeBackend)
        self.events: list[pb.WatchTrainingResponse] = []
        self.policy = policy
        self.turns = itertools.count()

        def replicas(delivery: Delivery, versions: VersionStore) -> Replicas:
            return Replicas(lambda: policy.address, (), versions, on_state=delivery.on_state,
                         on_activated=delivery.on_activated, on_rejected=delivery.on_rejected,
                         active=int(self.store.state.get("active") or 0), manifest=self.manifest,
                         on_number=self.store.versions.raise_highest, on_further=delivery.on_further,
                         history=lambda address: pytest.fail("there is no further one"))

        self.service = TrainerService(config, self.store, learner, replicas, GrpcPolicyClient(lambda: policy.address))

    def manifest(self, version: int) -> weights_pb2.VersionManifest | None:
        known = self.store.versions.get(version)
        return known.manifest if known is not None else None

    async def version(self, number: int) -> None:
        """Make the next version, and wait until it answers."""
        await self.judged(0, 1, 1)  # of version 0, which is not looked at any more
        await eventually(lambda: self.policy.active == number)
        await eventually(lambda: self.store.state.get("active") == str(number))

    async def judged(self, version: int, *scores: int) -> None:
        await self.service.accept([make_sample(f"t{next(self.turns)}", score, version=version) for score in scores])

    async def live(self, version: int, *scores: int) -> None:
        """Judged turns that nobody trains on: they have no token ids."""
        samples = [make_sample(f"t{next(self.turns)}", score, version=version) for score in scores]
        for sample in samples:
            sample.transition.turn.ClearField("tokens")
        await self.service.accept(samples)


@asynccontextmanager
async def trainer(tmp_path: Path, model: Path, policy: peers.Server) -> AsyncIterator[Rig]:
    FakeBackend.reset()
    rig = Rig(tmp_path, model, policy)

    async def listen() -> None:
        async for event in rig.service.events.watch():
            rig.events.append(event)

    listening = asyncio.create_task(listen())
    rig.service.start()
    try:
        await asyncio.wait_for(rig.service.loop.ready.wait(), 10)
        yield rig
    finally:
        await rig.service.stop()
        listening.cancel()
        rig.store.close()


async def test_the_policy_goes_back_by_itself_and_says_so(tmp_path: Path, model: Path, policy: peers.Server) -> None:
    async with trainer(tmp_path, model, policy) as rig:
        await rig.version(1)
        await rig.version(2)
        await rig.live(1, *[1, 1, 0] * 8)
        await rig.live(2, *[-1, -1, 0] * 8)
        await eventually(lambda: policy.active == 1)
        await eventually(lambda: rig.store.versions.head == 1)
        await eventually(lambda: rig.service._monitor.detector.going is None)
        assert policy.versions.state().withdrawn_versions == [2]
        went = pb.TRAINING_EVENT_KIND_WATCH_WENT_BACK
        await eventually(lambda: any(event.kind == went for event in rig.events))
        assert [(event.version, event.message.partition("(")[0]) for event in rig.events if event.kind == went] == [
            (1, "watch: mean score of live turns fell from 0.67 ")]
        status = rig.service.status()
        assert status.state == component_pb2.COMPONENT_STATE_DEGRADED
        assert "the watch went back to version 1 (watch: mean score of live turns fell from 0.67" in status.detail
        servicer = TrainerServicer(rig.service, rig.store)
        listed = (await servicer.ListVersions(pb.ListVersionsRequest(), None)).versions  # type: ignore[arg-type]
        assert listed[2].detail.startswith("taken back by the watch: mean score of live turns fell from 0.67")
        assert (listed[2].live.turns, round(listed[2].live.mean, 2), listed[1].active) == (24, -0.67, True)
        # Training goes on from there, and what comes next is served.
        await rig.version(3)
        assert rig.store.versions.get(3).manifest.parent == 1
        await rig.live(3, *[1, 1, 0] * 7)
        await eventually(lambda: "watch" not in rig.service.status().detail)
        # An operator who goes forward again has the last word.
        await policy.versions.activate(2, "I know better")
        await eventually(lambda: rig.store.versions.active == 2)
        await rig.live(2, *[-1] * 60)
        for _ in range(50):
            await asyncio.sleep(0.01)
        assert policy.active == 2


async def test_nothing_goes_back_while_pinned(tmp_path: Path, model: Path, policy: peers.Server) -> None:
    async with trainer(tmp_path, model, policy) as rig:
        await rig.version(1)
        await rig.version(2)
        await policy.versions.activate(None, "a demonstration", pin=True)
        looks = 0
        state = rig.service._monitor._policy.state

        async def counted() -> policy_pb2.PolicyState:
            nonlocal looks
            looks += 1
            return await state()

        rig.service._monitor._policy.state = counted  # type: ignore[method-assign,union-attr]
        await rig.live(1, *[1] * 24)
        await rig.live(2, *[-1] * 24)
        await eventually(lambda: looks > 0)
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert (policy.active, rig.service._monitor.detector.alarm) == (2, "")
        # The turns are not forgotten: they count when the pin is lifted.
        await policy.versions.activate(None, pin=False)
        await eventually(lambda: policy.active == 1)


async def test_a_policy_server_that_is_away_is_asked_again(
        tmp_path: Path, model: Path, policy: peers.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regression_monitor, "RETRY", 0.05)
    async with trainer(tmp_path, model, policy) as rig:
        await rig.version(1)
        await rig.version(2)
        await policy.kill()
        await rig.live(1, *[1] * 24)
        await rig.live(2, *[-1] * 24)
        await eventually(lambda: "the watch can't look or go back now" in rig.service.status().detail)
        await policy.start()
        await eventually(lambda: policy.active == 1, 20)
        await eventually(lambda: rig.store.versions.head == 1, 20)
