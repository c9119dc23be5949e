"""A component inside a program of yours: its services in your gRPC server, the OpenAI door in your web application.

    server = grpc.aio.server(options=embed.GRPC_OPTIONS)
    your_pb2_grpc.add_YourServicer_to_server(Your(), server)
    judge = embed.Embedded("prm_judge", config)
    await judge.add_to(server)
    port = server.add_insecure_port("127.0.0.1:50053")
    await server.start()
    judge.listening(f"127.0.0.1:{port}")          # now the others find it
    ...
    await judge.stop()
    await server.stop(5)

One component in a process: its identity in the mesh is the process's. Whole examples: servers/embedding.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING

from openclaw_rl.config import Config, load_config
from openclaw_rl.launch.component import SERVERS
from openclaw_rl.rpc.hosted_server import Inside
from openclaw_rl.rpc.server import OPTIONS, ComponentServer
from openclaw_rl.runtime.home import COMPONENTS, Home

if TYPE_CHECKING:
    import grpc
    from grpc_health.v1 import health
    from starlette.types import ASGIApp, Receive, Scope, Send

#: Options for your `grpc.aio.server`: messages up to 16 MB, and the keepalive of the mesh's channels.
GRPC_OPTIONS = OPTIONS

#: Name of the component in this process.
_here: str | None = None


def _gone(task: asyncio.Task[None]) -> None:
    global _here
    _here = None


class Embedded:
    """A component in this process.

    Args:
        name: "policy_server", "env_server", "prm_judge" or "trainer".
        config: default the home's `config.yaml`, else all defaults. The component's own ports in it don't count.
        home: the mesh's folder, default OPENCLAW_RL_HOME or `~/.openclaw-rl`.

    Raises:
        ValueError: there is no such component.
        ConfigError: the home's configuration can't be used.
    """

    def __init__(self, name: str, config: Config | None = None, home: Home | None = None) -> None:
        if name not in COMPONENTS:
            raise ValueError(f"{name!r} is no component: must be one of {', '.join(COMPONENTS)}")
        self.name = name
        self.home = (home or Home.default()).create()
        self.config = config or load_config(self.home.config_file if self.home.config_file.exists() else None)
        self._server: ComponentServer | None = None
        self._task: asyncio.Task[None] | None = None
        self._door: ASGIApp | None = None

    @property
    def service_names(self) -> tuple[str, ...]:
        """Full names of its gRPC services, for `enable_server_reflection`."""
        return self._running.service_names

    async def add_to(self, server: grpc.aio.Server, health: health.aio.HealthServicer | None = None) -> None:
        """Begin to work, and add the services to a server that is not started yet. Errors of these services leave with
        their details; the server's other services are left alone.

        Args:
            server: made with GRPC_OPTIONS.
            health: the health service that the server has already; None adds one.

        Raises:
            RuntimeError: a component runs in this process already.
            ConfigError, OSError, StorageError: as the component's own process has them.
        """
        global _here
        if _here is not None:
            raise RuntimeError(f"{_here} is in this process already, whose identity in the mesh is one component's: "
                               f"run {self.name} in another process")
        attached = asyncio.get_running_loop().create_future()
        run = importlib.import_module(SERVERS[self.name]).run
        _here, self._server = self.name, None
        self._task = asyncio.create_task(
            run(self.config, self.home, Inside(server, health, attached.set_result, self._mount)), name=self.name)
        self._task.add_done_callback(_gone)
        try:
            await asyncio.wait((self._task, attached), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.stop()
            raise
        if not attached.done():
            await self._task  # raises why
        self._server = attached.result()

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """For the server's `add_secure_port`, when the mesh has certificates; None for `add_insecure_port`."""
        return self._running.server_credentials()

    def listening(self, address: str) -> None:
        """The server listens at HOST:PORT: from now on the mesh's other components find this one there."""
        self._running.listening(address)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The policy server's OpenAI door as an ASGI application: `your_app.mount("/openai", policy.app)`. Before
        `add_to`, and after `stop`, requests are answered 503."""
        if self._door is not None and self._task is not None and not self._task.done():
            await self._door(scope, receive, send)
        elif scope["type"] == "http":
            from starlette.responses import JSONResponse

            await JSONResponse({"error": {"message": f"{self.name} is not running here", "type": "server_error",
                                          "code": "not_running", "param": None}}, 503,
                               {"Retry-After": "1"})(scope, receive, send)

    async def wait(self) -> None:
        """Wait until the component ends, by `stop` or because somebody called Drain. Raises what it ended with."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def stop(self, grace: float = 30.0) -> None:
        """End the running work within `grace` seconds, and the component; call it before the server's own stop."""
        if self._server is not None:
            self._server.request_stop(grace)
        elif self._task is not None:  # it is still on its way into the server
            self._task.cancel()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def _running(self) -> ComponentServer:
        if self._server is None:
            raise RuntimeError(f"{self.name} is not in a server yet: await add_to(server) first")
        return self._server

    def _mount(self, door: ASGIApp) -> None:
        self._door = door
