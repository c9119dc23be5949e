"""OpenEnv servers as environments: a scripted one for what goes wrong, and a real one on the official package."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.environments.interface import BadAction, BadTask, Context
from openclaw_rl.rollouts.environments.openenv.plugin import OpenEnvEnvironment, OpenEnvType, make
from openclaw_rl.rollouts.environments.untrusted_text import public_url
from openclaw_rl.rollouts.sandboxes.factory import backend
from openclaw_rl.rollouts.sandboxes.interface import SandboxError
from openclaw_rl.rollouts.tasks.task import Action, Task
from tests.support.ports import free_port
from tests.support.required import left_out

PYTHON = Path(__file__).parents[3] / ".venv/openenv/bin/python"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAAC0lEQVR4nGMAAQAABQABDQottAAAAABJRU5ErkJggg=="
SCHEMA: dict[str, Any] = {
    "action": {"type": "object", "additionalProperties": False, "required": ["word"], "$defs": {
        "How": {"enum": ["loud", "quiet"]}}, "properties": {
            "word": {"type": "string"}, "how": {"$ref": "#/$defs/How"}, "metadata": {"type": "object"}}},
    "observation": {"type": "object", "properties": {"echo": {"type": "string"}}}}
#: Answers to one message; a text is sent as it is.
Answer = Callable[[dict[str, Any]], list[dict[str, Any] | str] | None]


def seen(observation: Any, reward: Any = None, done: bool = False, **more: Any) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": observation, "reward": reward, "done": done, **more}}


def refused(code: str, message: str = "no", **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code, **more}}


@contextlib.asynccontextmanager
async def server(answer: Answer, schema: Any = SCHEMA, first: dict[str, Any] | None = None) -> AsyncIterator[str]:
    """A scripted server's address. An answer of None closes the connection."""
    async def session(connection: ServerConnection) -> None:
        if first is not None:
            await connection.send(json.dumps(first))
            return
        async for message in connection:
            value = json.loads(message)
            answers = [{"type": "state", "data": {}}] if value["type"] == "state" else answer(value)
            if answers is None:
                return
            for one in answers:
                if one == "later":
                    await asyncio.sleep(0.3)
                else:
                    await connection.send(one if isinstance(one, str) else json.dumps(one))

    def http(connection: ServerConnection, request: Request) -> Response | None:
        if request.path == "/health":
            return connection.respond(HTTPStatus.OK, '{"status": "healthy"}')
        if request.path == "/schema":
            return connection.respond(HTTPStatus.OK, schema if isinstance(schema, str) else json.dumps(schema))
        return None

    async with serve(session, "127.0.0.1", 0, process_request=http) as running:
        yield f"http://127.0.0.1:{running.sockets[0].getsockname()[1]}"


def kind_of(url: str | None, folder: Path) -> OpenEnvType:
    config = EnvironmentConfig(count=2, kind="openenv", url=url)
    return make(config, Context("game", folder, backend(config, folder)))


async def say(environment: OpenEnvEnvironment, word: str, seconds: float = 10) -> Any:
    return await environment.step(Action("step", {"word": word}), seconds)


async def test_reset_step_and_outcome(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []

    def answer(message: dict[str, Any]) -> list[dict[str, Any] | str]:
        told.append(message)
        if message["type"] == "reset":
            return [seen({"echo": "begin", "metadata": {}})]
        return [seen({"echo": message["data"]["word"]}, reward=0.25, done=message["data"]["word"] == "end")]

    async with server(answer) as url:
        kind = kind_of(url, tmp_path)
        assert await kind.validate() is None and url in kind.sandbox
        assert kind.action_schema["oneOf"][0]["properties"] == {"name": {"const": "step"}, "arguments": {
            "type": "object", "additionalProperties": False, "required": ["word"],
            "properties": {"word": {"type": "string"}, "how": {"enum": ["loud", "quiet"]}}}}
        environment = await kind.make()
        task = Task("t", "openenv", "Say it.", setup={"reset": {"level": 3}}, check={"outcome": "sum", "full": 0.5})
        opening = await environment.reset(task, 7)
        assert (opening.goal, opening.observation.text, [tool.name for tool in opening.tools]) == \
            ("Say it.", "begin", ["step"])
        assert told[-1] == {"type": "reset", "data": {"level": 3, "seed": 7}}
        assert (await environment.evaluate()).value == 0
        result = await say(environment, "hello")
        assert (result.reward, result.done, result.observation.text) == (0.25, False, "hello")
        assert (await environment.evaluate()).value == 0.5
        assert (await say(environment, "end")).done
        with pytest.raises(BadAction, match="the episode is over"):
            await say(environment, "more")
        outcome = await environment.evaluate()
        assert (outcome.value, outcome.detail) == (1.0, "the sum of 2 rewards is 0.5")
        assert "hello" in (await environment.view()).text
        for name, value in (("last", 0.25), ("best", 0.25), ("mean", 0.25)):
            await environment.reset(Task("t", "openenv", "x", check={"outcome": name}), None)
            await say(environment, "a")
            await say(environment, "b")
            assert (await environment.evaluate()).value == value
        assert told[-3] == {"type": "reset", "data": {}}
        await environment.close()
        await environment.close()


@pytest.mark.parametrize(("action", "says"), [
    (Action("go", {}), '`name`: "go" is no function; there is step'),
    (Action("step", {}), "step: the argument `word` is missing; the arguments are word, how"),
    (Action("step", {"word": 1}), "step: `word`: 1 is not allowed: of type string"),
    (Action("step", {"word": "a", "how": "long"}), 'step: `how`: "long" is not allowed: one of'),
    (Action("step", {"word": "a", "why": 1}), "`why` is no argument"),
    (Action("step", {"word": "refuse"}), "step: Invalid message; `word`: too rude"),
])
async def test_bad_actions(tmp_path: Path, action: Action, says: str) -> None:
    def answer(message: dict[str, Any]) -> list[dict[str, Any] | str]:
        if message["type"] == "step":
            return [refused("VALIDATION_ERROR", "Invalid message", errors=[{"loc": ["word"], "msg": "too rude"}])]
        return [seen({})]

    async with server(answer) as url:
        kind = kind_of(url, tmp_path)
        assert not await kind.validate()
        environment = await kind.make()
        await environment.reset(None, None)
        with pytest.raises(BadAction) as error:
            await environment.step(action, 5)
        assert says in str(error.value)
        assert not environment.problem
        await environment.close()


async def test_a_step_that_fails_and_answers_that_are_none(tmp_path: Path) -> None:
    answers: dict[str, list[dict[str, Any] | str]] = {
        "broken": [refused("EXECUTION_ERROR", "the game\x1b[31m broke")], "garbage": ["\x1b no JSON"],
        "list": ["[1]"], "deep": ["[" * 100_000], "data": ['{"type": "observation", "data": 5}'],
        "nan": ['{"type": "observation", "data": {"observation": {"echo": "x"}, "reward": NaN}}'],
        "huge": [seen({"echo": "x"}, reward=10**400)], "endless": [seen({"echo": "x"}, reward=-1e300)],
        "reward": [seen({"echo": "x"}, reward="much")]}

    async with server(lambda message: answers.get(message["data"].get("word", ""), [seen({"echo": "fine"})])) as url:
        environment = await kind_of(url, tmp_path).make()
        await environment.reset(None, None)
        broken = await say(environment, "broken")
        assert broken.error == "the game\\x1b[31m broke (EXECUTION_ERROR)" and not broken.done
        for word in ("garbage", "list", "deep", "data"):
            assert "no answer" in (await say(environment, word)).error
        for word in ("nan", "reward", "huge", "endless"):
            result = await say(environment, word)
            assert (result.reward, result.observation.text) == (None, "x")
        assert (await say(environment, "fine")).observation.text == "fine"
        await environment.close()


async def test_a_late_answer_is_not_taken_for_the_next(tmp_path: Path) -> None:
    def answer(message: dict[str, Any]) -> list[dict[str, Any] | str]:
        word = message["data"].get("word")
        return ["later", seen({"echo": "late"})] if word == "slow" else [seen({"echo": word})]

    async with server(answer) as url:
        environment = await kind_of(url, tmp_path).make()
        await environment.reset(None, None)
        assert (await say(environment, "slow", 0.1)).error == "the environment didn't answer within 0.1 s"
        assert (await say(environment, "next")).observation.text == "next"
        await environment.close()


async def test_what_is_seen_is_harmless_and_bounded(tmp_path: Path) -> None:
    nasty = "<script>alert(1)</script>\x1b]0;title\x07\x00\u202e\ud800"

    def answer(message: dict[str, Any]) -> list[dict[str, Any] | str]:
        word = message["data"].get("word", "")
        if word == "nasty":
            return [seen({"echo": nasty, nasty: [nasty]}, metadata={"a": nasty})]
        return [seen({"echo": "x" * 1_000_000 if word == "long" else "", "picture": PNG, "more": [1, None]})]

    async with server(answer) as url:
        environment = await kind_of(url, tmp_path).make()
        await environment.reset(None, None)
        plain = (await say(environment, "picture")).observation
        assert plain.image_png.startswith(b"\x89PNG")
        assert plain.text == '{"picture": "[picture, 67 bytes]", "more": [1, null]}'
        bad = (await say(environment, "nasty")).observation
        text = json.dumps(bad.data, ensure_ascii=False)
        text.encode()
        assert "<script>" in text and not any(character in text for character in "\x1b\x00\u202e\x07")
        long = (await say(environment, "long")).observation
        assert len(long.text) < 17_000 and len(json.dumps(long.data)) < 40_000
        await environment.close()


async def test_a_message_that_is_too_long_or_an_end_is_a_problem(tmp_path: Path) -> None:
    async with server(lambda message: ["x" * (9 << 20)] if message["data"].get("word") == "flood" else
                      None if message["data"].get("word") == "end" else [seen({})]) as url:
        kind = kind_of(url, tmp_path)
        for word in ("flood", "end"):
            environment, other = await kind.make(), await kind.make()
            await environment.reset(None, None)
            with pytest.raises(SandboxError, match=f"the connection to the OpenEnv server {url} was closed"):
                await say(environment, word)
            assert environment.problem and not other.problem
            with pytest.raises(SandboxError):
                await environment.reset(None, None)
            await environment.close()
            await other.close()


async def test_a_server_that_ends_is_noticed_without_a_call(tmp_path: Path) -> None:
    async with server(lambda _: [seen({})]) as url:
        environment = await kind_of(url, tmp_path).make()
    async with asyncio.timeout(10):
        while not environment.problem:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await environment.close()


async def test_a_full_server(tmp_path: Path) -> None:
    full = refused("CAPACITY_REACHED", "Server at capacity: 2/2 sessions active.", active_sessions=2, max_sessions=2)
    async with server(lambda _: None, first=full) as url:
        with pytest.raises(SandboxError, match=r"gives no session: Server at capacity: 2/2 .* \(CAPACITY_REACHED\)"):
            await kind_of(url, tmp_path).make()


@pytest.mark.parametrize(("setup", "check", "solution", "says"), [
    ({"seeds": [1]}, {}, [], "`setup`: `seeds` is no key of it; there are reset"),
    ({"reset": 5}, {}, [], "`reset`: 5 is not allowed"),
    ({}, {"outcome": "all"}, [], '`outcome`: "all" is not allowed: sum, last, best, mean'),
    ({}, {"full": 0}, [], "`full`: 0 is not allowed"),
    ({}, {"full": 10**400}, [], "`full`: 10*.* is not allowed"), ({}, {"full": float("inf")}, [], "`full`: .* is not"),
    ({}, {"full": "1"}, [], '`full`: "1" is not allowed'),
    ({}, {"answer": "x"}, [], "`check`: `answer` is no key of it"),
    ({}, {}, [Action("run", {})], '`solution`: `name`: "run" is no function'),
])
def test_a_bad_task(tmp_path: Path, setup: dict[str, Any], check: dict[str, Any], solution: list[Action],
                    says: str) -> None:
    with pytest.raises(BadTask, match=says):
        kind_of("http://127.0.0.1:9", tmp_path).check_task(
            Task("t", "openenv", "x", setup=setup, check=check, solution=solution))


async def test_a_reset_that_the_server_refuses(tmp_path: Path) -> None:
    async with server(lambda _: [refused("EXECUTION_ERROR", "no such level")]) as url:
        environment = await kind_of(url, tmp_path).make()
        with pytest.raises(BadTask, match="refused it: no such level"):
            await environment.reset(Task("t", "openenv", "x", setup={"reset": {"level": 9}}), None)
        await environment.close()


@pytest.mark.parametrize(("url", "says"), [
    (None, "environments.game.url` is missing"),
    ("ftp://host/", '"ftp://host/" is not allowed: an address such as'),
    ("http://127.0.0.1:9", "can't be reached"),
])
async def test_an_address_that_is_none(tmp_path: Path, url: str | None, says: str) -> None:
    assert says in str(await kind_of(url, tmp_path).validate())
    with pytest.raises(SandboxError, match="can't be reached"):
        await kind_of(url, tmp_path).make()


@pytest.mark.parametrize("schema", ["no JSON", "[]", '{"action": 5}', '{"action": {"type": "array"}}', "x" * 2_000_000,
                                    '{"action": {"properties": {"a": {"type": "nothing"}}}}',
                                    r'{"action": {"description": "\ud800"}}'])
async def test_a_schema_that_is_none(tmp_path: Path, schema: str) -> None:
    async with server(lambda _: None, schema) as url:
        assert "gives no schema that can be used" in str(await kind_of(url, tmp_path).validate())


async def test_a_schema_that_refers_to_itself(tmp_path: Path) -> None:
    tree = {"properties": {"left": {"$ref": "#/$defs/Tree"}, "right": {"$ref": "#/$defs/Tree"}}}
    async with server(lambda _: [seen({})], {"action": {"$ref": "#/$defs/Tree", "$defs": {"Tree": tree}}}) as url:
        kind = kind_of(url, tmp_path)
        assert await kind.validate() is None
        kind.check_action(Action("step", {"left": {"left": {}}}))


def test_passwords_in_an_address_are_not_shown() -> None:
    assert public_url("https://me:secret@host:8000/a?token=x") == "https://host:8000/a"


@pytest.mark.slow
async def test_a_real_server(tmp_path: Path) -> None:
    if not PYTHON.exists():
        left_out(f"{PYTHON} is missing; tools/openenv-environment makes it")
    port = free_port()
    script = Path(__file__).with_name("openenv_server.py")
    process = await asyncio.create_subprocess_exec(PYTHON, script, str(port))
    try:
        kind = kind_of(f"http://127.0.0.1:{port}", tmp_path)
        async with asyncio.timeout(60):
            while rejection := await kind.validate():
                assert "can't be reached" in rejection.message and process.returncode is None
                await asyncio.sleep(0.1)
        assert list(kind.tool.parameters["properties"]) == ["number", "trick", "detail"]
        await _play(kind)
        process.kill()
        await process.wait()
        assert "can't be reached" in str(await kind.validate())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _play(kind: OpenEnvType) -> None:
    first, second = await kind.make(), await kind.make()
    with pytest.raises(SandboxError, match="CAPACITY_REACHED"):
        await kind.make()
    task = Task("t", "openenv", "Guess the number.", setup={"reset": {"secret": 42}}, check={"outcome": "last"})
    kind.check_task(task)
    assert (await first.reset(task, 5)).observation.text == "Guess from 0 to 100 (seed 5)."
    await second.reset(None, 1)
    assert (await first.step(Action("step", {"number": 10}), 5)).observation.text == "Higher."
    with pytest.raises(BadAction, match="`number`: 500 is not allowed: at most 100"):
        await first.step(Action("step", {"number": 500}), 5)
    assert "the game broke" in (await first.step(Action("step", {"number": 1, "trick": "raise"}), 5)).error
    slow = await first.step(Action("step", {"number": 1, "trick": "sleep"}), 0.2)
    assert "didn't answer" in slow.error
    nasty = await first.step(Action("step", {"number": 1, "trick": "nasty", "detail": {"loud": True}}), 5)
    assert nasty.observation.text == "<script>alert(1)</script>\\x1b]0;title\\x07\\x00\\u202e" and nasty.reward is None
    right = await first.step(Action("step", {"number": 42}), 5)
    assert (right.observation.text, right.reward, right.done) == ("Right.", 1.0, True)
    assert (await first.evaluate()).value == 1
    with pytest.raises(BadTask, match="no such secret"):
        await first.reset(Task("t", "openenv", "x", setup={"reset": {"secret": "broken"}}), None)
    with pytest.raises(SandboxError, match="was closed"):
        await second.step(Action("step", {"number": 1, "trick": "flood"}), 20)
    await first.close()
    third = await _again(kind)
    assert (await third.reset(task, None)).goal == "Guess the number."
    await third.close()
    await second.close()


async def _again(kind: OpenEnvType) -> OpenEnvEnvironment:
    """As soon as the server has noticed that a session is gone."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await kind.make()
            except SandboxError as error:
                assert "CAPACITY_REACHED" in str(error)
                await asyncio.sleep(0.05)
