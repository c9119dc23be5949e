"""Clients of an SGLang server: streaming requests, and commands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Protocol

import httpx
import orjson

from openclaw_rl.serving.engines.interface import EngineError

logger = logging.getLogger(__name__)

Body = Mapping[str, Any]
#: Default timeout of a command, seconds.
COMMAND_SECONDS = 30.0


class ConnectionLost(Exception):
    """SGLang can't be reached, or its response broke off; the text says how."""


class CommandRefused(EngineError):
    """SGLang refused a command; the text is its own."""


class EngineClient(Protocol):
    """A client. Methods are called on one event loop."""

    address: str  #: http://HOST:PORT; empty in process

    def generate(self, body: Body) -> AsyncIterator[dict[str, Any]]:
        """Stream the pieces of a response of /generate. `body` must have a `rid`.

        Raises:
            ConnectionLost: the response broke off.
            CommandRefused: it did not begin.
        """
        ...

    async def command(self, path: str, body: Body | None = None, seconds: float = COMMAND_SECONDS) -> dict[str, Any]:
        """Post to `path`, or get it without a body; returns the response.

        Raises:
            ConnectionLost: no answer within `seconds`, or none at all.
            CommandRefused: SGLang refused.
        """
        ...

    def abort(self, rid: str) -> None:
        """Abort a request, without waiting. Never raises."""

    async def close(self) -> None:
        """Close the connections."""


class HttpClient:
    """A client over HTTP.

    Args:
        address: http://HOST:PORT.
        key: SGLang's `api-key`; empty when it has none.
    """

    def __init__(self, address: str, key: str = "") -> None:
        self.address, self.key = address.rstrip("/"), key
        self._client = httpx.AsyncClient(
            base_url=self.address, trust_env=False, timeout=httpx.Timeout(COMMAND_SECONDS, read=None, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            headers={"authorization": f"Bearer {key}"} if key else None)
        self._aborts: set[asyncio.Task[None]] = set()

    async def generate(self, body: Body) -> AsyncIterator[dict[str, Any]]:
        try:
            async with self._client.stream("POST", "/generate", content=orjson.dumps(body),
                                           headers={"content-type": "application/json"}) as response:
                if response.status_code != 200:
                    raise CommandRefused(_message(await response.aread()))
                async for line in response.aiter_lines():
                    if not line.startswith("data:"):
                        continue
                    data = line[5:].strip()
                    if data == "[DONE]":
                        return
                    piece = orjson.loads(data)
                    if "error" in piece:
                        raise CommandRefused(_message(data.encode()))
                    yield piece
        except (httpx.HTTPError, orjson.JSONDecodeError, RuntimeError) as error:  # RuntimeError: the client is closed
            raise ConnectionLost(f"{self.address}: {type(error).__name__} {error}".strip()) from error

    async def command(self, path: str, body: Body | None = None, seconds: float = COMMAND_SECONDS) -> dict[str, Any]:
        try:
            async with asyncio.timeout(seconds):
                if body is None:
                    response = await self._client.get(path)
                else:
                    response = await self._client.post(path, content=orjson.dumps(body),
                                                       headers={"content-type": "application/json"})
        except TimeoutError:
            raise ConnectionLost(f"{self.address}{path}: no answer within {seconds:.0f} s") from None
        except (httpx.HTTPError, RuntimeError) as error:
            raise ConnectionLost(f"{self.address}{path}: {type(error).__name__} {error}".strip()) from error
        if response.status_code != 200:
            raise CommandRefused(f"{path}: {_message(response.content)}")
        return _object(response.content)

    def abort(self, rid: str) -> None:
        async def work() -> None:
            with suppress(Exception):  # nobody waits for it, and SGLang aborts what lost its connection anyway
                await self.command("/abort_request", {"rid": rid, "abort_all": False}, 10)

        task = asyncio.ensure_future(work())
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def close(self) -> None:
        for task in self._aborts:
            task.cancel()
        await self._client.aclose()


def _object(content: bytes) -> dict[str, Any]:
    with suppress(orjson.JSONDecodeError):
        value = orjson.loads(content)
        return value if isinstance(value, dict) else {"value": value}
    return {}


def _message(content: bytes) -> str:
    """The sentence of an error's body."""
    value: Any = _object(content)
    while isinstance(value, dict):
        value = value.get("error") or value.get("message") or value.get("detail") or str(value)
    return str(value or content.decode("utf-8", "replace"))[:500]
