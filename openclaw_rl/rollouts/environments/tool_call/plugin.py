"""Environment type `tool_call`: functions declared by the task, or those of an MCP server."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.environments.interface import BadAction, BadTask, Context, EnvironmentType, Tool
from openclaw_rl.rollouts.environments.tool_call.check import Check, drawn
from openclaw_rl.rollouts.environments.tool_call.environment import (
    ANY_CALL,
    OBSERVATION,
    SUBMIT,
    CallResult,
    ToolCallEnvironment,
)
from openclaw_rl.rollouts.environments.tool_call.functions import MOST_STATE, FunctionError, read_functions
from openclaw_rl.rollouts.environments.untrusted_text import as_text, inert, short
from openclaw_rl.rollouts.tasks.task import Task


class DeclaredFunctions:
    """Functions that the task declares."""

    problem = ""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self._functions: dict[str, Any] = {}

    async def begin(self, setup: Mapping[str, Any]) -> Sequence[Tool]:
        self._functions = read_functions(setup["functions"]) if setup else {}
        self.state = copy.deepcopy(dict(setup.get("state", {})))
        return [function.tool for function in self._functions.values()]

    async def call(self, name: str, arguments: Mapping[str, Any], seconds: float) -> CallResult:
        function = self._functions[name]
        function.arguments.check(name, arguments)
        try:
            result, self.state = function.call(arguments, self.state)
        except FunctionError as error:
            return CallResult(f"Error: {inert(str(error))}", failed=True)
        return CallResult(inert(as_text(result)))

    async def close(self) -> None:
        self._functions, self.state = {}, {}


class DeclaredFunctionsType:
    """See EnvironmentType."""

    action_schema = ANY_CALL
    observation_schema = OBSERVATION
    sandbox = "none: functions that the task declares, worked out by the environment server"

    async def validate(self) -> None:
        return None

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
        return ToolCallEnvironment(DeclaredFunctions(), self)

    async def close(self) -> None:
        pass


def make(config: EnvironmentConfig, context: Context) -> EnvironmentType:
    """Make the type: with `mcp` configured, that of an MCP server's functions."""
    if config.mcp is None:
        return DeclaredFunctionsType()
    from openclaw_rl.rollouts.environments.mcp.plugin import McpType

    return McpType(config.mcp, config, context)
