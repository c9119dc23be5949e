"""All components of a mesh in one program, on its event loop.

    async with InProcessMesh(home=Home(folder)) as mesh:
        reply = await client.post(f"{mesh.http_address}/v1/chat/completions", json=...)

Each component has its own ports, identity, telemetry and folder, and finds the others as on several machines; what is
missing is the isolation: a fault in one may end them all, and they share the interpreter's lock. For tests, notebooks
and small deployments. A whole example: servers/embedding/mesh_in_one_program.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType

from openclaw_rl.config import Config, load_config
from openclaw_rl.launch.component import component_class
from openclaw_rl.rpc.component_run import ComponentRun, until_set
from openclaw_rl.runtime.component import Component
from openclaw_rl.runtime.home import COMPONENTS, Home, RunRecord, read_record


class InProcessMesh:
    """The components of a mesh in this process.

    Args:
        config: default the home's `config.yaml`, else all defaults. Those with an `address` run elsewhere.
        home: the mesh's folder, default OPENCLAW_RL_HOME or `~/.openclaw-rl`.
        names: the components to run.
        any_ports: listen on free ports in place of the configured ones.

    Raises:
        ConfigError: the home's configuration can't be used.
    """

    def __init__(self, config: Config | None = None, home: Home | None = None, names: Sequence[str] = COMPONENTS, *,
                 any_ports: bool = False) -> None:
        self.home = (home or Home.default()).create()
        config = config or load_config(self.home.config_file if self.home.config_file.exists() else None)
        self.config = with_any_ports(config) if any_ports else config
        self.names = [name for name in names if _runs_here(self.config, name)]
        self._runs: dict[str, ComponentRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> InProcessMesh:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.stop()

    @property
    def http_address(self) -> str:
        """http(s)://HOST:PORT of the policy server's OpenAI API."""
        return self.record("policy_server").http_address

    def record(self, name: str) -> RunRecord:
        """The addresses of a component.

        Raises:
            RuntimeError: it doesn't run.
        """
        record = read_record(self.home, name)
        if record is None:
            raise RuntimeError(f"{name} is not running in {self.home.root}")
        return record

    def component(self, name: str) -> Component:
        """A component that runs.

        Raises:
            KeyError: it was not started.
        """
        component = self._runs[name].component
        if component is None:
            raise KeyError(name)
        return component

    async def start(self) -> None:
        """Start the components, and return when all can work.

        Raises:
            ConfigError, OSError, StorageError: one can't; none is left running.
        """
        try:
            # From the ring's end to its begin, so that each one finds where to send.
            for name in reversed(self.names):
                await self.start_component(name)
            for name in self.names:
                await until_set(self._runs[name].is_ready, self._tasks[name])
        except BaseException:
            await self.stop(grace=1)
            raise

    async def start_component(self, name: str) -> None:
        """Start one component (again), and return when it listens.

        Raises:
            RuntimeError: it runs.
            ConfigError, OSError, StorageError: it can't.
        """
        if name in self._tasks and not self._tasks[name].done():
            raise RuntimeError(f"{name} runs already")
        run = self._runs[name] = ComponentRun(component_class(name), self.config, self.home, telemetry=True)
        self._tasks[name] = asyncio.create_task(run.run(), name=name)
        await until_set(run.listening, self._tasks[name])

    async def stop_component(self, name: str, grace: float = 30.0) -> None:
        """End one component: its running work within `grace` seconds."""
        run, task = self._runs[name], self._tasks[name]
        if run.server is not None:
            run.server.request_stop(grace)
        else:
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def wait(self) -> None:
        """Wait until a component ends; raises what it ended with."""
        done, _ = await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self, grace: float = 30.0) -> None:
        """End all components, the first of the ring first, so that what was begun is handed on."""
        for name in self.names:
            if name in self._tasks:
                await self.stop_component(name, grace)


def with_any_ports(config: Config) -> Config:
    """The configuration with a free port in place of each one that is configured."""
    components = {}
    for name in COMPONENTS:
        section = getattr(config.components, name)
        ports = [field for field in ("port", "grpc_port") if field in type(section).model_fields]
        components[name] = section.model_copy(update=dict.fromkeys(ports, 0))
    return config.model_copy(update={"components": config.components.model_copy(update=components)})


def _runs_here(config: Config, name: str) -> bool:
    section = getattr(config.components, name)
    return bool(section.enabled and not section.address)
