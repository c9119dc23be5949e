"""Follow the components' status streams and events: one connection to each, however many read the result."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from openclaw_rl.config import ConfigError
from openclaw_rl.monitoring.figures import Rates, figures
from openclaw_rl.monitoring.history import History
from openclaw_rl.monitoring.mesh import MeshData
from openclaw_rl.monitoring.series import Figures
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.rpc.reconnect import ReconnectingStream, TryAgain
from openclaw_rl.runtime.home import COMPONENTS
from openclaw_rl.v1 import component_pb2 as pb
from openclaw_rl.v1 import environment_pb2, trainer_pb2

logger = logging.getLogger(__name__)

#: Seconds beyond the interval after which a component that says nothing is down.
_SILENCE = 5.0
#: Seconds between two looks at the environments.
_LOOK = 2.0


class Collector:
    """Follows the components' streams and adds to the history.

    Args:
        interval: seconds between two rows of figures.
        environments: look at the environments' own state too, for who shows it.
        training: follow the trainer's events too.
    """

    def __init__(self, mesh: MeshData, history: History, interval: float, *, environments: bool = True,
                 training: bool = True) -> None:
        self._mesh, self._history, self._interval = mesh, history, interval
        self._follow_environments, self._follow_training = environments, training
        self._rates = Rates()
        self._live = {name: asyncio.Event() for name in COMPONENTS}  # set while it answers
        self._began = time.time()
        self.latest: Figures = history.series.latest()  #: the newest figures by name; see figures.py
        self.ticks = 0  #: how many there were; changes with them
        self.environments: list[environment_pb2.EnvironmentInfo] = []
        self.environments_problem = ""  #: why they are unavailable, for display

    async def run(self) -> None:
        """Collect until cancelled."""
        try:
            self._rates.seed(self._history.series)
        except Exception:  # the first minute's counts are missing, and no more
            logger.exception("cannot use earlier figures")
        async with asyncio.TaskGroup() as group:
            for name in COMPONENTS:
                group.create_task(self._follow(name))
            if self._follow_training:
                group.create_task(self._follow_live("trainer", self._training))
            if self._follow_environments:
                group.create_task(self._follow_live("env_server", self._environments))
            group.create_task(self._take_regularly())

    async def _take_regularly(self) -> None:
        """Take the figures of all components at each interval."""
        due = time.monotonic()
        while True:
            try:
                self.take(time.time())
            except Exception:  # one figure that can't be made must not end them all
                logger.exception("cannot record figures")
            due = max(due + self._interval, time.monotonic() - self._interval)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    def take(self, now: float) -> None:
        """Add the current figures to the history."""
        self.latest = figures(self._mesh, self._rates)
        self._history.add(self.latest, now)
        self.ticks += 1

    # -- streams

    async def _follow(self, name: str) -> None:
        """Follow a component's status, forever."""
        async def one_stream() -> None:
            absent = True
            try:
                self._mesh.address(name)
                absent = False
                await self._stats(name, stream)
            except Exception as error:
                self._live[name].clear()
                self._changed(name, self._mesh.silent(name, _problem(error), absent))
                if isinstance(error, ConfigError):
                    raise TryAgain(str(error)) from error
                raise

        stream = ReconnectingStream(f"figures of {name}", one_stream, level=logging.DEBUG)
        await stream.run()

    async def _follow_live(self, name: str, read: Callable[[], Awaitable[None]]) -> None:
        """Follow what is only asked of a component that answers, and isn't the measure of whether it does."""
        async def one_stream() -> None:
            await self._live[name].wait()
            stream.answered()
            try:
                await read()
            except ConfigError as error:
                raise TryAgain(str(error)) from error
            raise TryAgain("it ended the stream")

        stream = ReconnectingStream(f"events of {name}", one_stream, level=logging.DEBUG)
        await stream.run()

    async def _stats(self, name: str, stream: ReconnectingStream) -> None:
        request = pb.WatchStatsRequest()
        request.interval.FromMilliseconds(max(100, round(self._interval * 1000)))
        client = self._mesh.component(name)
        async with contextlib.aclosing(_closing(client.watch_stats(request))) as answers:
            while True:
                try:
                    async with asyncio.timeout(self._interval + _SILENCE):
                        answer = await anext(answers)
                except TimeoutError:
                    raise TryAgain(f"it said nothing for {self._interval + _SILENCE:.0f} s") from None
                except StopAsyncIteration:
                    raise TryAgain("it ended the stream") from None
                stream.answered()
                self._live[name].set()
                self._changed(name, self._mesh.answered(name, answer.status, client.address))

    def _changed(self, name: str, before: str) -> None:
        seen = self._mesh.status(name)
        if seen.state == before or (before == "ABSENT" and not (seen.live and seen.since >= self._began)):
            return  # also when it ran before anybody looked
        status = seen.status
        text = seen.problem if not seen.live else status.detail if status is not None else ""
        self._history.event("state", name, text, before=before, state=seen.state)

    async def _training(self) -> None:
        async with contextlib.aclosing(_closing(self._mesh.trainer().watch_training())) as stream:
            async for event in stream:
                kind = trainer_pb2.TrainingEventKind.Name(event.kind).removeprefix("TRAINING_EVENT_KIND_").lower()
                version = {"version": event.version} if event.HasField("version") else {}
                self._history.event(kind, "trainer", event.message, at=event.at.ToNanoseconds() / 1e9 or None,
                                    turns=len(event.turn_ids), **version)

    async def _environments(self) -> None:
        try:
            while self._mesh.status("env_server").live:
                answer = await self._mesh.environment().list_environments(timeout=10)
                self.environments, self.environments_problem = list(answer.environments), ""
                await asyncio.sleep(_LOOK)
        except MeshError as error:
            self.environments_problem = error.message
            raise
        finally:
            self.environments = [] if not self._mesh.status("env_server").live else self.environments


def _problem(error: Exception) -> str:
    """Return why a component cannot be followed, for display."""
    return str(error) if isinstance(error, MeshError | ConfigError | TryAgain) else f"{type(error).__name__}: {error}"


async def _closing(stream: AsyncIterator[Any]) -> Any:
    """Wrap a stream so that closing the generator ends the call."""
    try:
        async for item in stream:
            yield item
    finally:
        if hasattr(stream, "aclose"):
            await stream.aclose()
