"""The SGLang engine: one or several SGLang servers behind TokenEngine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from openclaw_rl.config import PolicyServerConfig
from openclaw_rl.models.config import ModelConfig
from openclaw_rl.models.identity import model_id
from openclaw_rl.serving.engines.interface import (
    EngineError,
    EngineInfo,
    EngineStatus,
    Finished,
    Pause,
    PromptTooLong,
    Sampling,
    Token,
    WeightsError,
)
from openclaw_rl.serving.engines.sglang import checkpoint as checkpoints
from openclaw_rl.serving.engines.sglang.checkpoint import Checkpoint
from openclaw_rl.serving.engines.sglang.client import ConnectionLost
from openclaw_rl.serving.engines.sglang.pool import Pool
from openclaw_rl.serving.engines.sglang.process import end_leftovers
from openclaw_rl.serving.engines.sglang.worker import Worker
from openclaw_rl.serving.engines.sglang.worker_manager import WorkerManager

logger = logging.getLogger(__name__)

#: Context when neither the configuration nor the model asks for less; the embedded engine's.
DEFAULT_CONTEXT = 4096
#: Workers that one response may lose before it fails.
_LOSSES = 5
_RATE_SECONDS = 10.0


class SglangEngine:
    """Implements TokenEngine; README.md describes how.

    Args:
        folder: of the base model.
        settings: the policy server's.
        state: folder for prepared checkpoints; leftovers of an earlier run are deleted.
        logs: folder for the servers' logs.
        model: the model's name; default the folder's.

    Raises:
        ModelError: the folder can't be used.
    """

    def __init__(self, folder: Path, settings: PolicyServerConfig, state: Path, logs: Path,
                 model: str | None = None) -> None:
        config = ModelConfig.read(folder)
        self._folder, self._settings, self._state = folder, settings, state
        context = min(settings.max_context or DEFAULT_CONTEXT, config.context_length)
        self.info = EngineInfo(
            name="sglang", model=model or folder.name, model_id=model_id(folder), context_length=context,
            vocab_size=config.vocab_size, eos_ids=config.eos_ids, accepts_weights=True)
        self._manager = WorkerManager(settings, folder, context, state, logs, self._changed)
        workers = self._manager.workers
        # During an update, all running requests may have to wait as well.
        self._pool = Pool(workers, settings.max_batch, max(settings.max_waiting, settings.max_batch * len(workers)),
                          settings.sglang.start_timeout)
        self._staged: dict[int, tuple[Checkpoint, Any]] = {}
        self._counts = {"engine_requests": 0, "engine_tokens": 0, "engine_continued": 0}
        self._recent: deque[float] = deque()

    @property
    def active_version(self) -> int:
        """The version that new responses begin with."""
        return self._manager.active.version

    async def start(self) -> None:
        """Start or connect to the servers until one serves the base model; the others follow in the background.

        Raises:
            EngineError: none does; the text quotes the last line of SGLang's log.
        """
        await asyncio.to_thread(end_leftovers, self._state)
        await self._manager.start()
        logger.info("SGLang serves %s: context %d, %d workers, updates by %s", self.info.model,
                    self.info.context_length, len(self._manager.workers), self._manager.transport.name)

    async def stop(self) -> None:
        """End every generation and the servers that it started."""
        self._pool.close("the engine is stopping")
        await self._manager.stop()
        for loaded, _ in self._staged.values():
            self._manager.release(loaded)
        self._staged.clear()

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *,
                       session: str = "") -> AsyncIterator[Token | Finished]:
        """Continue a prompt; see TokenEngine.generate.

        When a worker is lost, another one continues from the tokens so far, so the response does not fail. Penalties
        count from there on: SGLang counts in the response alone.
        """
        self._check_ids(prompt_ids)
        room = self.info.context_length - len(prompt_ids)
        if room < 1:
            raise PromptTooLong(len(prompt_ids), self.info.context_length)
        stop_ids = sorted({*self.info.eos_ids, *sampling.stop_token_ids})
        most = min(sampling.max_tokens, room)
        so_far: list[int] = []
        losses = 0
        self._counts["engine_requests"] += 1
        while True:
            if so_far and so_far[-1] in stop_ids:
                yield Finished("stop")  # only the final message was lost
                return
            if len(so_far) == most:
                yield Finished("length")
                return
            worker = await self._acquire(session, prompt_ids)
            try:
                rest = _after(sampling, len(so_far)) if so_far else sampling
                response = worker.generate([*prompt_ids, *so_far], rest, most - len(so_far), stop_ids)
                async with aclosing(response) as items:  # type: ignore[type-var]
                    async for item in items:
                        if isinstance(item, Token):
                            so_far.append(item.id)
                            self._count()
                        yield item
                        if isinstance(item, Finished):
                            return
            except ConnectionLost as error:
                losses += 1
                self._manager.report_lost(worker, str(error))
                if losses > _LOSSES:
                    raise EngineError(f"one response lost {losses} workers; the last one: {error}") from error
                self._counts["engine_continued"] += 1
                logger.warning("A response continues from token %d on another worker: %s", len(so_far), error)
            finally:
                self._pool.release(worker)

    def clear_prefixes(self) -> None:
        """Use no earlier entry of SGLang's cache; see TokenEngine.clear_prefixes."""
        for worker in self._manager.workers:
            worker.clear_prefixes()

    async def score(self, token_ids: Sequence[int]) -> tuple[list[float], int]:
        """Log-probabilities of tokens 1.. and their version; see TokenEngine.score."""
        tokens = await self.read(token_ids, 0)
        return [token.model_logprob for token in tokens], tokens[0].version if tokens else self.active_version

    async def read(self, token_ids: Sequence[int], top: int) -> list[Token]:
        """Tokens 1.. with their log-probabilities; see TokenEngine.read."""
        self._check_ids(token_ids)
        if len(token_ids) > self.info.context_length:
            raise PromptTooLong(len(token_ids), self.info.context_length)
        for _ in range(_LOSSES):
            worker = await self._acquire("", token_ids)
            try:
                return await worker.score(token_ids, top)
            except ConnectionLost as error:
                self._manager.report_lost(worker, str(error))
            finally:
                self._pool.release(worker)
        raise EngineError(f"{_LOSSES} workers were lost one after another")

    async def stage(self, version: int, folder: Path) -> None:
        """Check a version and prepare it for the servers; see Engine.stage."""
        self.discard(version)
        if version == 0:
            made = Checkpoint(0, self._folder)
        else:
            made = await asyncio.to_thread(checkpoints.prepare, version, folder, self._folder, self._manager.folder)
        try:
            self._staged[version] = made, await self._manager.transport.load(made)
        except BaseException:
            self._manager.release(made)
            raise

    async def activate(self, version: int) -> Pause:
        """Make a staged version the active one; see TokenEngine.activate.

        It is active as soon as one worker has it; workers that failed get no requests until they have it too. When all
        fail, the old version is restored on each and stays active.
        """
        staged = self._staged.pop(version, None)
        if staged is None:
            raise WeightsError(f"version {version} is not staged; staged: {sorted(self._staged) or 'none'}")
        return await self._manager.activate(*staged)

    def discard(self, version: int) -> None:
        """Forget a staged version; see TokenEngine.discard."""
        staged = self._staged.pop(version, None)
        if staged is not None:
            self._manager.release(staged[0])

    def status(self) -> EngineStatus:
        """Gauges, workers, and an alarm for each worker that is out; see Engine.status."""
        return EngineStatus(self._gauges(), {**self._counts, "worker_restarts": self._manager.restarts},
                            [worker.info() for worker in self._manager.workers],
                            [("engine_worker_out", problem) for problem in self._manager.problems()])

    def _gauges(self) -> dict[str, float]:
        now = time.monotonic()
        while self._recent and self._recent[0] < now - _RATE_SECONDS:
            self._recent.popleft()
        span = max(now - self._recent[0], 1.0) if self._recent else 1.0
        workers = self._manager.workers
        return {"running": sum(worker.running for worker in workers), "waiting": self._pool.waiting,
                "tokens_per_s": len(self._recent) / span, "staged": len(self._staged), "workers": len(workers),
                "workers_serving": sum(worker.serving for worker in workers)}

    async def _acquire(self, session: str, ids: Sequence[int]) -> Worker:
        while True:
            worker = await self._pool.acquire(session, ids)
            assert isinstance(worker, Worker)
            if worker.accepting:
                return worker
            self._pool.release(worker)  # an update began meanwhile: the prompt waits until it is done

    def _changed(self) -> None:
        self._pool.dispatch()

    def _count(self) -> None:
        self._counts["engine_tokens"] += 1
        self._recent.append(time.monotonic())

    def _check_ids(self, ids: Sequence[int]) -> None:
        """Reject ids outside the vocabulary: they crash SGLang's scheduler with all its requests."""
        if not ids:
            raise ValueError("token ids: at least one is needed")
        for i, token in enumerate(ids):
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < self.info.vocab_size:
                raise ValueError(f"token id {i}: {token!r} is not allowed: 0 to {self.info.vocab_size - 1}")


def _after(sampling: Sampling, tokens: int) -> Sampling:
    """The sampling of the rest of a response of which there are `tokens`."""
    if sampling.shaping is None or not sampling.shaping.min_tokens:
        return sampling
    return replace(sampling, shaping=replace(sampling.shaping, min_tokens=max(sampling.shaping.min_tokens - tokens, 0)))
