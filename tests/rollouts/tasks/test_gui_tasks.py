"""Each screen task that comes with the package, in real sandboxes: its solution does it, doing nothing does not."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import jsonschema
import pytest

from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.environments.gui.plugin import GuiType, make
from openclaw_rl.rollouts.environments.interface import Context
from openclaw_rl.rollouts.sandboxes.factory import backend
from openclaw_rl.rollouts.tasks.load import load
from openclaw_rl.rollouts.tasks.task import Task
from tests.support.required import left_out

TASKS = load("gui")


def kind(folder: Path) -> GuiType:
    config = EnvironmentConfig(count=4, backend="bubblewrap")
    return make(config, Context("gui", folder / "gui", backend(config, folder)))


def test_twenty_of_which_five_are_held_out(tmp_path: Path) -> None:
    assert not [task.problem for task in TASKS if task.problem]
    assert Counter(task.split for task in TASKS) == {"train": 15, "held_out": 5}
    levels = Counter((task.split, tag) for task in TASKS for tag in task.tags)
    assert all(levels["train", level] >= 2 and levels["held_out", level] for level in ("easy", "middle", "hard"))
    made = kind(tmp_path)
    validator = jsonschema.Draft202012Validator(made.action_schema)
    for task in TASKS:
        made.check_task(task)
        assert task.max_steps is not None
        assert len(task.solution) < task.max_steps
        for action in task.solution:
            validator.validate({"name": action.name, "arguments": dict(action.arguments)})


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_solved_and_not(tmp_path: Path) -> None:
    """All of them in one test, several at once: most of a step is waiting."""
    made = kind(tmp_path)
    if rejection := await made.validate():
        left_out(rejection.message)
    places = asyncio.Semaphore(4)
    wrong = [problem for problem in await asyncio.gather(*(_try(made, task, places) for task in TASKS)) if problem]
    assert not wrong, "\n\n".join(wrong)


async def _try(made: GuiType, task: Task, places: asyncio.Semaphore) -> str:
    """What is wrong with a task; empty when nothing is."""
    async with places:
        environment = await made.make()
        try:
            opening = await environment.reset(task, 1)
            jsonschema.validate(opening.observation.data, made.observation_schema)
            if (await environment.evaluate()).value >= 1:
                return f"{task.id}: it is done before anything was"
            seen = opening.observation.text
            for action in task.solution:
                result = await environment.step(action, 60)
                jsonschema.validate(result.observation.data, made.observation_schema)
                seen += f"\n{action.name} {action.arguments}:\n{result.observation.text}"
                if result.error or not result.observation.image_png:
                    return f"{task.id}: {action}: {result.error or 'no picture'}"
            outcome = await environment.evaluate()
            return "" if result.done and outcome.value == 1 else f"{task.id}: {outcome.detail}\n{seen}"
        finally:
            await environment.close()
