"""What the dashboard hears of the mesh: one connection to each component, however many pages look."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

from ..config import ConfigError
from ..home import COMPONENTS
from ..mesh.errors import MeshError
from ..v1 import component_pb2 as pb
from .history import History
from .mesh import MeshData


class Collector:
    def __init__(self, mesh: MeshData, history: History, interval: float) -> None:
        self._mesh, self._history, self._interval = mesh, history, interval

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for name in COMPONENTS:
                group.create_task(self._watch(name))

    async def _watch(self, name: str) -> None:
        pause = 0.5
        request = pb.WatchStatsRequest()
        request.interval.FromMilliseconds(int(self._interval * 1000))
        while True:
            absent = False
            try:
                try:
                    address = self._mesh.address(name)
                except MeshError as error:
                    absent, problem = True, error.message
                else:
                    client = self._mesh.component(name)
                    stream = client.watch_stats(request)
                    async with contextlib.aclosing(stream):
                        while True:
                            async with asyncio.timeout(self._interval + 10):
                                answer = await anext(stream)
                            self._mesh.answered(name, answer.status, address)
                            pause = 0.5
            except StopAsyncIteration:
                problem = "the stream ended"
            except TimeoutError:
                problem = f"said nothing for {self._interval + 10:.0f} s"
            except MeshError as error:
                problem = error.message
            except ConfigError as error:
                problem = str(error)
            self._mesh.silent(name, problem, absent)
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(5.0, pause * 1.6)
            _ = time
