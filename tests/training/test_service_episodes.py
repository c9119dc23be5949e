"""Groups of episodes over the trainer's service: when it trains on them, and what status says meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_rl.v1 import trainer_pb2 as pb
from tests.support.waiting import eventually
from tests.training.episodes import step_of
from tests.training.fakes import FakeBackend, make_sample
from tests.training.test_service import trainer


@pytest.fixture(autouse=True)
def _reset() -> None:
    FakeBackend.reset()


async def test_groups_make_a_version_and_status_tells_what_is_waited_for(tmp_path: Path, model: Path) -> None:
    async with trainer(tmp_path, model, grpo={"groups": 2}) as rig:
        await rig.submit(step_of("a"), step_of("b", outcome=0.0))
        assert rig.status.detail == "has 0 of 2 groups; group g waits for 1 of 2 episodes"
        await rig.submit(step_of("a", 2, outcome=1.0))
        await eventually(lambda: rig.status.detail.startswith("has 1 of 2 groups, trains on what there is in "))
        assert rig.status.gauges["pending"] == 3
        await rig.submit(step_of("c", group="h", outcome=1.0), step_of("d", group="h", outcome=0.0),
                         make_sample("user", 1))
        await eventually(lambda: rig.publisher.offered == [1])
        status = rig.status
        assert status.gauges["reward_mean"] == pytest.approx(3 / 5)
        assert (status.gauges["outcome_mean"], status.gauges["updates_per_hour"]) == (0.5, 1)
        assert (status.gauges["staleness"], status.counters["groups_whole"]) == (0, 2)
        listed = (await rig.stub.ListVersions(pb.ListVersionsRequest())).versions
        assert (listed[1].manifest.algorithm, len(listed[1].manifest.turn_ids)) == ("grpo", 5)
        [fate] = (await rig.stub.ListSamples(pb.ListSamplesRequest(turn_ids=["b-1"]))).samples
        assert (fate.fate, fate.version, round(fate.advantage, 3)) == (pb.SAMPLE_FATE_TRAINED, 1, -1)
        assert rig.status.detail.startswith("needs 1 more sample or ")  # the user's waits for another


async def test_train_now_takes_the_groups_that_are_ready(tmp_path: Path, model: Path) -> None:
    async with trainer(tmp_path, model) as rig:
        answer = await rig.stub.TrainNow(pb.TrainNowRequest())
        assert (answer.samples, answer.message) == (0, "waits for samples")
        await rig.submit(step_of("a", outcome=1.0), step_of("b", outcome=0.0))
        await eventually(lambda: rig.store.episodes.waiting().ready == 1)
        answer = await rig.stub.TrainNow(pb.TrainNowRequest())
        assert (answer.samples, answer.message) == (2, "a step on 2 samples begins")
        await eventually(lambda: rig.publisher.offered == [1])


async def test_an_incomplete_group_is_taken_when_its_time_is_up(tmp_path: Path, model: Path) -> None:
    async with trainer(tmp_path, model, grpo={"groups": 1, "group_timeout": 0.3}) as rig:
        await rig.submit(step_of("a", size=3, outcome=1.0), step_of("b", size=3, outcome=0.0))
        await eventually(lambda: rig.publisher.offered == [1])
        assert rig.status.counters["groups_incomplete"] == 1


async def test_an_incomplete_group_is_taken_before_users_steps_make_it_stale(tmp_path: Path, model: Path) -> None:
    async with trainer(tmp_path, model, min_samples=1, max_staleness=2) as rig:
        await rig.submit(step_of("a", size=3, outcome=1.0), step_of("b", size=3, outcome=0.0))
        for version in (1, 2):
            await rig.submit(make_sample(f"user{version}", 1))
            await eventually(lambda v=version: v in rig.publisher.offered)
        await eventually(lambda: rig.publisher.offered == [1, 2, 3])
        assert rig.status.counters["groups_incomplete"] == 1


async def test_episodes_say_nothing_of_how_users_find_a_version(tmp_path: Path, model: Path) -> None:
    async with trainer(tmp_path, model) as rig:
        await rig.submit(step_of("a", votes=(-1,)), make_sample("user", 1))
        assert {version: scores.turns for version, scores in rig.store.scores.all().items()} == {0: 1}


async def test_figures_of_the_last_step_are_there_after_a_restart(tmp_path: Path, model: Path) -> None:
    async with trainer(tmp_path, model, grpo={"groups": 1}) as rig:
        await rig.submit(step_of("a", outcome=1.0), step_of("b", outcome=0.0))
        await eventually(lambda: rig.publisher.offered == [1])
    async with trainer(tmp_path, model) as rig:
        assert rig.status.gauges["reward_mean"] == 0.5
        assert rig.status.gauges["updates_per_hour"] == 1
