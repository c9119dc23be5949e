"""A TCP proxy before each component, which can cut, slow down and refuse what goes through it.

All proxies share one event loop on one thread; their methods may be called from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable

_PIECE = 64 * 1024  # bytes


class Proxy:
    """One port of ours, behind which the target is asked for anew with each connection.

    Args:
        target: HOST:PORT of the component now; None while there is none.

    Attributes:
        port: where it listens.
        forward: bytes that went to the target so far.
        cuts: connections that were cut.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, target: Callable[[], str | None]) -> None:
        self.port = 0
        self.forward = 0
        self.cuts = 0
        self._loop, self._target = loop, target
        self._open: set[asyncio.StreamWriter] = set()
        self._refuse_until = 0.0
        self._rate: float | None = None  # bytes per second, each way
        self._slow_until = 0.0
        self._cut_every: int | None = None  # bytes to the target
        self._cuts_left = 0
        self._since_cut = 0

    async def start(self) -> None:
        """Listen on a free port of this machine."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Take no more connections; for the loop's thread."""
        self._server.close()

    def cut(self) -> None:
        """Cut all connections now."""
        self._loop.call_soon_threadsafe(self._cut)

    def cut_every(self, size: int, times: int) -> None:
        """Cut all connections each time that so many more bytes have gone to the target, so many times."""
        self._since_cut, self._cuts_left, self._cut_every = 0, times, size

    @property
    def cuts_left(self) -> int:
        """Cuts of `cut_every` that are still to come."""
        return self._cuts_left

    def slow(self, rate: float, seconds: float) -> None:
        """Let at most `rate` bytes per second through for a while, each way of each connection."""
        self._rate, self._slow_until = rate, time.monotonic() + seconds

    def refuse(self, seconds: float) -> None:
        """Cut all connections and take none for a while."""
        self._refuse_until = time.monotonic() + seconds
        self.cut()

    def heal(self) -> None:
        """From now on let everything through."""
        self._refuse_until = self._slow_until = 0.0
        self._cuts_left, self._cut_every = 0, None

    def _cut(self) -> None:
        for writer in list(self._open):
            self.cuts += 1
            with contextlib.suppress(Exception):
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = self._target()
        if time.monotonic() < self._refuse_until or target is None:
            writer.transport.abort()
            return
        host, _, port = target.rpartition(":")
        try:
            there_reader, there_writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, there_writer}
        self._open |= pair
        try:
            both = [asyncio.ensure_future(self._pump(reader, there_writer, True)),
                    asyncio.ensure_future(self._pump(there_reader, writer, False))]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        finally:
            self._open -= pair
            for end in pair:
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, forward: bool) -> None:
        while data := await reader.read(_PIECE):
            if forward:
                self.forward += len(data)
                self._since_cut += len(data)
                if self._cut_every and self._cuts_left and self._since_cut >= self._cut_every:
                    self._since_cut = 0
                    self._cuts_left -= 1
                    self._cut()
                    return
            if self._rate and time.monotonic() < self._slow_until:
                await asyncio.sleep(min(len(data) / self._rate, max(0.0, self._slow_until - time.monotonic())))
            writer.write(data)
            await writer.drain()


class Proxies:
    """A thread with a proxy for each name."""

    def __init__(self, targets: dict[str, Callable[[], str | None]]) -> None:
        self._loop = asyncio.new_event_loop()
        self.by_name = {name: Proxy(self._loop, target) for name, target in targets.items()}
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()
        for proxy in self.by_name.values():
            asyncio.run_coroutine_threadsafe(proxy.start(), self._loop).result(10)

    def __getitem__(self, name: str) -> Proxy:
        return self.by_name[name]

    def heal(self) -> None:
        """Let everything through everywhere."""
        for proxy in self.by_name.values():
            proxy.heal()

    def close(self) -> None:
        """End the thread; connections break."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for proxy in self.by_name.values():
            proxy.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
