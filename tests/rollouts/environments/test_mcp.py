"""MCP servers as environments: one made with the official package, over stdio and HTTP, and one that behaves badly."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config.environment import EnvironmentConfig, McpConfig
from openclaw_rl.rollouts.environments.interface import BadAction, BadTask, Context
from openclaw_rl.rollouts.environments.mcp import session
from openclaw_rl.rollouts.environments.mcp.plugin import McpType
from openclaw_rl.rollouts.environments.tool_call.environment import ToolCallEnvironment
from openclaw_rl.rollouts.environments.tool_call.plugin import make
from openclaw_rl.rollouts.sandboxes.factory import backend
from openclaw_rl.rollouts.sandboxes.interface import SandboxError
from openclaw_rl.rollouts.tasks.task import Action, Task
from tests.support.ports import free_port
from tests.support.required import left_out

HERE = Path(__file__).parent
ROUGH = (HERE / "rough_mcp_server.py").read_text()


def kind_of(mcp: McpConfig, folder: Path) -> McpType:
    config = EnvironmentConfig(count=2, mcp=mcp, backend="bubblewrap")
    kind = make(config, Context("tools", folder / "tools", backend(config, folder)))
    assert isinstance(kind, McpType)
    return kind


def plain(*command: str) -> McpConfig:
    return McpConfig(command=[sys.executable, *command], sandbox=False, environment={"PYTHONPATH": ""})


async def text(environment: ToolCallEnvironment, name: str, seconds: float = 20, **arguments: Any) -> str:
    return (await environment.step(Action(name, arguments), seconds)).observation.text


@pytest.fixture
async def rough(tmp_path: Path) -> AsyncIterator[ToolCallEnvironment]:
    """The bad server, in no sandbox."""
    environment = await kind_of(plain("-c", ROUGH), tmp_path).make()
    await environment.reset(None, None)
    yield environment
    await environment.close()


async def official(environment: ToolCallEnvironment) -> None:
    """What a server of the official package does, however it is reached."""
    opening = await environment.reset(None, None)
    tools = {tool.name: tool for tool in opening.tools}
    assert {"add", "note", "say_it", "submit"} <= tools.keys()
    assert tools["add"].description == "Add two numbers." and tools["add"].parameters["required"] == ["a", "b"]
    assert await text(environment, "add", a=1, b=2) == "3"
    with pytest.raises(BadAction, match='add: `a`: "x" is not allowed: of type integer'):
        await text(environment, "add", a="x", b=2)
    with pytest.raises(BadAction, match="the argument `b` is missing"):
        await text(environment, "add", a=1)
    with pytest.raises(BadAction, match='"subtract" is no function; there are add, note'):
        await text(environment, "subtract", a=1, b=2)
    failed = await environment.step(Action("fail", {"why": "no reason"}), 20)
    assert failed.error.startswith("Error: ") and failed.observation.text == failed.error
    picture = await environment.step(Action("picture", {}), 20)
    assert picture.observation.image_png.startswith(b"\x89PNG") and "[picture, image/png" in picture.observation.text
    assert '"degrees": 5' in await text(environment, "weather", city="Paris")
    assert await text(environment, "say_it", text="<b>\x1b[31m\0") == "<b>\\x1b[31m\\x00"
    long = await text(environment, "say_it", text="x" * 1000, times=1000)
    assert len(long) < 17_000 and long.endswith("[983,616 more characters are left out]")
    slow = await environment.step(Action("hang", {"seconds": 1.0}), 0.2)
    assert slow.error == "Error: hang didn't answer within 0.2 s"
    assert await text(environment, "add", a=2, b=2) == "4"
    assert "add" in (await environment.view()).text


@pytest.mark.slow
async def test_official_server_over_stdio(tmp_path: Path) -> None:
    kind = kind_of(plain(str(HERE / "mcp_server.py")), tmp_path)
    assert await kind.validate() is None and "in no sandbox" in kind.sandbox
    environment = await kind.make()
    try:
        await official(environment)
        assert await text(environment, "note", text="one") == "one"
        assert await text(environment, "note", text="two") == "one two"
        await environment.reset(None, None)
        assert await text(environment, "note", text="three") == "three", "what an episode left behind is gone"
        with pytest.raises(SandboxError, match=r"has ended; its last output: .*I have had enough"):
            await text(environment, "die")
        assert "I have had enough" in environment.problem
        await environment.reset(None, None)
        assert environment.problem == "" and await text(environment, "add", a=1, b=1) == "2"
    finally:
        await environment.close()


@pytest.mark.slow
async def test_official_server_over_http(tmp_path: Path) -> None:
    port = free_port()
    server = await asyncio.create_subprocess_exec(sys.executable, str(HERE / "mcp_server.py"), str(port),
                                                  stderr=asyncio.subprocess.DEVNULL)
    try:
        kind = kind_of(McpConfig(url=f"http://127.0.0.1:{port}/mcp"), tmp_path)
        async with asyncio.timeout(60):
            while True:
                try:
                    environment = await kind.make()
                    break
                except SandboxError as error:
                    assert f"http://127.0.0.1:{port}/mcp can't be used: ConnectError" in str(error)
                    await asyncio.sleep(0.1)
        other = await kind.make()
        await official(environment)
        with pytest.raises(SandboxError, match=r"an answer of more than 8,388,608 bytes"):
            await text(environment, "say_it", text="x" * 1000, times=10_000)
        await other.reset(None, None)
        assert await text(other, "add", a=1, b=1) == "2", "another lease does not notice"
        with pytest.raises(SandboxError):
            await text(other, "die")
        assert other.problem
        await other.close()
        await environment.close()
    finally:
        if server.returncode is None:
            server.kill()
        await server.wait()


async def test_a_task_and_its_check(rough: ToolCallEnvironment) -> None:
    task = Task("count", "tool_call", "Count.", setup={"tools": ["count"]},
                check={"calls": [{"name": "count"}, {"name": "count"}], "answer": {"containing": 2}})
    opening = await rough.reset(task, None)
    assert [tool.name for tool in opening.tools] == ["count", "submit"]
    assert [await text(rough, "count"), await text(rough, "count")] == ["1", "2"]
    assert (await rough.evaluate()).value == 0
    assert (await rough.step(Action("submit", {"answer": 2}), 5)).done
    assert (await rough.evaluate()).value == 1
    with pytest.raises(BadTask, match='has no "missing"; it has count, garbage'):
        await rough.reset(Task("x", "tool_call", "x", setup={"tools": ["missing"]}, check={"answer": "x"}), None)


@pytest.mark.parametrize(("setup", "check", "says"), [
    ({"functions": []}, {"answer": "x"}, "`functions` is no key of it; with an MCP server there are tools and draw"),
    ({"tools": "count"}, {"answer": "x"}, "`tools`: \"count\" is not allowed"),
    ({}, {"state": {"a": 1}}, "tells no state"),
    ({}, {}, "at least one of `calls`, `state` and `answer`"),
])
def test_a_task_that_cant_be(tmp_path: Path, setup: dict[str, Any], check: dict[str, Any], says: str) -> None:
    with pytest.raises(BadTask, match=says):
        kind_of(plain("x"), tmp_path).check_task(Task("x", "tool_call", "x", setup=setup, check=check))


async def test_a_tool_with_a_bad_schema_is_left_out_and_submit_is_ours(tmp_path: Path) -> None:
    kind = kind_of(plain("-c", ROUGH), tmp_path)
    environment = await kind.make()
    tools = {tool.name: tool for tool in (await environment.reset(None, None)).tools}
    await environment.close()
    assert "bad" not in tools and tools["submit"].description == "Say that the goal is reached."
    assert tools["submit_2"].description.startswith("\\x1b[31mred") and len(tools["submit_2"].description) < 2100
    assert 'its tool "bad" is left out for its schema' in kind._context.warnings[0]


async def test_results_that_are_nasty_or_none(rough: ToolCallEnvironment) -> None:
    nasty = await rough.step(Action("nasty", {}), 20)
    assert nasty.error.startswith("Error: <script>alert(1)</script>\\x1b]0;title\\x07\\x00\\u202egnp?")
    assert "\\x1b[2J, 0 bytes]" in nasty.error and not nasty.observation.image_png
    nasty.error.encode()
    wrong = await rough.step(Action("wrong", {}), 20)
    assert wrong.error.startswith("Error: ")
    assert await text(rough, "garbage", lines=900) == "0", "some lines that are no messages are passed over"


@pytest.mark.parametrize(("name", "arguments"), [("garbage", {"lines": 2000}), ("flood", {"megabytes": 20})])
async def test_a_server_that_floods_is_given_up(rough: ToolCallEnvironment, name: str,
                                                arguments: dict[str, int]) -> None:
    with pytest.raises(SandboxError, match="has ended"):
        await text(rough, name, **arguments)
    assert rough.problem


async def test_a_server_that_hangs_costs_a_step_and_a_new_reset_frees_it(rough: ToolCallEnvironment) -> None:
    assert "didn't answer within 0.3 s" in await text(rough, "hang", seconds=0.3)
    await rough.reset(None, None)
    assert await text(rough, "count") == "1"


async def test_much_noise_on_stderr(rough: ToolCallEnvironment) -> None:
    assert await text(rough, "noise") == "0"


@pytest.mark.parametrize(("mcp", "says"), [
    (plain("-c", ROUGH, "ends"), "no such configuration"),
    (plain("-c", ROUGH, "mute"), "didn't answer within 1 s"),
    (McpConfig(command=["/no/such/program"], sandbox=False), "/no/such/program can't be started: .*No such file"),
    (McpConfig(url="http://127.0.0.1:9/mcp"), "ConnectError"),
])
async def test_a_server_that_cant_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mcp: McpConfig,
                                          says: str) -> None:
    monkeypatch.setattr(session, "START_SECONDS", 1.0 if "mute" in mcp.command else 30.0)
    with pytest.raises(SandboxError, match=says):
        await kind_of(mcp, tmp_path).make()


async def test_a_missing_program_is_told_beforehand(tmp_path: Path) -> None:
    rejection = await kind_of(McpConfig(command=["no-such-program"], sandbox=False), tmp_path).validate()
    assert str(rejection) == '`mcp.command`: there is no program "no-such-program" on this machine'


def test_passwords_in_an_address_are_not_shown(tmp_path: Path) -> None:
    assert kind_of(McpConfig(url="http://me:secret@127.0.0.1:9/mcp?key=k"), tmp_path).sandbox == \
        "MCP server http://127.0.0.1:9/mcp"


async def test_in_a_sandbox(tmp_path: Path) -> None:
    """A sandboxed server sees neither the network nor the files of this machine, and is as usable."""
    kind = kind_of(McpConfig(command=["/usr/bin/python3", "-c", ROUGH]), tmp_path)
    if rejection := await kind.validate():
        left_out(rejection.message)
    environment = await kind.make()
    try:
        await environment.reset(None, None)
        assert await text(environment, "count") == "1"
        assert "not reached" in await text(environment, "where")
        assert await text(environment, "files") == ""
        assert await text(environment, "noise") == "1"
        assert await text(environment, "garbage", lines=5) == "1"
        with pytest.raises(SandboxError, match="has ended"):
            await text(environment, "die")
        await environment.reset(None, None)
        assert await text(environment, "count") == "1"
        with pytest.raises(SandboxError, match="I have had enough"):
            await text(environment, "die")
    finally:
        await environment.close()
