"""One run of a component: its lock, its runtime, its gRPC server, from the start to the end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os

from openclaw_rl.config import Config, ConfigError
from openclaw_rl.observability import telemetry
from openclaw_rl.observability.metrics import observe_loop
from openclaw_rl.rpc import membership
from openclaw_rl.rpc.auth import tls
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.rpc.hosted_server import HostServer
from openclaw_rl.rpc.server import ComponentServer
from openclaw_rl.runtime import notify, redact
from openclaw_rl.runtime.component import Component
from openclaw_rl.runtime.failpoint import failpoint
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.lock import only_process
from openclaw_rl.runtime.runtime import Runtime, activated

logger = logging.getLogger(__name__)


class ComponentRun:
    """A component that runs until it is stopped.

    Args:
        component_class: what runs.
        config: of the mesh.
        home: of the mesh.
        host: the server of another program, which the services are added to; None listens on a port of its own.
        process: the process is this component's alone: it takes the signals, and code on any thread has its identity.
        telemetry: set up and shut down with it.

    Attributes:
        component: once it is made.
        server: once it listens, or is part of `host`'s server.
        listening: `server` is there.
        is_ready: the component can work.
    """

    def __init__(self, component_class: type[Component], config: Config, home: Home, *,
                 host: HostServer | None = None, process: bool = False, telemetry: bool = False) -> None:
        self.component: Component | None = None
        self.server: ComponentServer | None = None
        self.listening, self.is_ready = asyncio.Event(), asyncio.Event()
        self._class, self._config, self._home = component_class, config, home
        self._host, self._process, self._telemetry = host, process, telemetry

    async def run(self) -> None:
        """Serve until stopped.

        Raises:
            ConfigError, OSError, StorageError: the component can't run; the text says what to do.
        """
        name = self._class.name
        if self._process:
            os.umask(0o077)  # conversations are nobody else's
        with only_process(self._home, name):
            credentials = tls.credentials(self._config, self._home, name)
            trust_domain = credentials.identity.mesh if credentials is not None else ""
            runtime = Runtime(name=name, config=self._config, home=self._home, identified=True,
                              redactor=redact.of_component(self._config), credentials=credentials,
                              membership=membership.of_component(self._config, self._home, name, trust_domain),
                              give_up=_give_up if self._process else None)
            with activated(runtime, process=self._process):
                if self._telemetry:
                    await asyncio.to_thread(telemetry.setup, name, self._config.telemetry, self._home)
                    runtime.resources.push_async_callback(asyncio.to_thread, telemetry.shutdown)
                async with runtime.resources:
                    try:
                        await self._serve(runtime)
                    except Exception as error:
                        if self._process:  # before what is open is closed
                            notify.failed(reason(name, error))
                        raise

    async def _serve(self, runtime: Runtime) -> None:
        component = self.component = await self._make(runtime)
        failpoint("start.made")
        host, port = component.listener
        server = ComponentServer(component.name, host, port, runtime.home, component.status, component.drain,
                                 self._host, signals=self._process, loop_monitor=runtime.loop_monitor,
                                 status_blocks=component.status_blocks)
        server.http_address, server.on_forget = component.http_address, component.forget
        for service in component.services():
            server.add(*service)
        if not component.serves_at_once:
            server.set_serving(False)
        await server.start()
        serving = asyncio.create_task(server.run_until_stopped(), name=f"{component.name} server")
        runtime.resources.push_async_callback(ended, serving)
        self.server = server
        self.listening.set()
        await component.start()
        if self._host is not None and self._host.mount is not None and component.application is not None:
            self._host.mount(component.application)
        getting_ready = asyncio.create_task(self._get_ready(runtime, component, server), name=f"{component.name} start")
        runtime.resources.push_async_callback(ended, getting_ready)
        await asyncio.wait((serving, getting_ready), return_when=asyncio.FIRST_COMPLETED)
        if getting_ready.done():
            getting_ready.result()
        await serving

    async def _make(self, runtime: Runtime) -> Component:
        """Make the component on a thread: it opens and checks files, which takes seconds of large ones. What it opened
        has to be closed, so a stop waits for its end."""
        making = asyncio.ensure_future(asyncio.to_thread(self._class, runtime, mounted=self._host is not None))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            await asyncio.wait((making,))
            raise

    async def _get_ready(self, runtime: Runtime, component: Component, server: ComponentServer) -> None:
        await component.ready()
        if self._process:
            # What is there now stays. Left among what the collector looks through, it holds the interpreter for 100 ms
            # each time: half a million objects of the imported packages.
            gc.collect()
            gc.freeze()
        if not component.serves_at_once:
            await server.set_serving(True)
        # Not before: loading a model and importing its packages hold the loop now and then.
        observe_loop(runtime.loop_monitor)
        runtime.loop_monitor.start()
        runtime.resources.callback(runtime.loop_monitor.stop)
        self.is_ready.set()
        failpoint("start.ready")


def reason(name: str, error: Exception) -> str:
    """Why a component can't run, for people."""
    if isinstance(error, OSError) and error.strerror:
        return redact.text(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)
    if isinstance(error, (MeshError, OSError, ConfigError)):
        return redact.text(str(error))
    # A fault of ours or of a library: its traceback is in the log.
    text = redact.text(" ".join(str(error).split()))[:300]
    return f"unexpected {type(error).__name__}: {text}; see `openclaw-rl logs {name}`"


def _give_up(reason: str) -> None:
    """End the process as by `kill -9`, which loses nothing, and tell the supervisor why; it starts a new one.

    Nothing is closed: that would copy damaged pages of a write-ahead log, which a new start recognizes, to the file.
    """
    text = redact.text(reason)
    logger.critical("ending, to be started again: %s", text)
    notify.failed(text)
    logging.shutdown()
    os._exit(1)


async def ended(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def until_set(event: asyncio.Event, task: asyncio.Task[None]) -> None:
    """Wait for an event of a run whose task may end before; raises what it ended with.

    Raises:
        RuntimeError: it ended well, without the event.
    """
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not event.is_set():
            await task
            raise RuntimeError(f"{task.get_name()} was stopped while it started")
    finally:
        waiting.cancel()
