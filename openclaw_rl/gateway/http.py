"""The HTTP server of a component: one that binds first, and leaves signals to its owner."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp


class HttpServer:
    """An ASGI app on a port."""

    def __init__(self, host: str, port: int) -> None:
        """Bind. Args: port: 0 means any free one.

        Raises:
            OSError: it can't listen there; the text names the address and says what to do.
        """
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM,
                                                             flags=socket.AI_PASSIVE)[0]
            self._socket = socket.socket(family, kind)
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self._socket.bind(address)
                self._socket.listen(2048)  # here, so that a port in use shows now
            except OSError:
                self._socket.close()
                raise
        except OSError as error:
            advice = "the port is in use. Stop what uses it, or configure another port (0 means any free one)" \
                if error.errno == errno.EADDRINUSE else f"{error.strerror}. Check the configured host and port"
            raise OSError(error.errno, f"policy_server can't listen on {where} (HTTP): {advice}") from None
        bound = self._socket.getsockname()[1]
        shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # a wildcard is no address to connect to
        self.address = f"http://[{shown}]:{bound}" if ":" in shown else f"http://{shown}:{bound}"
        self._server: _Uvicorn | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, app: ASGIApp) -> None:
        """Serve, on the running event loop."""
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", server_header=False,
                                timeout_keep_alive=75, timeout_graceful_shutdown=2)
        self._server = _Uvicorn(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    async def stop(self) -> None:
        """Stop serving; responses that still run are cancelled."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await asyncio.wait((self._task,))
        with contextlib.suppress(OSError):
            self._socket.close()


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the component's own handlers stay


