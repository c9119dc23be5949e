"""An environment type that costs nothing and does what a test says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.environments.factory import ConfiguredEnvironment
from openclaw_rl.rollouts.environments.interface import (
    BadAction,
    Observation,
    Opening,
    Outcome,
    StepResult,
    Tool,
    tools_schema,
)
from openclaw_rl.rollouts.leases.pool import LeasePool
from openclaw_rl.rollouts.sandboxes.interface import Unusable
from openclaw_rl.rollouts.tasks.task import Action, Task
from openclaw_rl.runtime.rejection import Rejection

TOOLS = (Tool("say", "Says it.", {"type": "object", "required": ["text"], "additionalProperties": False,
                                  "properties": {"text": {"type": "string"}}}),
         Tool("submit", "Ends it.", {"type": "object", "additionalProperties": False, "properties": {}}))


class FakeEnvironment:
    def __init__(self, kind: FakeType) -> None:
        self.kind = kind
        self.problem = ""
        self.closed = 0
        self.said: list[str] = []
        self.views = 0

    async def reset(self, task: Task | None, seed: int | None) -> Opening:
        self.said.clear()
        return Opening(Observation({"text": f"seed {seed}"}), task.goal if task else "", "Say something.", TOOLS)

    async def step(self, action: Action, seconds: float) -> StepResult:
        if action.name == "forbidden":
            raise BadAction("name: 'forbidden' is not allowed here")
        if self.kind.on_step is not None:
            await self.kind.on_step(self, action)
        self.said.append(str(action.arguments.get("text", "")))
        return StepResult(Observation({"text": f"{len(self.said)}: {self.said[-1]}"}), done=action.name == "submit")

    async def evaluate(self) -> Outcome:
        return Outcome(1.0 if "done" in self.said else 0.0, f"said {len(self.said)}")

    async def view(self) -> Observation:
        self.views += 1
        return Observation({"text": "\n".join(self.said)})

    async def close(self) -> None:
        self.closed += 1
        self.kind.alive.discard(self)
        if self.kind.on_close is not None:
            await self.kind.on_close(self)


class FakeType:
    action_schema = tools_schema(TOOLS)
    sandbox = "nothing at all"

    def __init__(self) -> None:
        self.observation_schema: dict[str, Any] = {"type": "object", "required": ["text"]}
        self.alive: set[FakeEnvironment] = set()
        self.made = 0
        self.most_alive = 0
        self.trouble = ""  #: what validate() says
        self.asked = 0
        self.on_make: Callable[[], Awaitable[None]] | None = None
        self.on_step: Callable[[FakeEnvironment, Action], Awaitable[None]] | None = None
        self.on_close: Callable[[FakeEnvironment], Awaitable[None]] | None = None
        self.closed = False

    async def validate(self) -> Rejection[Unusable] | None:
        self.asked += 1
        return Rejection(Unusable.PROGRAM_MISSING, self.trouble) if self.trouble else None

    def check_task(self, task: Task) -> None:
        pass

    async def make(self) -> FakeEnvironment:
        if self.on_make is not None:
            await self.on_make()
        self.made += 1
        environment = FakeEnvironment(self)
        self.alive.add(environment)
        self.most_alive = max(self.most_alive, len(self.alive))
        return environment

    async def close(self) -> None:
        self.closed = True


def fake_pool(count: int = 2, *, kind: FakeType | None = None, named: bool = True, name: str = "fake",
              ttl: float = 60.0, max_waiting: int = 100, **config: Any) -> tuple[LeasePool, FakeType]:
    """A started pool of one fake environment."""
    kind = kind or FakeType()
    pool = LeasePool([ConfiguredEnvironment(name, EnvironmentConfig(count=count, **config), "fake", kind, named)],
                     ttl=ttl, max_waiting=max_waiting)
    pool.start()
    return pool, kind
