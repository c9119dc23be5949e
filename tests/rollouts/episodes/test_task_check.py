"""Trials of tasks: each verdict, what hangs, and that many tasks are tried with few sandboxes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from openclaw_rl.cli.commands import app
from openclaw_rl.rollouts.environments.interface import (
    BadAction,
    BadTask,
    Observation,
    Opening,
    Outcome,
    StepResult,
)
from openclaw_rl.rollouts.episodes.task_check import Verdict, try_task, try_tasks
from openclaw_rl.rollouts.sandboxes.interface import SandboxError
from openclaw_rl.rollouts.tasks.task import Action, Task

SOLUTION = (Action("act", {}),)


@dataclass
class Scripted:
    """An environment whose check gives one value after another."""

    outcomes: Sequence[float] = ()
    fails: str = ""  #: what it can't do
    problem: str = ""
    given: int = 0
    closed: bool = False
    resets: list[int | None] = field(default_factory=list)

    async def reset(self, task: Task | None, seed: int | None) -> Opening:
        self.resets.append(seed)
        if self.fails == "reset":
            raise BadTask("`setup.run`: no")
        if self.fails == "hang":
            await asyncio.Event().wait()
        return Opening(Observation({}))

    async def step(self, action: Action, seconds: float) -> StepResult:
        if self.fails == "step":
            raise BadAction("`name`: no")
        return StepResult(Observation({}))

    async def evaluate(self) -> Outcome:
        if self.fails == "evaluate":
            raise SandboxError("gone")
        self.given += 1
        return Outcome(self.outcomes[self.given - 1], f"number {self.given}")

    async def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(("outcomes", "solution", "verdict", "says"), [
    ((0, 1, 0, 1), SOLUTION, Verdict.GOOD, ""),
    ((0, 0), (), Verdict.NO_SOLUTION, "a `solution` would show"),
    ((1, 1), (), Verdict.ALWAYS_PASSES, "passes when nothing was done"),
    ((1, 1, 1, 1), SOLUTION, Verdict.ALWAYS_PASSES, ""),
    ((0, 0.5, 0, 0.5), SOLUTION, Verdict.NEVER_PASSES, "gives 0.5 after its solution: number 2"),
    ((0, 1, 0, 0), SOLUTION, Verdict.FLAKY, "gave 1 and 0 after its solution, with the same seed"),
    ((0, 1), (), Verdict.FLAKY, "gave 0 and 1 when nothing was done")])
async def test_verdicts(outcomes: Sequence[float], solution: Sequence[Action], verdict: Verdict, says: str) -> None:
    environment = Scripted(outcomes)
    found = await try_task(environment, Task("t", "x", "g", solution=solution), 60)
    assert found.verdict is verdict and says in found.detail
    assert environment.resets == [1, 1]
    assert found.verdict.usable == (verdict in (Verdict.GOOD, Verdict.NO_SOLUTION))


@pytest.mark.parametrize(("fails", "verdict", "says"), [
    ("reset", Verdict.UNUSABLE, "its set-up does not work: `setup.run`: no"),
    ("hang", Verdict.UNUSABLE, "its set-up took longer than 0.01 s (--timeout)"),
    ("step", Verdict.NEVER_PASSES, "action 1 of its solution is not possible: `name`: no"),
    ("evaluate", Verdict.UNUSABLE, "its check does not work: gone")])
async def test_what_does_not_work(fails: str, verdict: Verdict, says: str) -> None:
    limit = 0.01 if fails == "hang" else 60
    found = await try_task(Scripted((0, 1, 0, 1), fails), Task("t", "x", "g", solution=SOLUTION), limit)
    assert (found.verdict, found.detail) == (verdict, says)


class ScriptedType:
    def __init__(self, fails: str = "") -> None:
        self.made: list[Scripted] = []
        self.fails = fails

    async def make(self) -> Scripted:
        if self.fails == "make":
            raise SandboxError("no more of them")
        self.made.append(Scripted([0.0] * 100_000, self.fails))
        return self.made[-1]


async def test_many_tasks_are_tried_with_few_sandboxes() -> None:
    made: Any = ScriptedType()
    tasks = [Task(f"t{i}", "x", "g", problem="bad" if i % 10 == 0 else "") for i in range(10_000)]
    found = Counter([trial.verdict async for trial in try_tasks(made, tasks, 4, 60)])
    assert found == {Verdict.NO_SOLUTION: 9000, Verdict.UNUSABLE: 1000}
    assert len(made.made) == 4 and all(environment.closed for environment in made.made)


async def test_a_sandbox_that_failed_is_not_used_again() -> None:
    made: Any = ScriptedType("reset")
    assert len([trial async for trial in try_tasks(made, [Task(f"t{i}", "x", "g") for i in range(3)], 1, 60)]) == 3
    assert len(made.made) == 3 and all(environment.closed for environment in made.made)


async def test_no_sandbox_is_an_error() -> None:
    made: Any = ScriptedType("make")
    with pytest.raises(SandboxError, match="no more"):
        [trial async for trial in try_tasks(made, [Task(f"t{i}", "x", "g") for i in range(5)], 2, 60)]


GOOD = """
- id: good
  goal: Call it.
  setup: {functions: [{name: it, description: It., return: 1}]}
  check: {calls: [{name: it}]}
  solution: [{name: it}, {name: submit}]
"""
NEVER = GOOD.replace("id: good", "id: never").replace("solution: [{name: it}, ", "solution: [")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENCLAW_RL_HOME", str(tmp_path / "home"))
    (tmp_path / "tasks").mkdir()
    return tmp_path / "tasks"


def command(*args: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["episodes", "check", *map(str, args)])
    return result.exit_code, result.output


def test_the_command(folder: Path) -> None:
    (folder / "a.yaml").write_text(GOOD)
    code, output = command(folder, "--kind", "tool_call")
    assert (code, output) == (0, "1 tasks: 1 good; to use: 1 to train on, 0 held out\n")
    (folder / "b.yaml").write_text(NEVER + "- {id: none, goal: x, check: {}}\n")
    code, output = command(folder, "--kind", "tool_call")
    assert code == 1 and f"never passes: {folder / 'b.yaml'}, line 2, task never: the check gives 0" in output
    assert f"unusable: {folder / 'b.yaml'}, line 7, task none: `setup`" in output
    assert command(folder, "--kind", "tool_call", "--task", "good")[0] == 0


def test_what_the_command_refuses(folder: Path) -> None:
    assert "no folder" in command(folder / "none")[1]
    assert command(folder, "-k", "tool_call")[0] == 2
    (folder / "a.yaml").write_text(GOOD)
    code, output = command(folder, "-k", "tool_call", "--task", "nine")
    assert code == 2 and "'nine' is no task" in output
    assert "is no kind of environment; there are" in str(CliRunner().invoke(
        app, ["episodes", "check", str(folder), "-k", "zoo"]).exception)


def test_the_kind_is_that_of_the_environment_with_the_folder(folder: Path) -> None:
    (folder / "a.yaml").write_text(GOOD)
    home = folder.parent / "home"
    home.mkdir()
    (home / "config.yaml").write_text(
        f"components: {{env_server: {{environments: {{mine: {{kind: tool_call, count: 1, tasks: {folder}}}}}}}}}")
    assert command(folder)[0] == 0
