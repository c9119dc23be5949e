"""Session with an MCP server whose tools are the functions of an environment.

A server is started for each lease (`command`), or a session is opened for each (`url`), and anew at each reset, so that
nothing is left of the previous episode. A server's output is untrusted: see untrusted_text.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from openclaw_rl.config.environment import EnvironmentConfig, McpConfig
from openclaw_rl.rollouts.environments.interface import BadTask, Context, Tool
from openclaw_rl.rollouts.environments.json_schema import Arguments, BadSchema
from openclaw_rl.rollouts.environments.mcp.content import call_result
from openclaw_rl.rollouts.environments.mcp.http_transport import bounded_transport
from openclaw_rl.rollouts.environments.mcp.pipe import PlainProcess, over
from openclaw_rl.rollouts.environments.tool_call.environment import SUBMIT, CallResult
from openclaw_rl.rollouts.environments.untrusted_text import inert, public_url, short
from openclaw_rl.rollouts.sandboxes.factory import spec
from openclaw_rl.rollouts.sandboxes.interface import SandboxError

#: Seconds for a server to start and list its tools, and for a session to end.
START_SECONDS, END_SECONDS = 60.0, 10.0
#: Tools of a server that are offered, pages of its list, characters of a description.
MOST_TOOLS, MOST_PAGES, MOST_DESCRIPTION = 128, 20, 2000
#: A sandbox merges stdout and stderr, and messages are on stdout only. The end of stderr is kept in a file.
_STDERR = "/tmp/.stderr"
_SEPARATE = f'{{ "$@" 2>&1 1>&3 | tail -c 2000 >{_STDERR}; }} 3>&1'


class McpSession:
    """See FunctionSource."""

    def __init__(self, config: McpConfig, settings: EnvironmentConfig, context: Context) -> None:
        self._config, self._settings, self._context = config, settings, context
        self.problem = ""
        self.state: dict[str, Any] = {}
        self._fresh = False
        self._names: dict[str, str] = {}
        self._arguments: dict[str, Arguments] = {}
        self._tools: list[Tool] = []
        self._client: Any = None
        self._owner: asyncio.Task[None] | None = None
        self._end = asyncio.Event()  # requested
        self._ended = asyncio.Event()  # by the server
        self._stderr_tail = ""

    async def connect(self) -> None:
        """Start the server or open a session, and list its tools.

        Raises:
            SandboxError: it can't be started or reached, or does not speak MCP.
        """
        await self._disconnect()
        self.problem, self._stderr_tail, self._client = "", "", None
        self._end, self._ended = asyncio.Event(), asyncio.Event()
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # A session must be ended by the task that began it, and a lease is used by many tasks.
        self._owner = asyncio.create_task(self._own(ready), name=f"mcp {self._context.name}")
        try:
            async with asyncio.timeout(START_SECONDS):
                await asyncio.shield(ready)
        except TimeoutError:
            self._owner.cancel()
            await self._disconnect()
            raise SandboxError(f"the MCP server {self._what} didn't answer within {START_SECONDS:g} s") from None
        except BaseException:
            self._owner.cancel()
            await self._disconnect()
            raise
        self._fresh = True

    async def begin(self, setup: Mapping[str, Any]) -> Sequence[Tool]:
        if not self._fresh or self.problem:
            await self.connect()
        self._fresh = False
        wanted = setup.get("tools")
        tools = [tool for tool in self._tools if wanted is None or tool.name in wanted]
        for name in wanted or ():
            if name not in self._names:
                raise BadTask(f"`setup`, `tools`: the MCP server has no {short(name)}; it has {', '.join(self._names)}")
        return tools

    async def call(self, name: str, arguments: Mapping[str, Any], seconds: float) -> CallResult:
        if self.problem:
            raise SandboxError(self.problem)
        self._arguments[name].check(name, arguments)
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        try:
            async with asyncio.timeout(seconds):
                result = await self._client.call_tool(self._names[name], dict(arguments))
        except TimeoutError:
            return CallResult(f"Error: {name} didn't answer within {seconds:g} s", failed=True)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise SandboxError(await self._lost()) from None
            return CallResult(f"Error: {inert(str(error), 2000)}", failed=True)
        except Exception as error:  # an invalid answer may raise anything
            return CallResult(f"Error: {name} gave no usable answer: {inert(f'{type(error).__name__}: {error}', 500)}",
                        failed=True)
        return call_result(result)

    async def close(self) -> None:
        await self._disconnect()
        self.problem = self.problem or "it was closed"

    @property
    def _what(self) -> str:
        return public_url(self._config.url) if self._config.url else self._config.command[0]

    async def _lost(self) -> str:
        """The reason why the connection was closed unexpectedly."""
        self._ended.set()
        if self._owner is not None:
            await asyncio.wait([self._owner], timeout=END_SECONDS)
        self.problem = self.problem or f"the MCP server {self._what} has ended"
        return self.problem

    async def _disconnect(self) -> None:
        owner, self._owner = self._owner, None
        if owner is None:
            return
        self._end.set()
        done, _ = await asyncio.wait([owner], timeout=END_SECONDS)
        if not done:
            owner.cancel()
            await asyncio.wait([owner], timeout=END_SECONDS)

    async def _own(self, ready: asyncio.Future[None]) -> None:
        """Hold the session until its end."""
        problem = ""
        try:
            async with self._transport() as transport:
                from mcp import Client
                from mcp.types import Implementation

                async with Client(transport, cache=None, client_info=Implementation(name="openclaw-rl", version="1"),
                                  ) as client:
                    await self._read_tools(client)
                    self._client = client
                    if not ready.done():
                        ready.set_result(None)
                    waiting = [asyncio.create_task(self._end.wait()), asyncio.create_task(self._ended.wait())]
                    try:
                        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        for task in waiting:
                            task.cancel()
                if not self._end.is_set():
                    problem = f"the MCP server {self._what} has ended"
        except asyncio.CancelledError:
            problem = "its session was broken off"
        except BaseException as error:  # anyio groups exceptions
            problem = f"the MCP server {self._what} can't be used: {inert(_innermost(error), 500)}"
        if self._stderr_tail and problem:
            problem += f"; its last output: {inert(' '.join(self._stderr_tail.split())[-500:])}"
        self.problem = problem
        if not ready.done():
            ready.set_exception(SandboxError(problem))

    @contextlib.asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        """The transport for `mcp.Client`."""
        if self._config.url:
            import httpx2
            from mcp.client.streamable_http import streamable_http_client

            # Without proxies from environment variables: they would bypass the limits.
            async with httpx2.AsyncClient(transport=bounded_transport(httpx2), timeout=httpx2.Timeout(30, read=300),
                                          trust_env=False) as http:
                yield streamable_http_client(self._config.url, http_client=http)
            return
        async with self._process() as process:
            yield over(process, self._ended.set)

    @contextlib.asynccontextmanager
    async def _process(self) -> AsyncIterator[Any]:
        config = self._config
        if not config.sandbox:
            environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": os.environ.get("HOME", "/"),
                           **config.environment}
            plain = await PlainProcess.start(config.command, environment, self._context.label)
            try:
                yield plain
            finally:
                await plain.kill()
                self._stderr_tail = await plain.stderr_tail()
            return
        sandbox = await self._context.backend.make(spec(self._settings))
        try:
            process = await sandbox.start(["/bin/sh", "-c", _SEPARATE, "mcp", *config.command],
                                          environment=config.environment)
            yield process
            if not self._end.is_set():
                with contextlib.suppress(SandboxError):
                    self._stderr_tail = (await sandbox.read(_STDERR, 2000)).decode("utf-8", "replace")
        finally:
            await sandbox.close()

    async def _read_tools(self, client: Any) -> None:
        self._names, self._arguments, self._tools = {}, {}, []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools:
                self._offer(tool)
            cursor = page.next_cursor
            if not cursor or len(self._tools) >= MOST_TOOLS:
                return

    def _offer(self, tool: Any) -> None:
        if len(self._tools) >= MOST_TOOLS:
            return
        name = _function_name(tool.name, self._names)
        try:
            arguments = Arguments(tool.input_schema)
        except BadSchema as error:
            warning = f"the MCP server {self._what}: its tool {short(tool.name)} is left out for its schema: {error}"
            if warning not in self._context.warnings and len(self._context.warnings) < 50:
                self._context.warnings.append(warning)
            return
        self._names[name], self._arguments[name] = tool.name, arguments
        self._tools.append(Tool(name, inert(tool.description or tool.title or tool.name, MOST_DESCRIPTION),
                                arguments.schema))


def _function_name(name: str, taken: Mapping[str, str]) -> str:
    """A unique name that is valid for an OpenAI function."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:60] or "tool"
    found, number = plain, 2
    while found in taken or found == SUBMIT.name:
        found, number = f"{plain}_{number}", number + 1
    return found


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
