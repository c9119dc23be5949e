"""Environment type `openenv`: the environments of an OpenEnv server (https://github.com/huggingface/OpenEnv).

A lease is a session with the server, over a WebSocket. The only action is `step`, whose arguments are the fields of the
server's action; the outcome of a task is computed from the rewards.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

import orjson

from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.environments.interface import (
    BadAction,
    BadTask,
    Context,
    Observation,
    Opening,
    Outcome,
    StepResult,
    Tool,
    tools_schema,
)
from openclaw_rl.rollouts.environments.json_schema import Arguments, BadSchema
from openclaw_rl.rollouts.environments.openenv.session import ServerError, Session, http_url
from openclaw_rl.rollouts.environments.untrusted_text import inert, public_url, short
from openclaw_rl.rollouts.sandboxes.interface import Unusable
from openclaw_rl.rollouts.tasks.task import Action, Task
from openclaw_rl.runtime.rejection import Rejection

RESET_SECONDS = 120.0
_HTTP_SECONDS = 10.0
_MOST_SCHEMA = 1 << 20
_MOST_PARTS = 10_000
_MOST_RESET = 65_536
_MOST_PICTURE = 6 << 20
#: Larger numbers are no rewards: their sums would not be finite.
_MOST_REWARD = 1e100
_PNG_IN_BASE64 = "iVBORw0KGgo"
_OUTCOMES: dict[str, Callable[[list[float]], float]] = {
    "sum": math.fsum, "last": lambda rewards: rewards[-1], "best": max,
    "mean": lambda rewards: math.fsum(rewards) / len(rewards)}
_INSTRUCTIONS = "Act by calling step, until the episode is over."
_DESCRIPTION = "Do an action in the environment."
_OBSERVED = {"text": {"type": "string", "description": "The observation as text, or as JSON."},
             "observation": {"description": "As the server gave it."}, "metadata": {"type": "object"}}
OBSERVATION = {"type": "object", "required": ["text"], "properties": _OBSERVED}


class OpenEnvEnvironment:
    """See Environment."""

    def __init__(self, session: Session, kind: OpenEnvType) -> None:
        self._session, self._kind = session, kind
        self._task: Task | None = None
        self._rewards: list[float] = []
        self._done = False
        self._lines: list[str] = []

    @property
    def problem(self) -> str:
        return self._session.problem

    async def reset(self, task: Task | None, seed: int | None) -> Opening:
        if task is not None:
            self._kind.check_task(task)
        data = dict(task.setup.get("reset", {})) if task else {}
        if seed is not None:
            data.setdefault("seed", seed)
        self._task, self._rewards, self._done, self._lines = None, [], False, []
        try:
            answer = await self._session.ask({"type": "reset", "data": data}, RESET_SECONDS)
        except ServerError as error:
            raise BadTask(f"`setup`, `reset`: the OpenEnv server refused it: {error} ({error.code})") from None
        except TimeoutError:
            raise BadTask(f"the OpenEnv server didn't reset within {RESET_SECONDS:g} s") from None
        self._task, self._done = task, bool(answer.get("done"))
        observation = _observation(answer)
        self._lines.append(inert(observation.text, 2000))
        return Opening(observation, task.goal if task else "", _INSTRUCTIONS, [self._kind.tool])

    async def step(self, action: Action, seconds: float) -> StepResult:
        if self._done:
            raise BadAction("the episode is over; reset begins a new one")
        self._kind.check_action(action)
        try:
            answer = await self._session.ask({"type": "step", "data": dict(action.arguments)}, seconds)
        except TimeoutError:
            return _failed(f"the environment didn't answer within {seconds:g} s")
        except ServerError as error:
            if error.code == "VALIDATION_ERROR":
                raise BadAction(f"step: {error}") from None
            return _failed(f"{error} ({error.code})")
        observation = _observation(answer)
        reward = _reward(answer.get("reward"))
        if reward is not None:
            self._rewards.append(reward)
        self._done = bool(answer.get("done"))
        self._lines = [*self._lines[-49:], f"{short(dict(action.arguments), 300)}\n  {inert(observation.text, 500)}"]
        return StepResult(observation, reward, self._done)

    async def evaluate(self) -> Outcome:
        if self._task is None:
            return Outcome(0.0, "there is no task")
        if not self._rewards:
            return Outcome(0.0, "there was no reward")
        name = self._task.check.get("outcome", "sum")
        value = _OUTCOMES[name](self._rewards)
        outcome = min(max(value / self._task.check.get("full", 1.0), 0.0), 1.0)
        return Outcome(outcome, f"the {name} of {len(self._rewards)} rewards is {value:g}"
                                f"{'' if self._done else '; the environment did not end the episode'}")

    async def view(self) -> Observation:
        return Observation({"text": "\n".join(self._lines) or "Nothing has been done."})

    async def close(self) -> None:
        await self._session.close()


class OpenEnvType:
    """See EnvironmentType. Its schemas are the server's as soon as `validate` has found it."""

    def __init__(self, config: EnvironmentConfig, context: Context) -> None:
        self._url, self._name = config.url or "", context.name
        self.sandbox = f"OpenEnv server {public_url(self._url)}"
        self.observation_schema: dict[str, Any] = OBSERVATION
        self._use({"type": "object"})
        self._known = False

    async def validate(self) -> Rejection[Unusable] | None:
        if find_spec("websockets") is None:
            return Rejection(Unusable.PROGRAM_MISSING,
                             "the package `websockets` is missing: pip install 'openclaw-rl[environments]'")
        key, shown = f"components.env_server.environments.{self._name}.url", public_url(self._url)
        if not self._url:
            return Rejection(Unusable.MISCONFIGURED, (
                f"`{key}` is missing: the address of an OpenEnv server, such as http://127.0.0.1:8000"))
        if urlsplit(self._url).scheme not in ("http", "https") or not urlsplit(self._url).hostname:
            return Rejection(Unusable.MISCONFIGURED, (
                f"`{key}`: {short(shown)} is not allowed: an address such as http://127.0.0.1:8000"))
        import httpx

        try:
            async with httpx.AsyncClient(timeout=_HTTP_SECONDS, trust_env=False) as http:
                health = await http.get(http_url(self._url, "/health"))
                if health.status_code != 200:
                    return Rejection(Unusable.UNREACHABLE, (
                        f"`{key}`: {shown}/health answers {health.status_code}; is it an OpenEnv server?"))
                if not self._known:
                    await self._learn(http)
        except httpx.HTTPError as error:
            return Rejection(Unusable.UNREACHABLE, (
                f"`{key}`: the OpenEnv server {shown} can't be reached "
                f"({inert(str(error), 200) or type(error).__name__}); start it"))
        except (ValueError, BadSchema, RecursionError) as error:
            return Rejection(Unusable.UNREACHABLE, (
                f"`{key}`: {shown}/schema gives no schema that can be used: {inert(str(error), 300)}"))
        return None

    def check_task(self, task: Task) -> None:
        _known(task.setup, "setup", ("reset",))
        _known(task.check, "check", ("outcome", "full"))
        reset = task.setup.get("reset", {})
        if not isinstance(reset, Mapping) or len(json.dumps(reset)) > _MOST_RESET:
            raise BadTask(f"`setup`, `reset`: {short(reset)} is not allowed: what the server's reset takes, such as "
                          "{seed: 1}")
        outcome, full = task.check.get("outcome", "sum"), task.check.get("full", 1.0)
        if outcome not in _OUTCOMES:
            raise BadTask(f"`check`, `outcome`: {short(outcome)} is not allowed: {', '.join(_OUTCOMES)}")
        if isinstance(full, bool) or not isinstance(full, int | float) or not 0 < full <= _MOST_REWARD:
            raise BadTask(f"`check`, `full`: {short(full)} is not allowed: a number above 0, which counts as done")
        for action in task.solution:
            try:
                self.check_action(action)
            except BadAction as error:
                raise BadTask(f"`solution`: {error}") from None

    def check_action(self, action: Action) -> None:
        """Validate an action.

        Raises:
            BadAction: it does not match the server's schema.
        """
        if action.name != self.tool.name:
            raise BadAction(f"`name`: {short(action.name)} is no function; there is {self.tool.name}")
        if not isinstance(action.arguments, Mapping):
            raise BadAction(f"`arguments`: {short(action.arguments)} is not allowed: an object")
        self._arguments.check(action.name, action.arguments)

    async def make(self) -> OpenEnvEnvironment:
        return OpenEnvEnvironment(await Session.open(self._url), self)

    async def close(self) -> None:
        pass

    async def _learn(self, http: Any) -> None:
        """Fetch the schemas."""
        async with http.stream("GET", http_url(self._url, "/schema")) as response:
            data = bytearray()
            async for part in response.aiter_bytes():
                data += part
                if len(data) > _MOST_SCHEMA:
                    raise ValueError(f"more than {_MOST_SCHEMA:,} bytes")
        schemas = orjson.loads(data)  # accepts only what it can write again: numbers of 64 bits, no lone surrogates
        if response.status_code != 200 or not isinstance(schemas, dict) or not isinstance(schemas.get("action"), dict):
            raise ValueError(f"`action` is missing (status {response.status_code})")
        action = _inlined(schemas["action"])
        action.pop("title", None)
        # Pydantic adds it to each action, without a meaning.
        action.get("properties", {}).pop("metadata", None)
        self._use(action)
        if isinstance(seen := schemas.get("observation"), dict):
            self.observation_schema = {**OBSERVATION, "properties": {**_OBSERVED, "observation": _inlined(seen)}}
        self._known = True

    def _use(self, action: dict[str, Any]) -> None:
        self._arguments = Arguments(action)
        description = action.get("description")
        self.tool = Tool("step", inert(description, 2000) if isinstance(description, str) else _DESCRIPTION,
                         self._arguments.schema)
        self.action_schema: dict[str, Any] = tools_schema([self.tool])


def make(config: EnvironmentConfig, context: Context) -> OpenEnvType:
    """Make the type."""
    return OpenEnvType(config, context)


def _failed(text: str) -> StepResult:
    return StepResult(Observation({"text": f"Error: {text}"}), error=text)


def _reward(value: Any) -> float | None:
    """A reward; None if the value is not one."""
    if not isinstance(value, bool | int | float) or not abs(value) <= _MOST_REWARD:
        return None
    return float(value)


def _observation(answer: Mapping[str, Any]) -> Observation:
    """A server's observation, harmless and bounded: its only text, or all of it as JSON, and its first PNG picture."""
    seen = answer.get("observation")
    pictures: list[bytes] = []
    seen = _harmless(seen, pictures)
    data: dict[str, Any] = {"text": "", "observation": seen}
    if isinstance(metadata := answer.get("metadata"), dict) and metadata:
        data["metadata"] = _harmless(metadata, [])
    told = seen
    if isinstance(seen, dict):
        told = {key: value for key, value in seen.items() if value not in (None, "", [], {})}
        if len(told) == 1 and isinstance(only := next(iter(told.values())), str):
            told = only
    data["text"] = told if isinstance(told, str) else inert(json.dumps(told, ensure_ascii=False))
    return Observation(data, pictures[0] if pictures else b"")


def _harmless(value: Any, pictures: list[bytes], deep: int = 0) -> Any:
    if isinstance(value, str):
        if value.startswith(_PNG_IN_BASE64) and len(value) < _MOST_PICTURE * 4 // 3:
            try:
                pictures.append(base64.b64decode(value, validate=True))
                return f"[picture, {len(pictures[-1]):,} bytes]"
            except (binascii.Error, ValueError):
                pass
        return inert(value)
    if deep > 20:
        return "[more is left out]"
    if isinstance(value, dict):
        return {inert(str(key), 200): _harmless(entry, pictures, deep + 1) for key, entry in list(value.items())[:1000]}
    if isinstance(value, list):
        return [_harmless(entry, pictures, deep + 1) for entry in value[:10_000]]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and not -2**63 <= value < 2**64:
        return str(value)  # not every server writes such numbers as JSON
    return value


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Inline the `$ref`s of a schema, so that it can be part of another one. One that refers to itself, or is huge,
    allows anything beyond some depth."""
    definitions = schema.get("$defs", {})
    left = _MOST_PARTS

    def inlined(part: Any, deep: int) -> Any:
        nonlocal left
        left -= 1
        if deep > 40 or left < 0:
            return {}
        if isinstance(part, list):
            return [inlined(entry, deep + 1) for entry in part]
        if not isinstance(part, dict):
            return part
        if isinstance(reference := part.get("$ref"), str):
            name = reference.removeprefix("#/$defs/")
            return inlined(definitions.get(name, {}) if isinstance(definitions, dict) else {}, deep + 5)
        return {key: inlined(value, deep + 1) for key, value in part.items() if key != "$defs"}

    result: dict[str, Any] = inlined(schema, 0)
    return result


def _known(section: Mapping[str, Any], name: str, keys: tuple[str, ...]) -> None:
    for key in section:
        if key not in keys:
            raise BadTask(f"`{name}`: `{key[:100]}` is no key of it; there are {', '.join(keys)}")
