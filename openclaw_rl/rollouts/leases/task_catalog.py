"""Tasks of the configured environments, each checked by its environment type."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace

from openclaw_rl.rollouts.environments.factory import ConfiguredEnvironment
from openclaw_rl.rollouts.environments.interface import BadTask
from openclaw_rl.rollouts.tasks.load import load
from openclaw_rl.rollouts.tasks.task import Task
from openclaw_rl.rpc.errors import invalid, not_found

logger = logging.getLogger(__name__)


class TaskCatalog:
    """Reads each environment's tasks once, when they are first asked for.

    Args:
        environments: by name.
        bundled: include the tasks of the package.
    """

    def __init__(self, environments: Mapping[str, ConfiguredEnvironment], *, bundled: bool = True) -> None:
        self._environments, self._bundled = environments, bundled
        self._tasks: dict[str, list[Task]] = {}

    def tasks(self, name: str) -> list[Task]:
        """All tasks of an environment; unusable ones have a `problem`. Blocks on files at the first call."""
        if name not in self._tasks:
            environment = self._environments[name]
            self._tasks[name] = [_check(environment, task) for task in load(
                environment.type_name, environment.config.tasks,
                bundled=self._bundled and environment.config.mcp is None)]
        return self._tasks[name]

    async def load(self, name: str) -> list[Task]:
        """`tasks`, without blocking the event loop."""
        return self._tasks[name] if name in self._tasks else await asyncio.to_thread(self.tasks, name)

    async def get(self, name: str, task_id: str) -> Task:
        """Look up a task.

        Raises:
            MeshError: NOT_FOUND; INVALID_ARGUMENT, it can't be used.
        """
        found = next((task for task in await self.load(name) if task.id == task_id), None)
        if found is None:
            raise not_found("task", task_id, f"ListTasks tells those of {name!r}")
        if found.problem:
            raise invalid("task_id", task_id, f"a task that can be used: {found.problem}")
        return found


def _check(environment: ConfiguredEnvironment, task: Task) -> Task:
    """The task, with the objections of its environment type as its `problem`."""
    if task.problem or environment.environment_type is None:
        return task
    try:
        environment.environment_type.check_task(task)
    except BadTask as error:
        return replace(task, problem=f"{task.source}, task {task.id}: {error}")
    except Exception as error:
        logger.exception("checking the task %r of %r", task.id, environment.name)
        return replace(task, problem=f"{task.source}, task {task.id}: {type(error).__name__}: {error}")
    return task
