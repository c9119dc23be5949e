"""Runs of episodes, as those who started them see them, and the whole story of one episode."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from openclaw_rl.client import facts
from openclaw_rl.client.environment import AsyncEnvironmentServiceClient, EnvironmentServiceClient
from openclaw_rl.rpc.errors import MeshError, failed_precondition, not_found
from openclaw_rl.runtime.home import Home
from openclaw_rl.v1 import environment_pb2 as pb

_PAGE = 1000


@dataclass
class Progress:
    """A run so far."""

    type: str
    run: str = ""
    group_size: int = 0
    total: int = 0
    steps: int = 0
    running: dict[str, pb.Episode] = field(default_factory=dict)
    over: list[pb.Episode] = field(default_factory=list)
    action: str = ""  #: the last one, as JSON
    error: str = ""  #: why the run itself ended; empty when it did not
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None

    @property
    def outcomes(self) -> list[float]:
        """Of the episodes that have one."""
        return [episode.outcome for episode in self.over if episode.HasField("outcome")]

    @property
    def broken(self) -> int:
        """Episodes that were broken off."""
        return len(self.over) - len(self.outcomes)

    @property
    def success(self) -> float | None:
        """Mean of the outcomes; None before there is one."""
        return sum(self.outcomes) / len(self.outcomes) if self.outcomes else None

    @property
    def seconds(self) -> float:
        """Since the run began, or that it took."""
        return (self.ended or time.monotonic()) - self.began

    @property
    def rate(self) -> float:
        """Episodes in a minute."""
        return 60 * len(self.over) / max(self.seconds, 0.001)

    @property
    def groups(self) -> tuple[int, int]:
        """Groups that are over, and all."""
        counts: dict[str, int] = {}
        for episode in self.over:
            counts[episode.group_id] = counts.get(episode.group_id, 0) + 1
        size = max(1, self.group_size)
        return sum(count >= size for count in counts.values()), -(-self.total // size)

    @property
    def alike(self) -> int:
        """Whole groups in which all outcomes were alike, which teach nothing."""
        outcomes: dict[str, list[float]] = {}
        for episode in self.over:
            if episode.HasField("outcome"):
                outcomes.setdefault(episode.group_id, []).append(episode.outcome)
        return sum(len(values) >= max(2, self.group_size) and len(set(values)) == 1 for values in outcomes.values())

    def take(self, event: pb.RunEpisodesResponse) -> None:
        """Take in what the environment server tells."""
        episode = event.episode
        self.run, self.total = episode.run_id, event.total
        if event.kind == pb.EPISODE_EVENT_KIND_ENDED:
            self.running.pop(episode.episode_id, None)
            self.over.append(episode)
            return
        self.running[episode.episode_id] = episode
        if event.kind == pb.EPISODE_EVENT_KIND_STEP:
            self.steps += 1
            self.action = event.action_json or self.action

    def json(self) -> dict[str, Any]:
        """As `openclaw-rl episodes run --json` prints it."""
        return {"run": self.run, "type": self.type, "groups": self.groups[1], "group_size": self.group_size,
                "alike": self.alike, "total": self.total, "over": len(self.over), "broken": self.broken,
                "success": self.success, "steps": self.steps, "seconds": round(self.seconds, 2), "error": self.error,
                "episodes": [as_json(episode) for episode in self.over]}


async def run(home: Home, requests: Sequence[pb.RunEpisodesRequest], tell: Callable[[Progress], None]
              ) -> list[Progress]:
    """Start runs beside one another and follow them to their ends. Cancelling it cancels them.

    Args:
        tell: called at each change.

    Raises:
        MeshError: the environment server is not there, or refuses the only run. Of several, those that are refused or
            break say why in their `error`.
    """
    async with AsyncEnvironmentServiceClient(home=home) as env:
        async def one(request: pb.RunEpisodesRequest, progress: Progress) -> None:
            try:
                async with aclosing(env.run_episodes(request)) as events:  # type: ignore[type-var]
                    async for event in events:
                        progress.take(event)
                        tell(progress)
            except MeshError as error:
                if len(requests) == 1 and not progress.total:
                    raise
                progress.error = error.message
            finally:
                progress.ended = time.monotonic()
                tell(progress)

        found = [Progress(request.type, request.run_id, request.group_size or 8) for request in requests]
        async with asyncio.TaskGroup() as tasks:
            for request, progress in zip(requests, found, strict=True):
                tasks.create_task(one(request, progress))
    return found


def usable_types(env: EnvironmentServiceClient) -> list[str]:
    """Names of the environments that can be used and have tasks.

    Raises:
        MeshError: there is none; the text says why.
    """
    listed = env.list_environments().environments
    found = [info.type for info in listed if not info.problem and info.tasks]
    if not found:
        why = "; ".join(f"{info.type}: {info.problem or 'it has no tasks'}" for info in listed)
        raise failed_precondition("FAILED_PRECONDITION", f"no environment can be used: {why or 'none is configured'}")
    return found


def find(env: EnvironmentServiceClient, episode_id: str) -> pb.Episode:
    """An episode by its id, or by the beginning of it that is no other's.

    Raises:
        MeshError: NOT_FOUND.
    """
    token, found = "", []
    while True:
        page = env.list_episodes(page_size=_PAGE, page_token=token)
        for episode in page.episodes:
            if episode.episode_id == episode_id:
                return episode
            if episode.episode_id.startswith(episode_id):
                found.append(episode)
        token = page.next_page_token
        if not token:
            break
    if len(found) != 1 or not episode_id:
        raise not_found("episode", episode_id, "`openclaw-rl episodes list` tells those that there are")
    return found[0]


@dataclass(frozen=True)
class Step:
    """A turn of an episode, and what became of it."""

    number: int
    fate: facts.TurnFate


def steps(home: Home, episode: pb.Episode) -> list[Step]:
    """The turns of an episode, first to last, with their scores and fates.

    Raises:
        MeshError: the environment server does not answer, or nothing is kept of the episode's session.
    """
    with EnvironmentServiceClient(home=home) as env:
        try:
            turns = env.get_session(session_id=episode.session_id).turns
        except MeshError as error:
            if error.reason == "NOT_FOUND":  # no turn of it has come yet
                return []
            raise
    numbers = {turn.turn_id: turn.episode.step for turn in turns}
    found: list[Step] = []
    for begin in range(0, len(turns), _PAGE):
        found += [Step(numbers[fate.turn], fate) for fate in facts.fates(home, turns[begin:begin + _PAGE])]
    return found


def as_json(episode: pb.Episode) -> dict[str, Any]:
    """An episode for programs."""
    return {
        "episode": episode.episode_id, "run": episode.run_id, "group": episode.group_id, "type": episode.type,
        "task": episode.task_id, "session": episode.session_id, "steps": episode.steps, "done": episode.done,
        "outcome": episode.outcome if episode.HasField("outcome") else None, "error": episode.error,
        "detail": episode.detail, "no_train": episode.no_train,
        "version": episode.policy_version if episode.HasField("policy_version") else None,
        "started_at": episode.started_at.ToJsonString(),
        "ended_at": episode.ended_at.ToJsonString() if episode.HasField("ended_at") else None}
