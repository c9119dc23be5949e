"""Environment type of an MCP server: its tools are the functions of a `tool_call` environment."""

from __future__ import annotations

import shutil
from importlib.util import find_spec

from openclaw_rl.config.environment import EnvironmentConfig, McpConfig
from openclaw_rl.rollouts.environments.interface import BadTask, Context
from openclaw_rl.rollouts.environments.mcp.session import McpSession
from openclaw_rl.rollouts.environments.tool_call.check import Check, drawn
from openclaw_rl.rollouts.environments.tool_call.environment import ANY_CALL, OBSERVATION, ToolCallEnvironment
from openclaw_rl.rollouts.environments.untrusted_text import public_url, short
from openclaw_rl.rollouts.sandboxes.factory import spec
from openclaw_rl.rollouts.sandboxes.interface import Unusable
from openclaw_rl.rollouts.tasks.task import Task
from openclaw_rl.runtime.rejection import Rejection


class McpType:
    """See EnvironmentType."""

    action_schema = ANY_CALL
    observation_schema = OBSERVATION

    def __init__(self, config: McpConfig, settings: EnvironmentConfig, context: Context) -> None:
        self._config, self._settings, self._context = config, settings, context
        where = public_url(config.url) if config.url else \
            config.command[0] + (", in a sandbox" if config.sandbox else ", in no sandbox")
        self.sandbox = f"MCP server {where}"

    async def validate(self) -> Rejection[Unusable] | None:
        if find_spec("mcp") is None:
            return Rejection(Unusable.PROGRAM_MISSING,
                             "the package `mcp` is missing: pip install 'openclaw-rl[environments]'")
        if self._config.url:
            return None
        if self._config.sandbox:
            return await self._context.backend.validate(spec(self._settings))
        if shutil.which(self._config.command[0]) is None:
            return Rejection(Unusable.PROGRAM_MISSING, (
                f"`mcp.command`: there is no program {short(self._config.command[0])} on this machine"))
        return None

    def check_task(self, task: Task) -> None:
        for key in task.setup:
            if key not in ("tools", "draw"):
                raise BadTask(f"`setup`: `{key[:100]}` is no key of it; with an MCP server there are tools and draw")
        tools = task.setup.get("tools", [])
        if not isinstance(tools, list) or not all(isinstance(name, str) for name in tools):
            raise BadTask(f"`setup`, `tools`: {short(tools)} is not allowed: a list of the server's tools")
        if "state" in task.check:
            raise BadTask("`check`: `state` is not allowed: an MCP server tells no state; there are calls and answer")
        Check(drawn(task, None).check, None)

    async def make(self) -> ToolCallEnvironment:
        session = McpSession(self._config, self._settings, self._context)
        await session.connect()
        return ToolCallEnvironment(session, self)

    async def close(self) -> None:
        pass
