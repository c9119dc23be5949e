"""Session with an OpenEnv server: a WebSocket with an environment of its own at the other end."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from openclaw_rl.rollouts.environments.untrusted_text import inert, public_url
from openclaw_rl.rollouts.sandboxes.interface import SandboxError
from openclaw_rl.runtime.json import parse_json

CONNECT_SECONDS = 30.0
#: Bytes of one message.
MOST_MESSAGE = 8 << 20
_CLOSE_SECONDS = 5.0
#: Error codes after which the session is over.
_FATAL = ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR")


class ServerError(Exception):
    """The server rejected a message; the session continues."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Session:
    """Messages are answered one after the other. Made by `open`."""

    def __init__(self, socket: Any, url: str) -> None:
        self.problem = ""
        self._socket, self._url = socket, url
        self._owed = 0  # answers that nobody waits for
        self._watching = asyncio.create_task(self._watch(), name=f"openenv {url}")

    @classmethod
    async def open(cls, url: str) -> Session:
        """Open a session.

        Args:
            url: of the server, http or https.

        Raises:
            SandboxError: it can't be reached, or is full.
        """
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException

        split = urlsplit(url)
        try:
            # With host and port given, no redirect to another host is followed: it could be one that only we reach.
            socket = await connect(websocket_url(url), host=split.hostname,
                                   port=split.port or (443 if split.scheme == "https" else 80),
                                   open_timeout=CONNECT_SECONDS, max_size=MOST_MESSAGE, close_timeout=_CLOSE_SECONDS,
                                   proxy=None)
        except (OSError, WebSocketException, TimeoutError, ValueError) as error:
            raise SandboxError(f"the OpenEnv server {public_url(url)} can't be reached: "
                               f"{inert(str(error), 300) or type(error).__name__}") from None
        session = cls(socket, public_url(url))
        try:
            # A full server accepts the connection before it says so.
            await session.ask({"type": "state"}, CONNECT_SECONDS)
        except ServerError:
            pass  # some servers have no state before a reset
        except BaseException as error:
            await session.close()
            if isinstance(error, TimeoutError):
                raise SandboxError(f"the OpenEnv server {public_url(url)} accepts connections but doesn't answer"
                                   ) from None
            raise
        return session

    async def ask(self, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a message and wait for its answer.

        Returns:
            The answer's data.

        Raises:
            TimeoutError: there is none in time; a late one is dropped.
            ServerError, SandboxError.
        """
        from websockets.exceptions import ConnectionClosed

        if self.problem:
            raise SandboxError(self.problem)
        sent = False
        try:
            async with asyncio.timeout(seconds):
                while self._owed:
                    await self._socket.recv()
                    self._owed -= 1
                with contextlib.suppress(ConnectionClosed):  # why is in what can still be received
                    await self._socket.send(json.dumps(message))
                sent = True
                answer = await self._socket.recv()
        except ConnectionClosed as error:
            self._fail(error)
            raise SandboxError(self.problem) from None
        except BaseException:
            self._owed += sent
            raise
        return self._read(answer)

    async def close(self) -> None:
        """End it; any number of times, never raises."""
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._socket.close(), _CLOSE_SECONDS + 1)
        self._watching.cancel()

    def _read(self, answer: str | bytes) -> dict[str, Any]:
        try:
            value = parse_json(answer)
            kind, data = value["type"], value.get("data", {})
            if not isinstance(data, dict):
                raise TypeError
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ServerError("NO_ANSWER", "the OpenEnv server sent something that is no answer") from None
        if kind != "error":
            return data
        code, text = str(data.get("code", ""))[:100], inert(str(data.get("message", "")), 1000)
        if code in _FATAL:
            self.problem = f"the OpenEnv server {self._url} gives no session: {text} ({code})"
            raise SandboxError(self.problem)
        raise ServerError(code, text + _errors(data.get("errors")))

    async def _watch(self) -> None:
        """Watch for the end of the connection."""
        await self._socket.wait_closed()
        self._fail(None)

    def _fail(self, error: Exception | None) -> None:
        detail = f": {inert(str(error), 200)}" if error is not None else ""
        self.problem = self.problem or f"the connection to the OpenEnv server {self._url} was closed{detail}"


def websocket_url(url: str) -> str:
    """The address of a server's sessions."""
    split = urlsplit(url)
    return urlunsplit(("wss" if split.scheme == "https" else "ws", split.netloc, split.path.rstrip("/") + "/ws",
                       split.query, ""))


def http_url(url: str, path: str) -> str:
    """The address of another path of a server."""
    split = urlsplit(url)
    return urlunsplit((split.scheme, split.netloc, split.path.rstrip("/") + path, split.query, ""))


def _errors(errors: Any) -> str:
    """The invalid fields that pydantic reports."""
    if not isinstance(errors, list):
        return ""
    told = [f"`{'.'.join(map(str, error.get('loc', ())))}`: {error.get('msg', '')}" for error in errors[:5]
            if isinstance(error, dict)]
    return inert("; " + "; ".join(told), 1000) if told else ""
