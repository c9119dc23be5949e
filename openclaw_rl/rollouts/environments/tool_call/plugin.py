"""Kind `tool_call`: functions to be called, either declared by the task or those of an MCP server."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.environments.interface import (
    BadAction,
    BadTask,
    Context,
    Kind,
    Observation,
    Opening,
    Outcome,
    StepResult,
    Tool,
)
from openclaw_rl.rollouts.environments.tool_call.arguments import Arguments
from openclaw_rl.rollouts.environments.tool_call.check import Call, Check, drawn
from openclaw_rl.rollouts.environments.tool_call.functions import MOST_STATE, FunctionError, read_functions
from openclaw_rl.rollouts.environments.tool_call.text import as_text, inert, short
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
class Said:
    """What a function said: harmless text of bounded length."""

    text: str
    failed: bool = False
    image_png: bytes = b""


class Tools(Protocol):
    """Where the functions of an environment are."""

    @property
    def problem(self) -> str: ...

    @property
    def state(self) -> Mapping[str, Any]:
        """What a check may look at."""
        ...

    async def begin(self, setup: Mapping[str, Any]) -> Sequence[Tool]:
        """Begin anew.

        Raises:
            BadTask, SandboxError.
        """

    async def call(self, name: str, arguments: Mapping[str, Any], seconds: float) -> Said:
        """Call one of the functions that `begin` told.

        Raises:
            BadAction: the arguments are not after its schema.
            SandboxError: nothing can be called any more.
        """

    async def close(self) -> None: ...


class Declared:
    """Functions that the task declares."""

    problem = ""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self._functions: dict[str, Any] = {}

    async def begin(self, setup: Mapping[str, Any]) -> Sequence[Tool]:
        self._functions = read_functions(setup["functions"]) if setup else {}
        self.state = copy.deepcopy(dict(setup.get("state", {})))
        return [function.tool for function in self._functions.values()]

    async def call(self, name: str, arguments: Mapping[str, Any], seconds: float) -> Said:
        function = self._functions[name]
        function.arguments.check(name, arguments)
        try:
            result, self.state = function.call(arguments, self.state)
        except FunctionError as error:
            return Said(f"Error: {inert(str(error))}", failed=True)
        return Said(inert(as_text(result)))

    async def close(self) -> None:
        self._functions, self.state = {}, {}


class ToolCallEnvironment:
    """Functions that are called until the policy submits."""

    def __init__(self, tools: Tools, kind: Kind) -> None:
        self._tools = tools
        self._kind = kind
        self._task: Task | None = None
        self._names: list[str] = []
        self._calls: list[Call] = []
        self._submitted = False
        self._answer: str | None = None
        self._lines: list[str] = []
        self._submit = Arguments(SUBMIT.parameters)

    @property
    def problem(self) -> str:
        return self._tools.problem

    async def reset(self, task: Task | None, seed: int | None) -> Opening:
        if task is not None:
            self._kind.check_task(task)
            task = drawn(task, seed)
        tools = [*await self._tools.begin(task.setup if task else {}), SUBMIT]
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
        said = await self._tools.call(action.name, action.arguments, seconds)
        if len(self._calls) < _MOST_CALLS:
            self._calls.append(Call(action.name, copy.deepcopy(dict(action.arguments)), said.failed))
        self._lines = [*self._lines[-49:], f"{action.name}({short(dict(action.arguments), 300)})\n"
                                           f"  {inert(said.text, 500)}"]
        return StepResult(Observation({"text": said.text}, said.image_png), error=said.text if said.failed else "")

    async def evaluate(self) -> Outcome:
        if self._task is None:
            return Outcome(0.0, "there is no task")
        return Check(self._task.check, None).evaluate(self._calls, self._tools.state, self._answer)

    async def view(self) -> Observation:
        return Observation({"text": "\n".join(self._lines) or "No function has been called."})

    async def close(self) -> None:
        await self._tools.close()


class DeclaredKind:
    """Functions of the task."""

    action_schema = ANY_CALL
    observation_schema = OBSERVATION
    sandbox = "none: functions that the task declares, worked out by the environment server"

    async def problem(self) -> str:
        return ""

    def check_task(self, task: Task) -> None:
        for key in task.setup:
            if key not in ("functions", "state", "draw"):
                raise BadTask(f"`setup`: `{key[:100]}` is no key of it; there are functions, state and draw")
        if "functions" not in task.setup:
            raise BadTask("`setup`: `functions` is missing: a list of functions")
        state = task.setup.get("state", {})
        if not isinstance(state, Mapping) or len(json.dumps(state)) > MOST_STATE:
            raise BadTask(f"`setup`, `state`: {short(state)} is not allowed: a mapping of at most {MOST_STATE:,} "
                          "characters")
        first = drawn(task, None)
        functions = read_functions(first.setup["functions"])
        Check(first.check, list(functions))
        for action in first.solution:
            if action.name == SUBMIT.name:
                continue
            if action.name not in functions:
                raise BadTask(f"`solution`: {short(action.name)} is no function; there are {', '.join(functions)}")
            try:
                functions[action.name].arguments.check(action.name, action.arguments)
            except BadAction as error:
                raise BadTask(f"`solution`: {error}") from None

    async def make(self) -> ToolCallEnvironment:
        return ToolCallEnvironment(Declared(), self)

    async def close(self) -> None:
        pass


def make(config: EnvironmentConfig, context: Context) -> Kind:
    if config.mcp is None:
        return DeclaredKind()
    from openclaw_rl.rollouts.environments.mcp.client import McpKind

    return McpKind(config.mcp, config, context)
