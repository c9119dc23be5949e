"""Which tasks are drawn, and the groups that are run in place of those that went alike."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from openclaw_rl.rollouts.episodes.plan_supply import PlanSupply
from openclaw_rl.rollouts.episodes.task_draw import EpisodePlan, SuccessRate, draw_episodes
from openclaw_rl.rollouts.tasks.task import Task
from openclaw_rl.v1.environment_pb2 import RunEpisodesRequest
from tests.rollouts.episodes.rig import WELL, Rig, call, steps

TASKS = [Task("always", "k", "g"), Task("never", "k", "g"), Task("seldom", "k", "g"), Task("new", "k", "g"),
         Task("hard", "k", "g", tags=("hard",)), Task("medium", "k", "g", tags=("x", "medium")),
         Task("held", "k", "g", split="held_out")]
RATES = {"always": SuccessRate(8, 1.0), "never": SuccessRate(8, 0.0), "seldom": SuccessRate(8, 0.2),
         "new": SuccessRate(3, 0.0)}


def drawn(groups: int, extra: float = 0, rates: dict[str, SuccessRate] | None = RATES,
          **more: object) -> tuple[list[str], list[str]]:
    request = RunEpisodesRequest(type="k", groups=groups, group_size=2, **more)  # type: ignore[arg-type]
    plans, reserve = draw_episodes(request, TASKS, rates, extra)
    return [plan.task.id for plan in plans[::2]], [plan.task.id for plan in reserve[::2]]


@pytest.mark.parametrize("seed", range(5))
def test_tasks_that_are_done_now_and_then_or_new_come_first(seed: int) -> None:
    order, _ = drawn(6, seed=seed)
    assert set(order[:2]) == {"seldom", "new"} and order[2:4] == ["medium", "hard"]
    assert set(order[4:]) == {"always", "never"}
    assert drawn(6, seed=seed)[0] == order


def test_no_curriculum_where_nothing_is_trained_or_tasks_are_named() -> None:
    assert len({tuple(drawn(2, seed=seed, no_train=True)[0]) for seed in range(20)}) > 2
    assert len({tuple(drawn(2, rates=None, seed=seed)[0]) for seed in range(20)}) > 2
    assert drawn(0, seed=1)[0] == [task.id for task in TASKS[:-1]], "one group per task: all, in their order"


def test_the_reserve_is_a_share_of_what_is_trained_on() -> None:
    plans, reserve = drawn(4, 0.5, seed=1)
    assert len(plans) == 4 and len(reserve) == 2 and not set(plans) & set(reserve)
    assert drawn(4, 0.5, no_train=True)[1] == [] and drawn(4)[1] == []


def group(name: str, size: int = 2) -> list[EpisodePlan]:
    return [EpisodePlan(name, size, TASKS[0], False, None, None) for _ in range(size)]


async def test_a_group_that_went_alike_is_replaced_while_there_is_a_reserve() -> None:
    supply = PlanSupply([*group("a"), *group("b")], [*group("r1"), *group("r2")])
    ends: dict[str, list[float | None]] = {"a": [1.0, 0.0], "b": [0.0, 0.0], "r1": [1.0, 1.0], "r2": [None, None]}
    ran, more = [], 0
    while (plan := await supply.next()) is not None:
        ran.append(plan.group)
        more += supply.ended(plan, ends[plan.group].pop())
    assert (ran, more) == (["a", "a", "b", "b", "r1", "r1", "r2", "r2"], 4)


async def test_workers_wait_for_what_may_come_and_end_when_nothing_can() -> None:
    supply = PlanSupply(group("a"), group("r"))
    first, second = await supply.next(), await supply.next()
    assert first is not None and second is not None
    waiting = [asyncio.create_task(supply.next()) for _ in range(3)]
    supply.ended(first, 0.0)
    assert supply.ended(second, 0.0) == 2
    done, pending = await asyncio.wait(waiting, timeout=60)
    found = [task.result() for task in done]
    assert not pending and sorted(plan.group for plan in found if plan is not None) == ["r", "r"]
    assert found.count(None) == 1, "the reserve is used up, so the third has nothing to wait for"


async def test_a_run_has_further_groups_for_those_that_went_alike(tmp_path: Path) -> None:
    rig = Rig(tmp_path, extra_groups=0.5)
    await rig.start()
    try:
        events = await rig.run(task_ids=[], groups=2, group_size=2, seed=1)  # all of them reach the goal
        assert events[-1].ended == events[-1].total == 6
        assert len({event.episode.task_id for event in events}) == 3
        assert (await rig.run(task_ids=[], groups=2, group_size=2, no_train=True))[-1].total == 4
    finally:
        await rig.stop()


async def test_a_run_takes_the_success_rates_of_earlier_ones(rig: Rig) -> None:
    await rig.run(task_ids=["t0", "t1"], group_size=4)  # always done
    rig.policy.script = steps(call("submit", {}))
    await rig.run(task_ids=["t2"], group_size=4)  # never
    rig.policy.script = WELL
    for seed in range(4):  # then it was tried four times as well, and always done
        events = await rig.run(task_ids=[], groups=1, group_size=1, seed=seed)
        assert {event.episode.task_id for event in events} == {"t3"}
