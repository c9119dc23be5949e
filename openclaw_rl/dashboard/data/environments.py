"""Environments, leases, episodes and tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openclaw_rl.dashboard.data.parts import WAIT

if TYPE_CHECKING:
    from openclaw_rl.monitoring.mesh import MeshData
    from openclaw_rl.v1.environment_pb2 import EnvironmentInfo, Episode, Lease, ListEpisodesResponse, TaskInfo

#: Episodes of a page, and most that a single one is looked for among.
SIZE, _LOOK = 100, 5000


@dataclass(frozen=True)
class TaskFigures:
    """How episodes of one task went."""

    task: str
    type: str
    episodes: int  #: that are over
    broken: int  #: of these: broken off, without an outcome
    mean: float | None  #: outcome of the others
    done: int  #: of the others: outcome 1
    steps: float  #: mean of the steps


@dataclass(frozen=True)
class GroupFigures:
    """Episodes of the same task that are compared."""

    run: str
    group: str
    task: str
    type: str
    episodes: int
    running: int
    broken: int
    outcomes: tuple[float, ...]  #: of those that have one, the oldest first
    started: float

    @property
    def mean(self) -> float | None:
        return sum(self.outcomes) / len(self.outcomes) if self.outcomes else None


async def overview(mesh: MeshData) -> tuple[list[EnvironmentInfo], list[Lease]]:
    """All environments, and all leases, oldest first.

    Raises:
        MeshError, ConfigError: the environment server doesn't answer.
    """
    client = mesh.environment()
    kinds, leases = await asyncio.gather(client.list_environments(timeout=WAIT), client.list_leases(timeout=WAIT))
    return list(kinds.environments), list(leases.leases)


async def tasks(mesh: MeshData, name: str) -> list[TaskInfo]:
    """The tasks of an environment, by id.

    Raises:
        MeshError, ConfigError: there is no such environment, or the environment server doesn't answer.
    """
    return list((await mesh.environment().list_tasks(type=name, timeout=WAIT)).tasks)


async def lease(mesh: MeshData, lease_id: str) -> Lease | None:
    """A lease as it is now; None when there is none.

    Raises:
        MeshError, ConfigError: the environment server doesn't answer.
    """
    leases = (await mesh.environment().list_leases(timeout=WAIT)).leases
    return next((one for one in leases if one.lease_id == lease_id), None)


async def episodes(mesh: MeshData, *, run: str = "", kind: str = "", token: str = "",
                   size: int = SIZE) -> ListEpisodesResponse:
    """A page of episodes, newest first.

    Raises:
        MeshError, ConfigError: the environment server doesn't answer, or refuses the token.
    """
    return await mesh.environment().list_episodes(run_id=run, type=kind, page_size=size, page_token=token,
                                                  timeout=WAIT)


async def episode(mesh: MeshData, episode_id: str) -> Episode | None:
    """An episode, looked for among the newest ones; None when it is not there.

    Raises:
        MeshError, ConfigError: the environment server doesn't answer.
    """
    token = ""
    for _ in range(_LOOK // 1000):
        found = await mesh.environment().list_episodes(page_size=1000, page_token=token, timeout=WAIT)
        for one in found.episodes:
            if one.episode_id == episode_id:
                return one
        if not (token := found.next_page_token):
            return None
    return None


def by_task(episodes: Sequence[Episode]) -> list[TaskFigures]:
    """Figures of each task among episodes, by environment and task."""
    grouped: dict[tuple[str, str], list[Episode]] = {}
    for one in episodes:
        if one.done:
            grouped.setdefault((one.type, one.task_id), []).append(one)
    found = []
    for (kind, task), those in sorted(grouped.items()):
        outcomes = [one.outcome for one in those if one.HasField("outcome")]
        found.append(TaskFigures(task, kind, len(those), len(those) - len(outcomes),
                                 sum(outcomes) / len(outcomes) if outcomes else None,
                                 sum(outcome >= 1 for outcome in outcomes),
                                 sum(one.steps for one in those) / len(those)))
    return found


def by_group(episodes: Sequence[Episode]) -> list[GroupFigures]:
    """Figures of each group among episodes that are the newest first, in their order."""
    grouped: dict[tuple[str, str], list[Episode]] = {}
    for one in episodes:
        grouped.setdefault((one.run_id, one.group_id), []).append(one)
    return [GroupFigures(run, group, those[0].task_id, those[0].type, len(those), sum(not one.done for one in those),
                         sum(one.done and not one.HasField("outcome") for one in those),
                         tuple(one.outcome for one in reversed(those) if one.HasField("outcome")),
                         min(one.started_at.seconds + one.started_at.nanos / 1e9 for one in those))
            for (run, group), those in grouped.items()]
