"""Each tool_call task that comes with the package: its solution does it, and doing nothing does not."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from openclaw_rl.rollouts.environments.interface import StepResult
from openclaw_rl.rollouts.environments.tool_call.check import drawn
from openclaw_rl.rollouts.environments.tool_call.plugin import DeclaredFunctionsType
from openclaw_rl.rollouts.tasks.load import load
from openclaw_rl.rollouts.tasks.task import Action, Task

TASKS = load("tool_call")
IDS = [task.id for task in TASKS]


def test_forty_of_which_ten_are_held_out() -> None:
    assert not [task.problem for task in TASKS if task.problem]
    assert Counter(task.split for task in TASKS) == {"train": 30, "held_out": 10}
    levels = Counter((task.split, tag) for task in TASKS for tag in task.tags)
    assert levels["train", "easy"] >= 12 and levels["held_out", "easy"] >= 4
    assert levels["train", "hard"] >= 4 and levels["held_out", "hard"] >= 2


@pytest.mark.parametrize("task", TASKS, ids=IDS)
async def test_solved(task: Task) -> None:
    kind = DeclaredFunctionsType()
    kind.check_task(task)
    environment = await kind.make()
    assert task.max_steps is not None and len(task.solution) <= task.max_steps
    for seed in (None, 1, 2):
        opening = await environment.reset(task, seed)
        assert opening.goal and not re.search(r"\{\w", opening.goal), "something was not drawn"
        assert not any("{" in tool.description for tool in opening.tools)
        results: list[StepResult] = []
        for action in drawn(task, seed).solution:
            results.append(await environment.step(action, 5))
        outcome = await environment.evaluate()
        assert outcome.value == 1, (seed, outcome.detail, [result.observation.text for result in results])
        if "recover" not in task.tags:
            assert not any(result.error for result in results)


@pytest.mark.parametrize("task", TASKS, ids=IDS)
async def test_nothing_done(task: Task) -> None:
    environment = await DeclaredFunctionsType().make()
    await environment.reset(task, 1)
    assert (await environment.evaluate()).value == 0
    await environment.step(Action("submit", {"answer": "I don't know."}), 5)
    outcome = await environment.evaluate()
    assert outcome.value == 0 and outcome.detail


def test_a_goal_is_not_one_memorised_text() -> None:
    varied = [task for task in TASKS if len({drawn(task, seed).goal for seed in range(20)}) > 1]
    assert len(varied) >= 30


