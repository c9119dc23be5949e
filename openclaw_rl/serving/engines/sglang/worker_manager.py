"""The worker manager: starts, monitors, removes and recovers workers, and updates them to new versions."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from openclaw_rl.config import PolicyServerConfig
from openclaw_rl.serving.engines.interface import EngineError, Pause, WeightsError
from openclaw_rl.serving.engines.sglang import arguments, server_checks
from openclaw_rl.serving.engines.sglang.broadcast import BroadcastTransport
from openclaw_rl.serving.engines.sglang.checkpoint import Checkpoint
from openclaw_rl.serving.engines.sglang.client import CommandRefused, ConnectionLost, HttpClient
from openclaw_rl.serving.engines.sglang.process import ServerProcess, until_it_answers
from openclaw_rl.serving.engines.sglang.transports import DiskTransport, SharedMemoryTransport, Transport
from openclaw_rl.serving.engines.sglang.version import tag
from openclaw_rl.serving.engines.sglang.worker import Worker

logger = logging.getLogger(__name__)

_BACKOFF = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)  #: seconds between recovery attempts; the last one repeats
_CHECK_SECONDS = 3.0  #: between two health checks
_CHECK_TIMEOUT = 10.0  #: timeout of a health check
_RECOVERY_TIMEOUT = 30.0  #: for the first response of a recovering server
_MISSED = 3  #: consecutive failed checks of an external server
_OWN_MISSED = 6  #: and of one started here, which is then ended
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class WorkerManager:
    """Manages the workers of an engine.

    Args:
        settings: the policy server's.
        base: folder of the base model.
        context: most tokens of prompt and response together.
        state: folder for checkpoints; also identifies leftover processes.
        logs: folder for the servers' logs.
        changed: called when a worker may accept requests again.
    """

    def __init__(self, settings: PolicyServerConfig, base: Path, context: int, state: Path, logs: Path,
                 changed: Callable[[], None]) -> None:
        self._settings, self._base, self._context, self._state = settings, base, context, state
        self._logs, self._changed = logs, changed
        self.folder = state / "checkpoints"
        self.active = Checkpoint(0, base)
        self.restarts = 0
        self.workers = self._make()
        self.transport = _transport(settings)
        self._lock = asyncio.Lock()  # one update at a time
        self._recoveries: dict[int, asyncio.Task[None]] = {}  # recoveries by worker
        self._monitors: dict[int, asyncio.Task[None]] = {}
        self._old: list[Checkpoint] = []  # no longer active, perhaps still being read by a server
        self._deletions: set[asyncio.Future[None]] = set()
        self._stopping = False
        self._progress = asyncio.Event()

    async def start(self) -> None:
        """Start the workers; returns when the first one serves.

        Raises:
            EngineError: each has failed once and none serves.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        for worker in self.workers:
            self._recover(worker)
        while not any(worker.serving for worker in self.workers):
            if all(worker.failures for worker in self.workers):
                details = list(dict.fromkeys(worker.detail for worker in self.workers))
                await self.stop()
                raise EngineError("; ".join(details))
            self._progress.clear()
            await self._progress.wait()

    async def stop(self) -> None:
        """End the servers started here and disconnect from the others."""
        self._stopping = True
        tasks = [*self._recoveries.values(), *self._monitors.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(worker.process.stop() for worker in self.workers if worker.process))
        for worker in self.workers:
            worker.state, worker.detail = "out", "the engine is stopping"
            if worker.client:
                await worker.client.close()
        await asyncio.gather(*self._deletions)
        await asyncio.to_thread(shutil.rmtree, self.folder, True)

    def problems(self) -> list[str]:
        """One message for each worker that is out."""
        return [f"{worker.name} gets no requests: {worker.detail}" for worker in self.workers if worker.state == "out"]

    def report_lost(self, worker: Worker, why: str) -> None:
        """Take a worker out after a broken request, until it has recovered."""
        if worker.state == "serving" and not self._stopping:
            self._take_out(worker, why)

    def release(self, checkpoint: Checkpoint) -> None:
        """Delete a checkpoint's folder as soon as no server can be reading it."""
        if checkpoint.folder.parent == self.folder and checkpoint != self.active:
            self._old.append(checkpoint)
        needed = {self.active.folder, *(worker.reading for worker in self.workers)}
        gone = [old.folder for old in self._old if old.folder not in needed]
        self._old = [old for old in self._old if old.folder in needed]
        for folder in gone:  # off the event loop: deleting large files takes a while
            deletion = asyncio.get_running_loop().run_in_executor(None, shutil.rmtree, folder, True)
            self._deletions.add(deletion)
            deletion.add_done_callback(self._deletions.discard)

    async def activate(self, checkpoint: Checkpoint, load: Any) -> Pause:
        """Update the workers to a version; see SglangEngine.activate."""
        async with self._lock:
            workers = [worker for worker in self.workers if worker.serving]
            for worker in workers:
                worker.updating = True
            try:
                results = await asyncio.gather(*(worker.update(self.transport, load, checkpoint.version)
                                                 for worker in workers), return_exceptions=True)
                failed = {worker: result for worker, result in zip(workers, results, strict=True)
                          if isinstance(result, BaseException)}
                if workers and len(failed) == len(workers):
                    await asyncio.gather(*(self._restore(worker, error) for worker, error in failed.items()))
                    self.release(checkpoint)
                    error = next(iter(failed.values()))
                    raise WeightsError(f"version {checkpoint.version} is not active: {error}") from error
                old, self.active = self.active, checkpoint
                for worker, why in failed.items():
                    self._take_out(worker, f"it failed the update to version {checkpoint.version}: {why}")
            finally:
                for worker in workers:
                    worker.updating = False
                self._changed()
        self.release(old)
        pauses = [result for result in results if isinstance(result, Pause)]
        return Pause(max((pause.ms for pause in pauses), default=0.0),
                     max((pause.steps for pause in pauses), default=0))

    async def _restore(self, worker: Worker, error: BaseException) -> None:
        """Restore the active version on a worker after a failed update, so that its responses continue."""
        if not isinstance(error, (WeightsError, ConnectionLost, CommandRefused)):
            logger.error("The update of %s failed unexpectedly", worker.name, exc_info=error)
        try:
            if worker.broken:
                await worker.update(self.transport, await self.transport.load(self.active), self.active.version)
            else:
                await worker.resume()
        except Exception as second:
            self._take_out(worker, f"its update failed ({error}) and so did the rollback ({second})")

    def _take_out(self, worker: Worker, why: str) -> None:
        logger.error("%s is taken out: %s", worker.name, why)
        worker.state, worker.detail = "out", why
        self._progress.set()
        self._recover(worker)

    def _recover(self, worker: Worker) -> None:
        if worker.index in self._recoveries or self._stopping:
            return

        async def work() -> None:
            try:
                await self._recover_until_up(worker)
            finally:
                self._recoveries.pop(worker.index, None)
                self.release(self.active)  # deletes the older ones

        self._recoveries[worker.index] = asyncio.create_task(work())

    async def _recover_until_up(self, worker: Worker) -> None:
        while True:
            try:
                await self._try_recovery(worker)
                return
            except (EngineError, ConnectionLost, OSError) as error:
                worker.failures += 1
                worker.state, worker.detail = "out", str(error)
                logger.error("%s can't be recovered, attempt %d: %s", worker.name, worker.failures, error)
                self._progress.set()
                if worker.broken or isinstance(error, ConnectionLost):
                    await self._disconnect(worker)
            except Exception as error:
                worker.failures += 1
                worker.state, worker.detail = "out", f"{type(error).__name__}: {error}"
                logger.exception("%s can't be recovered", worker.name)
                self._progress.set()
            await asyncio.sleep(_BACKOFF[min(worker.failures, len(_BACKOFF)) - 1])

    async def _disconnect(self, worker: Worker) -> None:
        """End the responses of a worker that is paused for good or hangs; they continue elsewhere.

        The next attempt restarts a process that was started here.
        """
        if worker.process:
            with suppress(KeyError):
                self._monitors.pop(worker.index).cancel()
            await worker.process.stop()
        elif isinstance(worker.client, HttpClient):
            await worker.client.close()
            worker.client = HttpClient(worker.client.address, worker.client.key)

    async def _try_recovery(self, worker: Worker) -> None:
        """Attempt a recovery: a server that responds and has the active version accepts requests again."""
        if worker.process:
            if worker.process.pid is None:
                await self._start(worker, worker.process)
        elif worker.client is None:
            await self._start_in_process(worker)
        assert worker.client
        info = await worker.client.command("/model_info", None, _RECOVERY_TIMEOUT)
        if worker.process is None and not worker.broken and worker.version < 0:
            await worker.resume()  # a policy server killed during an update leaves it paused
            await server_checks.check_server(worker.client, info, self._base, self._context,
                                     self._settings.sglang.tensor_parallel)
        async with self._lock:
            active = self.active
            if worker.process and worker.version < 0 and info.get("weight_version") == tag(active.version):
                worker.version = active.version  # it was started with this version
            elif worker.broken or worker.version != active.version or info.get("weight_version") != tag(active.version):
                await worker.update(self.transport, await self.transport.load(active), active.version)
            else:
                await worker.resume()
            worker.state, worker.detail, worker.failures = "serving", "", 0
        self._monitor(worker)
        logger.info("%s serves version %d", worker.name, worker.version)
        self._progress.set()
        self._changed()

    async def _start(self, worker: Worker, process: ServerProcess) -> None:
        if worker.client:
            self.restarts += 1
            await worker.client.close()
        worker.state, worker.detail = ("out", worker.detail) if worker.client else ("starting", "it is being started")
        worker.version, worker.broken = -1, False
        active = self.active
        worker.reading = active.folder
        process.command = arguments.command_line(
            arguments.engine_arguments(self._settings, active.folder, active.version, self._context))
        try:
            await process.start()
            client = worker.client = HttpClient(process.address, process.key)

            async def ask() -> None:
                await client.command("/health", None, 5)

            await until_it_answers(process, self._settings.sglang.start_timeout, ask)
        except BaseException:
            await process.stop()
            raise
        finally:
            worker.reading = None

    async def _start_in_process(self, worker: Worker) -> None:
        from openclaw_rl.serving.engines.sglang.in_process import InProcessClient

        values = arguments.engine_arguments(self._settings, self.active.folder, self.active.version, self._context)
        worker.client = await InProcessClient.start(values, arguments.environment(self._settings.device,
                                                                           self._settings.threads))

    def _monitor(self, worker: Worker) -> None:
        """Monitor a worker: detect its death, a hang, or a foreign change of its version."""
        async def monitor() -> None:
            process = worker.process
            ended = asyncio.ensure_future(process.ended()) if process else asyncio.get_running_loop().create_future()
            missed, why = 0, ""
            try:
                while missed < (_OWN_MISSED if process else _MISSED):
                    await asyncio.wait({ended}, timeout=_CHECK_SECONDS)
                    if process and ended.done():
                        why = f"its process is gone: {ended.result()}; {process.last_error()}"
                        self._take_out(worker, why.rstrip("; "))
                        return
                    if not worker.accepting:
                        missed = 0
                        continue
                    assert worker.client
                    try:
                        info = await worker.client.command("/model_info", None, _CHECK_TIMEOUT)
                    except (ConnectionLost, CommandRefused) as error:
                        missed, why = missed + worker.accepting, str(error)
                        continue
                    missed = 0
                    if worker.accepting and info.get("weight_version") != tag(worker.version):
                        self._take_out(worker, f"it serves {info.get('weight_version')!r} where it should serve "
                                          f"{worker.version}: it was restarted, or somebody else updates it")
                        return
            finally:
                ended.cancel()
            self._take_out(worker, f"it does not answer: {why}")

        with suppress(KeyError):
            self._monitors.pop(worker.index).cancel()
        self._monitors[worker.index] = asyncio.create_task(monitor())

    def _make(self) -> list[Worker]:
        settings = self._settings
        if settings.sglang.addresses:
            key = os.environ.get(settings.sglang.api_key_env or "", "")
            return [Worker(i, HttpClient(address, key))
                    for i, address in enumerate(settings.sglang.addresses)]
        if settings.sglang.mode == "in_process":
            return [Worker(0, None)]
        environment = arguments.environment(settings.device, settings.threads)
        return [Worker(i, None, ServerProcess([], environment | arguments.gpus(settings, i), self._state,
                                              self._logs / f"sglang-{i}.log")) for i in range(settings.workers)]


def _transport(settings: PolicyServerConfig) -> Transport:
    """The transport that `sglang.update` names; `auto`: tensors for servers on this machine, otherwise disk."""
    name, ranks = settings.sglang.update, settings.sglang.tensor_parallel
    hosts = {urlsplit(address).hostname for address in settings.sglang.addresses}
    local = hosts <= set(_LOOPBACK)
    if name == "disk" or (name == "auto" and not local):
        return DiskTransport()
    if name == "distributed":
        host = "127.0.0.1" if local else server_checks.address_towards(next(iter(hosts)) or "")
        return BroadcastTransport(ranks, host)
    return SharedMemoryTransport(ranks)
