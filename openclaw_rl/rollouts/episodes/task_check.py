"""Trial of tasks in real sandboxes before an episode is run on them.

A set-up has to work, the check to fail before and to pass after the solution, and all of it to be so twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from openclaw_rl.rollouts.environments.interface import BadAction, BadTask, Environment, EnvironmentType
from openclaw_rl.rollouts.sandboxes.interface import SandboxError
from openclaw_rl.rollouts.tasks.task import Task

#: How often each task is tried, always with the same seed.
ROUNDS = 2
_SEED = 1


class Verdict(StrEnum):
    """What a trial found out about a task."""

    GOOD = "good"
    NO_SOLUTION = "no solution"  #: the check fails before; whether it can pass is not known
    UNUSABLE = "unusable"  #: its file, its set-up or its check does not work
    ALWAYS_PASSES = "always passes"  #: the check passes when nothing was done
    NEVER_PASSES = "never passes"  #: the check fails after the solution
    FLAKY = "flaky"  #: the rounds differ

    @property
    def usable(self) -> bool:
        """Whether there is nothing against episodes on the task."""
        return self in (Verdict.GOOD, Verdict.NO_SOLUTION)


@dataclass(frozen=True, slots=True)
class Trial:
    """A task and what was found out about it."""

    task: Task
    verdict: Verdict
    detail: str = ""  #: for a person


async def try_tasks(type_: EnvironmentType, tasks: Sequence[Task], parallel: int, seconds: float
                    ) -> AsyncIterator[Trial]:
    """Try tasks, in no order, a bounded number of them at once.

    Args:
        type_: of the environment.
        parallel: sandboxes at once.
        seconds: limit of a set-up, an action and a check.

    Raises:
        SandboxError: no sandbox can be made.
    """
    waiting = iter(tasks)
    done: asyncio.Queue[Trial | None] = asyncio.Queue(4 * parallel)  # whoever reads slowly slows the trials

    async def work() -> None:
        environment = None
        try:
            for task in waiting:
                if task.problem:
                    await done.put(Trial(task, Verdict.UNUSABLE, task.problem))
                    continue
                environment = environment or await type_.make()
                trial = await try_task(environment, task, seconds)
                if environment.problem or trial.verdict is Verdict.UNUSABLE:  # what hung may hang on
                    await environment.close()
                    environment = None
                await done.put(trial)
        finally:
            if environment is not None:
                await environment.close()
            with suppress(asyncio.QueueFull):
                done.put_nowait(None)

    workers = [asyncio.create_task(work()) for _ in range(min(parallel, len(tasks)))]
    try:
        while not (all(worker.done() for worker in workers) and done.empty()):
            if (trial := await done.get()) is not None:
                yield trial
        for worker in workers:
            worker.result()
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def try_task(environment: Environment, task: Task, seconds: float) -> Trial:
    """Try a task. Nothing of it is raised."""
    before: list[float] = []
    after: list[float] = []
    detail = ""
    for _ in range(ROUNDS):
        doing = "its set-up"
        try:
            async with asyncio.timeout(seconds):
                await environment.reset(task, _SEED)
            doing = "its check"
            async with asyncio.timeout(seconds):
                before.append((await environment.evaluate()).value)
            for number, action in enumerate(task.solution, 1):
                doing = f"action {number} of its solution"
                async with asyncio.timeout(seconds):
                    result = await environment.step(action, seconds)
                if result.error:
                    detail = f"{doing}: {result.error}"
            if task.solution:
                doing = "its check"
                async with asyncio.timeout(seconds):
                    outcome = await environment.evaluate()
                after.append(outcome.value)
                detail = detail or outcome.detail
        except TimeoutError:
            return Trial(task, Verdict.UNUSABLE, f"{doing} took longer than {seconds:g} s (--timeout)")
        except BadAction as error:
            return Trial(task, Verdict.NEVER_PASSES, f"{doing} is not possible: {error}")
        except (BadTask, SandboxError) as error:
            return Trial(task, Verdict.UNUSABLE, f"{doing} does not work: {error}")
    return _judged(task, before, after, " ".join(detail.split())[:500])


def _judged(task: Task, before: Sequence[float], after: Sequence[float], detail: str) -> Trial:
    if len(set(before)) > 1 or len(set(after)) > 1:
        told = [f"{_listed(values)} {when}" for values, when in ((before, "when nothing was done"),
                                                                 (after, "after its solution")) if len(set(values)) > 1]
        return Trial(task, Verdict.FLAKY, f"the check gave {' and '.join(told)}, with the same seed")
    if before[0] >= 1:
        return Trial(task, Verdict.ALWAYS_PASSES, "the check passes when nothing was done")
    if not after:
        return Trial(task, Verdict.NO_SOLUTION, "the check fails when nothing was done; a `solution` would show that "
                                                "it can pass")
    if after[0] < 1:
        return Trial(task, Verdict.NEVER_PASSES, f"the check gives {after[0]:.2g} after its solution: {detail}")
    return Trial(task, Verdict.GOOD)


def _listed(values: Sequence[float]) -> str:
    return " and ".join(f"{value:.2g}" for value in values)
