"""The HTTP server of the policy server: binds when it is made, and leaves signals to its owner."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import socket
import ssl
import time
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from openclaw_rl.serving.entrypoints.openai.connection import ClientTimeouts, Connection
from openclaw_rl.serving.entrypoints.openai.listener import Listener

_CHECK_SECONDS = 0.25


class HttpServer:
    """An ASGI app on a port."""

    def __init__(self, host: str, port: int, tls: Callable[[], ssl.SSLContext] | None = None, connections: int = 256,
                 timeouts: ClientTimeouts | None = None) -> None:
        """Bind.

        Args:
            port: 0 means any free one.
            tls: returns the context for the next connection; None for plain HTTP.
            connections: open connections of one address, at most.
            timeouts: for clients.

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
        shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # nobody can connect to a wildcard
        scheme = "http" if tls is None else "https"
        self.address = f"{scheme}://[{shown}]:{bound}" if ":" in shown else f"{scheme}://{shown}:{bound}"
        self._tls, self._connections, self._timeouts = tls, connections, timeouts or ClientTimeouts()
        self._server: _Uvicorn | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, app: ASGIApp, refused: Callable[[str], None] = lambda _why: None,
              unlimited: Callable[[str], bool] = lambda _address: False) -> None:
        """Serve, on the running event loop.

        Args:
            refused: called for each connection that is refused or ended, with a reason for the metrics.
            unlimited: whether an address may have any number of connections.
        """
        config = uvicorn.Config(app, http=Connection, ws="none", log_config=None, access_log=False, lifespan="off",
                                server_header=False, timeout_keep_alive=self._timeouts.idle,
                                timeout_graceful_shutdown=2)
        listen = functools.partial(Listener, tls=self._tls, per_address=self._connections, timeouts=self._timeouts,
                                   refused=refused, unlimited=unlimited)
        self._server = server = _Uvicorn(config, listen, self._timeouts, refused)
        self._tasks = [asyncio.create_task(server.serve(sockets=[self._socket])),
                       asyncio.create_task(self._check_timeouts(server))]

    async def stop(self) -> None:
        """Stop serving; running responses are cancelled."""
        if self._server is not None:
            self._server.should_exit = True
            await asyncio.wait(self._tasks[:1])
            self._tasks[1].cancel()
        with contextlib.suppress(OSError):
            self._socket.close()

    async def _check_timeouts(self, server: _Uvicorn) -> None:
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            now = time.monotonic()
            for connection in list(server.server_state.connections):
                if isinstance(connection, Connection):
                    connection.check_timeouts(now)


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, listen: Callable[..., Listener], timeouts: ClientTimeouts,
                 refused: Callable[[str], None]) -> None:
        super().__init__(config)
        self._listen, self._timeouts, self._refused = listen, timeouts, refused

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen with `Listener` in place of asyncio's server."""
        await self.lifespan.startup()

        def make() -> Connection:
            connection = Connection(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
            connection.timeouts, connection.on_refused = self._timeouts, self._refused
            return connection

        self.servers = [self._listen(listening, make) for listening in sockets or ()]  # type: ignore[misc]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the component has its own handlers


