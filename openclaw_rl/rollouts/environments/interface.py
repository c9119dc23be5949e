"""What every kind of environment offers, and what it is made with.

A kind is found by its name among the entry points `openclaw_rl.environments`: a callable
`make(config: EnvironmentConfig, context: Context) -> Kind`, which starts nothing and asks nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from openclaw_rl.rollouts.sandboxes.interface import Backend
from openclaw_rl.rollouts.tasks.task import Action, Task


class BadAction(Exception):
    """The action is none of this kind's, or its arguments are of the wrong type; the text names the field, the value
    and what is allowed. It changed nothing, and the policy may read it."""


class BadTask(Exception):
    """The task's set-up or check can't be used; the text names the field and what is allowed."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What is seen: `data` is after the kind's schema and has `text`, which a model that reads text is shown."""

    data: dict[str, Any]
    image_png: bytes = b""

    @property
    def text(self) -> str:
        return str(self.data.get("text", ""))


@dataclass(frozen=True, slots=True)
class Tool:
    """An action as a function that a policy may call."""

    name: str
    description: str
    parameters: dict[str, Any]  #: JSON schema of an object


@dataclass(frozen=True, slots=True)
class Opening:
    """What a reset gives."""

    observation: Observation
    goal: str = ""
    instructions: str = ""  #: how to act here, for a system message
    tools: Sequence[Tool] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """What an action did."""

    observation: Observation
    reward: float | None = None
    done: bool = False  #: the episode is over, because the policy said so or the environment does
    error: str = ""  #: what went wrong with the action, for the policy to read


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a task's check says."""

    value: float  #: from 0 (failed) to 1 (done)
    detail: str = ""


class Environment(Protocol):
    """One of them, leased by one holder at a time. Its methods are never called at the same time, but for `view`,
    `problem` and `close`. Any may raise SandboxError, after which it is of no use any more."""

    @property
    def problem(self) -> str:
        """Why it can't be used any more; empty while it can."""
        ...

    async def reset(self, task: Task | None, seed: int | None) -> Opening:
        """Begin a task anew, or with nothing; what was there before is gone.

        Raises:
            BadTask: the task can't be set up.
        """

    async def step(self, action: Action, seconds: float) -> StepResult:
        """Do an action.

        Args:
            seconds: then it is ended, and the observation says so.

        Raises:
            BadAction: nothing was done.
        """

    async def evaluate(self) -> Outcome:
        """Run the task's check on what is there now; changes nothing that the policy sees. Without a task: 0.

        Raises:
            BadTask: the check itself doesn't work.
        """

    async def view(self) -> Observation:
        """What somebody who watches sees: a terminal's last lines, a screenshot. Changes nothing."""

    async def close(self) -> None:
        """End it; any number of times, never raises."""


class Kind(Protocol):
    """A kind of environment, as configured under one name."""

    action_schema: dict[str, Any]  #: JSON schema of {"name", "arguments"}
    observation_schema: dict[str, Any]  #: JSON schema of Observation.data
    sandbox: str  #: what its environments are made from, for people: "bubblewrap, this machine's programs"

    async def problem(self) -> str:
        """Why none can be made, with the line that helps; empty when one can."""

    def check_task(self, task: Task) -> None:
        """Look at a task without a sandbox.

        Raises:
            BadTask: its set-up, its check or its solution can't be used.
        """

    async def make(self) -> Environment:
        """A new environment, ready for a reset.

        Raises:
            SandboxError: it can't be made.
        """

    async def close(self) -> None:
        """Give back what the kind itself holds; its environments are closed before."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a kind is made with."""

    name: str  #: of the environment as configured
    folder: Path  #: of its own, in the component's folder; may not be there yet
    backend: Backend  #: of its sandboxes, as configured
    warnings: list[str] = field(default_factory=list)  #: what an operator should know; a kind may add to it
    label: str = "none"  #: of the mesh, as of its sandboxes: marks processes in none, which are ended with them


def tools_schema(tools: Sequence[Tool]) -> dict[str, Any]:
    """JSON schema of an action that is a call of one of these."""
    return {"oneOf": [{"type": "object", "description": tool.description, "additionalProperties": False,
                       "required": ["name", "arguments"],
                       "properties": {"name": {"const": tool.name}, "arguments": tool.parameters}} for tool in tools]}
