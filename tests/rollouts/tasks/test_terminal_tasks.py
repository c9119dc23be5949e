"""Each terminal task that comes with the package, in a real sandbox: its solution does it, doing nothing does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.environments.interface import Context
from openclaw_rl.rollouts.environments.terminal.plugin import TerminalEnvironment, make
from openclaw_rl.rollouts.sandboxes.factory import backend
from openclaw_rl.rollouts.sandboxes.interface import Unusable
from openclaw_rl.rollouts.tasks.load import load
from openclaw_rl.rollouts.tasks.task import Action, Task
from openclaw_rl.runtime.rejection import Rejection
from tests.support.required import left_out

CONFIG = EnvironmentConfig(count=1, backend="bubblewrap")
TASKS = load("terminal")
IDS = [task.id for task in TASKS]
_REJECTIONS: list[Rejection[Unusable] | None] = []  # found out once, by making a sandbox


@pytest.fixture
async def terminal(tmp_path: Path) -> AsyncIterator[TerminalEnvironment]:
    kind = make(CONFIG, Context("terminal", tmp_path / "terminal", backend(CONFIG, tmp_path)))
    if not _REJECTIONS:
        _REJECTIONS.append(await kind.validate())
    if rejection := _REJECTIONS[0]:
        left_out(rejection.message)
    environment = await kind.make()
    yield environment
    await environment.close()


def test_forty_of_which_ten_are_held_out() -> None:
    assert not [task.problem for task in TASKS if task.problem]
    kind = make(CONFIG, Context("terminal", Path(), backend(CONFIG, Path())))
    for task in TASKS:
        kind.check_task(task)
    assert Counter(task.split for task in TASKS) == {"train": 30, "held_out": 10}
    levels = Counter((task.split, tag) for task in TASKS for tag in task.tags)
    assert levels["train", "easy"] >= 12 and levels["held_out", "easy"] >= 4
    assert levels["train", "hard"] >= 4 and levels["held_out", "hard"] >= 2


@pytest.mark.parametrize("task", TASKS, ids=IDS)
async def test_solved_and_not(terminal: TerminalEnvironment, task: Task) -> None:
    assert task.max_steps is not None and len(task.solution) < task.max_steps
    await terminal.reset(task, 1)
    assert (await terminal.evaluate()).value < 1, "nothing was done"
    assert (await terminal.step(Action("submit", {"answer": "I don't know."}), 10)).done
    assert (await terminal.evaluate()).value < 1, "nothing was done but to submit"
    for action in task.solution:
        result = await terminal.step(action, 10)
        assert not result.error, result.error
        assert result.done or "[exit code: 0" in result.observation.text or task.id == "fix-the-script"
    outcome = await terminal.evaluate()
    assert outcome.value == 1, outcome.detail
