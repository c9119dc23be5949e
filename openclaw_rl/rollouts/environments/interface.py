"""Interfaces of environment types and their environments.

A type is found by its name among the entry points `openclaw_rl.environments`: a callable
`make(config: EnvironmentConfig, context: Context) -> EnvironmentType`, which starts nothing and asks nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from openclaw_rl.rollouts.sandboxes.interface import Backend, Unusable
from openclaw_rl.rollouts.tasks.task import Action, Task
from openclaw_rl.runtime.rejection import Rejection


class BadAction(Exception):
    """The type has no such action, or an argument has the wrong type; the text names the field, the value and what is
    allowed. Nothing was changed, and the policy may read the text."""


class BadTask(Exception):
    """The task's setup or check can't be used; the text names the field and what is allowed."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a policy sees: `data` follows the type's schema; its `text` is shown to a model that reads text."""

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
    """Result of a reset."""

    observation: Observation
    goal: str = ""
    instructions: str = ""  #: how to act here, for a system message
    tools: Sequence[Tool] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of an action."""

    observation: Observation
    reward: float | None = None
    done: bool = False  #: the policy or the environment has ended the episode
    error: str = ""  #: what went wrong with the action, for the policy to read


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a task's check."""

    value: float  #: from 0 (failed) to 1 (done)
    detail: str = ""


class Environment(Protocol):
    """One environment, leased by one holder at a time.

    Its methods are never called concurrently, except `view`, `problem` and `close`. Any may raise SandboxError, after
    which the environment is unusable.
    """

    @property
    def problem(self) -> str:
        """Why it became unusable; empty while it works."""
        ...

    async def reset(self, task: Task | None, seed: int | None) -> Opening:
        """Begin a task anew, or nothing in particular; what was there before is gone.

        Raises:
            BadTask: the task can't be set up.
        """

    async def step(self, action: Action, seconds: float) -> StepResult:
        """Perform an action.

        Args:
            seconds: limit after which it is ended, as the observation then says.

        Raises:
            BadAction: nothing was done.
        """

    async def evaluate(self) -> Outcome:
        """Run the task's check on the present state, without a visible change for the policy. Without a task: 0.

        Raises:
            BadTask: the check itself does not work.
        """

    async def view(self) -> Observation:
        """Show the state to an onlooker: a terminal's last lines, a screenshot. Changes nothing."""

    async def close(self) -> None:
        """End it; any number of times, never raises."""


class EnvironmentType(Protocol):
    """A type of environments, as configured under one name."""

    action_schema: dict[str, Any]  #: JSON schema of {"name", "arguments"}
    observation_schema: dict[str, Any]  #: JSON schema of Observation.data
    sandbox: str  #: what its environments are made from, for people: "bubblewrap, this machine's programs"

    async def validate(self) -> Rejection[Unusable] | None:
        """Check whether environments can be made; the message of a rejection says how to repair it."""

    def check_task(self, task: Task) -> None:
        """Check a task without a sandbox.

        Raises:
            BadTask: its setup, its check or its solution can't be used.
        """

    async def make(self) -> Environment:
        """Make an environment, ready for a reset.

        Raises:
            SandboxError: it can't be made.
        """

    async def close(self) -> None:
        """Release what the type itself holds; its environments are closed before."""


@dataclass(frozen=True, slots=True)
class Context:
    """Surroundings in which a type is made."""

    name: str  #: of the environment as configured
    folder: Path  #: of its own, in the component's folder; may not exist yet
    backend: Backend  #: of its sandboxes, as configured
    warnings: list[str] = field(default_factory=list)  #: for the operator; the type may append
    label: str = "none"  #: of the mesh; marks processes outside of sandboxes, so that they are ended with it


def tools_schema(tools: Sequence[Tool]) -> dict[str, Any]:
    """JSON schema of an action that is a call of one of these."""
    return {"oneOf": [{"type": "object", "description": tool.description, "additionalProperties": False,
                       "required": ["name", "arguments"],
                       "properties": {"name": {"const": tool.name}, "arguments": tool.parameters}} for tool in tools]}
