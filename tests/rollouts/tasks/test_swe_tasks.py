"""Each repository task that comes with the package, in real sandboxes: its solution does it, doing nothing does not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import jsonschema
import pytest

from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.environments.interface import Context
from openclaw_rl.rollouts.environments.swe.plugin import SweType, make
from openclaw_rl.rollouts.sandboxes.factory import backend
from openclaw_rl.rollouts.sandboxes.interface import WORK
from openclaw_rl.rollouts.tasks.load import load
from openclaw_rl.rollouts.tasks.task import Action, Task
from tests.support.required import left_out

TASKS = load("swe")
IDS = [task.id for task in TASKS]


@pytest.fixture
async def kind(tmp_path: Path) -> AsyncIterator[SweType]:
    config = EnvironmentConfig(count=2, backend="bubblewrap")
    kind = make(config, Context("swe", tmp_path / "swe", backend(config, tmp_path)))
    if rejection := await kind.validate():
        left_out(rejection.message)
    yield kind
    await kind.close()


def test_twenty_of_which_five_are_held_out() -> None:
    assert not [task.problem for task in TASKS if task.problem]
    assert Counter(task.split for task in TASKS) == {"train": 15, "held_out": 5}
    levels = Counter((task.split, tag) for task in TASKS for tag in task.tags)
    assert all(levels["train", level] >= 3 and levels["held_out", level] for level in ("easy", "middle", "hard"))


@pytest.mark.parametrize("task", TASKS, ids=IDS)
async def test_solved_and_not(kind: SweType, task: Task) -> None:
    assert task.max_steps is not None and len(task.solution) < task.max_steps
    kind.check_task(task)
    environment = await kind.make()
    try:
        opening = await environment.reset(task, 1)
        jsonschema.validate(opening.observation.data, kind.observation_schema)
        assert not any(path in opening.observation.text for path in task.check["hidden"])
        visible = await environment.step(Action("run", {"command": "timeout 20 python3 -m unittest"}), 30)
        if task.id != "swe-search":  # whose failing case would never end
            assert visible.observation.data["exit_code"] == 1, "the test that is seen fails at first"
        before = await environment.evaluate()
        assert before.value < 1, "nothing was done"
        assert before.detail
        for action in task.solution:
            jsonschema.validate(json.loads(json.dumps({"name": action.name, "arguments": action.arguments})),
                                kind.action_schema)
            result = await environment.step(action, 30)
            jsonschema.validate(result.observation.data, kind.observation_schema)
            assert not result.error, result.error
            assert action.name != "run" or result.observation.data["exit_code"] == 0, result.observation.text
        assert result.done
        after = await environment.evaluate()
        assert after.value == 1, after.detail
        seen = await environment.step(Action("run", {"command": f"find {WORK} /tmp"}), 30)
        assert "more" not in seen.observation.text, "the policy's sandbox has nothing of the check's"
    finally:
        await environment.close()
