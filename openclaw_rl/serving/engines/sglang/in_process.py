"""SGLang in this process: its `Engine` on its own thread and event loop.

SGLang's scheduler and detokenizer are still processes; only HTTP is saved. Its manager needs its own event loop:
starting it blocks for a minute, and on the main thread it takes over SIGTERM and SIGQUIT. On another thread it leaves
signals alone, so the death of its scheduler ends this process by SIGQUIT, and the supervisor restarts it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from openclaw_rl.serving.engines.interface import EngineError
from openclaw_rl.serving.engines.sglang.client import COMMAND_SECONDS, Body, CommandRefused, ConnectionLost

_T = TypeVar("_T")
#: Path of the HTTP interface -> (method of SGLang's manager, name of its argument's class).
_COMMANDS = {
    "/pause_generation": ("pause_generation", "PauseGenerationReqInput"),
    "/continue_generation": ("continue_generation", "ContinueGenerationReqInput"),
    "/update_weights_from_disk": ("update_weights_from_disk", "UpdateWeightFromDiskReqInput"),
    "/begin_weight_update": ("begin_weight_update", "BeginWeightUpdateReqInput"),
    "/end_weight_update": ("end_weight_update", "EndWeightUpdateReqInput"),
    "/update_weights_from_tensor": ("update_weights_from_tensor", "UpdateWeightsFromTensorReqInput"),
    "/init_weights_update_group": ("init_weights_update_group", "InitWeightsUpdateGroupReqInput"),
    "/destroy_weights_update_group": ("destroy_weights_update_group", "DestroyWeightsUpdateGroupReqInput"),
    "/update_weights_from_distributed": ("update_weights_from_distributed", "UpdateWeightsFromDistributedReqInput"),
    "/update_weight_version": ("update_weight_version", "UpdateWeightVersionReqInput"),
}


class InProcessClient:
    """An EngineClient for SGLang in this process; see `start`."""

    address = ""

    def __init__(self, engine: Any, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        self._engine, self._loop, self._thread = engine, loop, thread

    @classmethod
    async def start(cls, values: dict[str, object], environment: dict[str, str]) -> InProcessClient:
        """Start SGLang with these settings; takes about a minute.

        Args:
            values: as its command line names them.
            environment: variables for its processes, which this one inherits too.

        Raises:
            EngineError: it can't start.
        """
        started: asyncio.Future[InProcessClient] = asyncio.get_running_loop().create_future()
        ours = asyncio.get_running_loop()
        os.environ.update(environment)

        def run() -> None:
            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
            try:
                import sglang

                engine = sglang.Engine(**{name.replace("-", "_"): value for name, value in values.items()})
            except BaseException as error:
                ours.call_soon_threadsafe(_fail, started, EngineError(f"SGLang can't start: {error}"))
                return
            client = cls(engine, loop, threading.current_thread())
            ours.call_soon_threadsafe(started.set_result, client)
            loop.run_forever()

        threading.Thread(target=run, name="sglang", daemon=True).start()
        return await started

    async def generate(self, body: Body) -> AsyncIterator[dict[str, Any]]:
        items: asyncio.Queue[Any] = asyncio.Queue()
        ours = asyncio.get_running_loop()

        async def work() -> None:
            from sglang.srt.managers.io_struct import GenerateReqInput

            put: Callable[[Any], Any] = lambda item: ours.call_soon_threadsafe(items.put_nowait, item)  # noqa: E731
            try:
                async for piece in self._engine.tokenizer_manager.generate_request(GenerateReqInput(**body), None):
                    put(piece)
                put(None)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                put(CommandRefused(str(error)[:500]))

        running = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            while (item := await items.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            running.cancel()

    async def command(self, path: str, body: Body | None = None, seconds: float = COMMAND_SECONDS) -> dict[str, Any]:
        try:
            async with asyncio.timeout(seconds):
                return await self._on_engine_loop(self._command(path, dict(body or {})))
        except TimeoutError:
            raise ConnectionLost(f"SGLang: {path}: no answer within {seconds:.0f} s") from None
        except (CommandRefused, ConnectionLost, asyncio.CancelledError):
            raise
        except Exception as error:
            raise CommandRefused(f"{path}: {type(error).__name__} {error}") from error

    def abort(self, rid: str) -> None:
        self._loop.call_soon_threadsafe(lambda: self._engine.tokenizer_manager.abort_request(rid=rid, abort_all=False))

    async def close(self) -> None:
        def end() -> None:
            with suppress(Exception):
                self._engine.shutdown()

        await asyncio.to_thread(end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join, 10)

    async def _command(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        manager = self._engine.tokenizer_manager
        if path == "/model_info":
            return {"weight_version": manager.config_value("weight_version"),
                    "model_path": manager.config_value("model_path")}
        if path == "/server_info":
            return {}
        from sglang.srt.managers import io_struct

        method, kind = _COMMANDS[path]
        if "serialized_named_tensors" in body:
            body["serialized_named_tensors"] = [
                io_struct.normalize_serialized_named_tensor_payload(text) for text in body["serialized_named_tensors"]]
        answer = await getattr(manager, method)(getattr(io_struct, kind)(**body))
        success, *rest = answer if isinstance(answer, tuple) else (True, "")
        if not success:
            raise CommandRefused(f"{path}: {rest[0]}")
        return {"success": True}

    async def _on_engine_loop(self, work: Coroutine[Any, Any, _T]) -> _T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
