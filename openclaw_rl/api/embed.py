"""Run a component in your own program: its services in your gRPC server, the OpenAI API in your web application.

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

Several components may share a process, each with a server of its own. Whole examples: servers/embedding; all four at
once: `openclaw_rl.api.in_process`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from openclaw_rl.config import Config, load_config
from openclaw_rl.launch.component import component_class
from openclaw_rl.rpc.component_run import ComponentRun, until_set
from openclaw_rl.rpc.hosted_server import HostServer
from openclaw_rl.rpc.reflection import add_reflection
from openclaw_rl.rpc.server import OPTIONS, ComponentServer
from openclaw_rl.runtime.home import COMPONENTS, Home

if TYPE_CHECKING:
    import grpc
    from grpc_health.v1 import health
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["GRPC_OPTIONS", "Embedded", "add_reflection"]

#: Options for your `grpc.aio.server`: messages up to 16 MB, and the keepalive of the mesh's channels.
GRPC_OPTIONS = OPTIONS


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
        self._run: ComponentRun | None = None
        self._task: asyncio.Task[None] | None = None
        self._app: ASGIApp | None = None

    @property
    def service_names(self) -> tuple[str, ...]:
        """Full names of its gRPC services, for `add_reflection`."""
        return self._running.service_names

    async def add_to(self, server: grpc.aio.Server, health: health.aio.HealthServicer | None = None) -> None:
        """Begin to work, and add the services to a server that is not started yet. Errors of these services leave with
        their details; the server's other services are left alone.

        Args:
            server: made with GRPC_OPTIONS.
            health: the health service that the server has already; None adds one.

        Raises:
            RuntimeError: it runs already, or the server has a component, whose ComponentService it answers.
            ConfigError, OSError, StorageError: as the component's own process has them.
        """
        if self._task is not None and not self._task.done():
            raise RuntimeError(f"{self.name} runs already")
        self._run = run = ComponentRun(component_class(self.name), self.config, self.home,
                                       host=HostServer(server, health, self._mount))
        self._task = asyncio.create_task(run.run(), name=self.name)
        try:
            await until_set(run.listening, self._task)
        except asyncio.CancelledError:
            await self.stop()
            raise

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """For the server's `add_secure_port`, when the mesh has certificates; None for `add_insecure_port`."""
        return self._running.server_credentials()

    def listening(self, address: str) -> None:
        """The server listens at HOST:PORT: from now on the mesh's other components find this one there."""
        self._running.listening(address)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The policy server's OpenAI API as an ASGI application: `your_app.mount("/openai", policy.app)`. Before
        `add_to`, and after `stop`, requests are answered 503."""
        if self._app is not None and self._task is not None and not self._task.done():
            await self._app(scope, receive, send)
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
        if self._run is not None and self._run.server is not None:
            self._run.server.request_stop(grace)
        elif self._task is not None:  # it is still on its way into the server
            self._task.cancel()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def _running(self) -> ComponentServer:
        if self._run is None or self._run.server is None:
            raise RuntimeError(f"{self.name} is not in a server yet: await add_to(server) first")
        return self._run.server

    def _mount(self, app: ASGIApp) -> None:
        self._app = app
