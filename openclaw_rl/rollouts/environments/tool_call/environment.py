"""Environment in which a policy calls functions until it submits."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from openclaw_rl.rollouts.environments.interface import (
    BadAction,
    EnvironmentType,
    Observation,
    Opening,
    Outcome,
    StepResult,
    Tool,
)
from openclaw_rl.rollouts.environments.json_schema import Arguments
from openclaw_rl.rollouts.environments.tool_call.check import Call, Check, drawn
from openclaw_rl.rollouts.environments.untrusted_text import inert, short
from openclaw_rl.rollouts.tasks.task import Action, Task

_INSTRUCTIONS = ("Reach the goal by calling the functions. Call submit when it is reached; where the goal asks for "
                 "something, give it as the answer. If no function helps, submit an answer that says so.")
SUBMIT = Tool("submit", "Say that the goal is reached.",
              {"type": "object", "additionalProperties": False, "properties": {
                  "answer": {"type": "string", "description": "The answer, where the goal asks for one."}}})
ANY_CALL = {"type": "object", "required": ["name", "arguments"], "additionalProperties": False, "properties": {
    "name": {"type": "string", "description": "One of the functions of the task, or submit."},
    "arguments": {"type": "object", "description": "After the function's own schema."}}}
OBSERVATION = {"type": "object", "required": ["text"], "properties": {
    "text": {"type": "string", "description": "What the function said."}}}
#: Calls that an episode's check looks at.
_MOST_CALLS = 10_000


@dataclass(frozen=True, slots=True)
class CallResult:
    """Result of a call: harmless text of bounded length."""

    text: str
    failed: bool = False
    image_png: bytes = b""


class FunctionSource(Protocol):
    """Functions that a policy may call."""

    @property
    def problem(self) -> str:
        """Why they can no longer be called; empty while they can."""
        ...

    @property
    def state(self) -> Mapping[str, Any]:
        """The state that a check may examine."""
        ...

    async def begin(self, setup: Mapping[str, Any]) -> Sequence[Tool]:
        """Begin anew with a task's setup.

        Raises:
            BadTask, SandboxError.
        """

    async def call(self, name: str, arguments: Mapping[str, Any], seconds: float) -> CallResult:
        """Call one of the functions that `begin` returned.

        Raises:
            BadAction: the arguments do not match its schema.
            SandboxError: nothing can be called any more.
        """

    async def close(self) -> None: ...


class ToolCallEnvironment:
    """See Environment."""

    def __init__(self, functions: FunctionSource, environment_type: EnvironmentType) -> None:
        self._functions = functions
        self._type = environment_type
        self._task: Task | None = None
        self._names: list[str] = []
        self._calls: list[Call] = []
        self._submitted = False
        self._answer: str | None = None
        self._lines: list[str] = []
        self._submit = Arguments(SUBMIT.parameters)

    @property
    def problem(self) -> str:
        return self._functions.problem

    async def reset(self, task: Task | None, seed: int | None) -> Opening:
        if task is not None:
            self._type.check_task(task)
            task = drawn(task, seed)
        tools = [*await self._functions.begin(task.setup if task else {}), SUBMIT]
        self._task, self._calls, self._lines = task, [], []
        self._submitted, self._answer = False, None
        self._names = [tool.name for tool in tools]
        goal = task.goal if task else ""
        return Opening(Observation({"text": ""}), goal, _INSTRUCTIONS, tools)

    async def step(self, action: Action, seconds: float) -> StepResult:
        if self._submitted:
            raise BadAction("submit was called: the episode is over; reset begins a new one")
        if not isinstance(action.name, str) or action.name not in self._names:
            raise BadAction(f"`name`: {short(action.name)} is no function; there are {', '.join(self._names[:40])}")
        if not isinstance(action.arguments, Mapping):
            raise BadAction(f"`arguments`: {short(action.arguments)} is not allowed: an object")
        if action.name == SUBMIT.name:
            answer: Any = action.arguments.get("answer")
            if isinstance(answer, int | float) and not isinstance(answer, bool):
                answer = str(answer)  # a model that was asked for a number gives one
            self._submit.check(SUBMIT.name, {**action.arguments, **({} if answer is None else {"answer": answer})})
            self._submitted, self._answer = True, answer
            self._lines.append(f"submit: {inert(self._answer or '', 500)}")
            return StepResult(Observation({"text": "Submitted."}), done=True)
        result = await self._functions.call(action.name, action.arguments, seconds)
        if len(self._calls) < _MOST_CALLS:
            self._calls.append(Call(action.name, copy.deepcopy(dict(action.arguments)), result.failed))
        self._lines = [*self._lines[-49:], f"{action.name}({short(dict(action.arguments), 300)})\n"
                                           f"  {inert(result.text, 500)}"]
        return StepResult(Observation({"text": result.text}, result.image_png),
                          error=result.text if result.failed else "")

    async def evaluate(self) -> Outcome:
        if self._task is None:
            return Outcome(0.0, "there is no task")
        return Check(self._task.check, None).evaluate(self._calls, self._functions.state, self._answer)

    async def view(self) -> Observation:
        return Observation({"text": "\n".join(self._lines) or "No function has been called."})

    async def close(self) -> None:
        await self._functions.close()
