"""The embedded engine: a Llama-family model in this process, on the CPU or one GPU.

The decode loop has its own thread (`decode_loop`), and loading weights another one of low priority; this class is
their asyncio side. The loop decodes faster than transformers (tools/bench/engine.py measures both), and weights can be
swapped between two of its steps.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from openclaw_rl.models.config import ModelConfig, ModelError
from openclaw_rl.models.identity import model_id
from openclaw_rl.models.llama import Weights, load_weights, rotary_table
from openclaw_rl.models.memory import available_memory, free_memory
from openclaw_rl.serving.engines.embedded.decode_loop import DecodeLoop
from openclaw_rl.serving.engines.embedded.forward import Cache, Forward
from openclaw_rl.serving.engines.embedded.grammars import Grammars, Guide
from openclaw_rl.serving.engines.embedded.prefix_cache import PrefixCache
from openclaw_rl.serving.engines.embedded.request import Item, Request, Scores
from openclaw_rl.serving.engines.interface import (
    EngineBusy,
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

logger = logging.getLogger(__name__)

#: Context when neither the configuration nor the model asks for less.
DEFAULT_CONTEXT = 4096
#: Bytes for the prefix cache by default.
_PREFIX_CACHE_MOST = 1 << 30
_LOADER_NICE = 10


class EmbeddedEngine:
    """Implements TokenEngine."""

    def __init__(self, folder: Path, *, model: str | None = None, max_batch: int = 16, max_context: int | None = None,
                 max_waiting: int = 256, threads: int = 1, device: str = "auto",
                 prefix_cache_mb: int | None = None) -> None:
        """Read the model's configuration; `start` loads its weights.

        Args:
            folder: of the base model, as `ensure_model` returns it.
            model: its name; default the folder's.
            max_batch: requests that decode concurrently.
            max_context: tokens of prompt and response together; default the model's, at most 4096.
            max_waiting: requests that may wait for a slot.
            threads: of PyTorch. On x86 CPUs linear maps always use one (openclaw_rl.models.llama).
            device: `cpu`, `cuda`, `cuda:1`, ... or `auto`.
            prefix_cache_mb: most MiB for keys and values of earlier texts; 0: none are kept; default: an eighth of
                what is available at the start, at most 1024.

        Raises:
            ModelError: the folder can't be used.
            EngineError: no such device.
        """
        self._folder = folder
        self._config = ModelConfig.read(folder)
        self._device = _device(device)
        self._max_batch, self._max_waiting, self._threads = max_batch, max_waiting, threads
        self._prefix_cache_mb = prefix_cache_mb
        context = min(max_context or DEFAULT_CONTEXT, self._config.context_length)
        self.info = EngineInfo(
            name="embedded", model=model or folder.name, model_id=model_id(folder), context_length=context,
            vocab_size=self._config.vocab_size, eos_ids=self._config.eos_ids, accepts_weights=True, grammars=True)
        self._grammars = Grammars(folder / "tokenizer.json", self._config.vocab_size, self._config.eos_ids)
        self._staged: dict[int, Weights] = {}
        self._activations: set[asyncio.Future[Pause]] = set()
        self._loader = ThreadPoolExecutor(1, "weights", _lower_priority, (threads,))
        self._decoding: DecodeLoop | None = None
        self._sent: list[tuple[asyncio.Queue[Item], Item]] = []  # by the running step

    @property
    def active_version(self) -> int:
        """The version that computes the next token."""
        return self._decoding.version if self._decoding else 0

    async def start(self) -> None:
        """Load the base model as version 0 and start decoding."""
        self._loop = asyncio.get_running_loop()
        try:
            weights = await asyncio.to_thread(self._load, self._folder)
        except ModelError as error:
            raise EngineError(str(error)) from None
        with torch.inference_mode():
            forward = Forward(self._config, rotary_table(self._config, self.info.context_length, self._device))
            cache = Cache(self._config, self._max_batch, self.info.context_length, self._device)
        prefixes = PrefixCache(limit := _prefix_limit(self._prefix_cache_mb, self._device), cache.token_bytes)
        self._decoding = DecodeLoop(forward, cache, prefixes, weights, max_batch=self._max_batch,
                                    threads=self._threads, flush=self._flush)
        self._decoding.start()
        self._loader.submit(free_memory)  # memory used by loading
        self._loader.submit(self._grammars.load)  # so that the first request with a grammar does not wait for it
        logger.info("The embedded engine serves %s on %s: context %d, batch %d, prefix cache %d MiB (%d tokens)",
                    self.info.model, self._device, self.info.context_length, self._max_batch, limit >> 20,
                    limit // cache.token_bytes)

    async def stop(self) -> None:
        """End every generation and free the model."""
        if self._decoding:
            await asyncio.to_thread(self._decoding.stop)
        self._decoding = None
        for activation in self._activations:
            if not activation.done():
                activation.set_exception(EngineError("the engine is stopping"))
        self._activations.clear()
        self._staged.clear()
        self._loader.shutdown(wait=False, cancel_futures=True)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *,
                       session: str = "") -> AsyncIterator[Token | Finished]:
        """Continue a prompt; see TokenEngine.generate."""
        self._check_ids(prompt_ids)
        room = self.info.context_length - len(prompt_ids)
        if room < 1:
            raise PromptTooLong(len(prompt_ids), self.info.context_length)
        ignore_eos = sampling.shaping is not None and sampling.shaping.ignore_eos
        stop_ids = frozenset(() if ignore_eos else self.info.eos_ids).union(sampling.stop_token_ids)
        # Compiled beside the event loop, which others' responses run on.
        guide = await asyncio.to_thread(self._grammars.guide, sampling.grammar) if sampling.grammar else None
        request, items = self._submit(prompt_ids, sampling, stop_ids, min(sampling.max_tokens, room), guide=guide)
        try:
            while True:
                item = await items.get()
                if isinstance(item, EngineError):
                    raise item
                assert isinstance(item, (Token, Finished))
                yield item
                if isinstance(item, Finished):
                    return
        finally:
            self._cancel(request)

    async def score(self, token_ids: Sequence[int]) -> tuple[list[float], int]:
        """Log-probabilities of tokens 1.. and their version; see TokenEngine.score."""
        scores = await self._scored(token_ids)
        return scores.logprobs, scores.version

    async def read(self, token_ids: Sequence[int], top: int) -> list[Token]:
        """Tokens 1.. with their log-probabilities; see TokenEngine.read."""
        scores = await self._scored(token_ids, top)
        tops = scores.tops or [[] for _ in scores.logprobs]
        return [Token(id_, value, value, scores.version, best)
                for id_, value, best in zip(token_ids[1:], scores.logprobs, tops, strict=True)]

    async def _scored(self, token_ids: Sequence[int], top: int = 0) -> Scores:
        self._check_ids(token_ids)
        if len(token_ids) > self.info.context_length:
            raise PromptTooLong(len(token_ids), self.info.context_length)
        request, items = self._submit(token_ids, None, frozenset(), 0, top)
        try:
            item = await items.get()
        finally:
            self._cancel(request)
        if isinstance(item, EngineError):
            raise item
        assert isinstance(item, Scores)
        return item

    async def stage(self, version: int, folder: Path) -> None:
        """Load a version beside the active one; see TokenEngine.stage."""
        try:
            self._staged[version] = await asyncio.get_running_loop().run_in_executor(self._loader, self._load, folder)
        except ModelError as error:
            raise WeightsError(str(error)) from None

    async def activate(self, version: int) -> Pause:
        """Swap a staged version in between two decode steps; see TokenEngine.activate."""
        weights = self._staged.pop(version, None)
        if weights is None:
            raise WeightsError(f"version {version} is not staged; staged: {sorted(self._staged) or 'none'}")
        activation: asyncio.Future[Pause] = self._loop.create_future()
        self._activations.add(activation)

        def done(pause: Pause, old: list[object]) -> None:
            self._activations.discard(activation)
            self._loader.submit(_free, old)  # hundreds of MB: off the decode loop and the event loop
            if not activation.done():
                activation.set_result(pause)

        self._running().swap(version, weights, lambda pause, old: self._call(done, pause, [old]))
        return await activation

    def clear_prefixes(self) -> None:
        """Drop the keys and values of earlier texts; see TokenEngine.clear_prefixes."""
        if self._decoding:
            self._decoding.clear_prefixes(lambda old: self._call(self._loader.submit, _free, [old]))

    def discard(self, version: int) -> None:
        """Forget a staged version; see TokenEngine.discard."""
        self._staged.pop(version, None)

    def status(self) -> EngineStatus:
        """Gauges and counters; see Engine.status."""
        decoding = self._decoding
        gauges = decoding.gauges() if decoding else {}
        return EngineStatus(gauges | {"staged": len(self._staged)}, decoding.counters if decoding else {})

    def _running(self) -> DecodeLoop:
        if not self._decoding:
            raise EngineError("the engine does not run")
        return self._decoding

    def _check_ids(self, ids: Sequence[int]) -> None:
        if not ids:
            raise ValueError("token ids: at least one is needed")
        for i, token in enumerate(ids):
            if not isinstance(token, int) or not 0 <= token < self.info.vocab_size:
                raise ValueError(f"token id {i}: {token!r} is not allowed: 0 to {self.info.vocab_size - 1}")

    def _submit(self, prompt: Sequence[int], sampling: Sampling | None, stop_ids: frozenset[int],
                most_tokens: int, top: int = 0, guide: Guide | None = None) -> tuple[Request, asyncio.Queue[Item]]:
        decoding = self._running()
        if decoding.waiting >= self._max_waiting:
            raise EngineBusy(f"{decoding.waiting} requests wait already, as many as may")
        items: asyncio.Queue[Item] = asyncio.Queue()
        request = Request(list(prompt), sampling, stop_ids, most_tokens, lambda item: self._sent.append((items, item)),
                          top, guide)
        decoding.submit(request)
        return request, items

    def _cancel(self, request: Request) -> None:
        if self._decoding:
            self._decoding.cancel(request)

    def _flush(self) -> None:
        """Hand a step's results to the event loop, in one call for all requests."""
        if self._sent:
            sent, self._sent = self._sent, []
            self._call(_deliver, sent)

    def _call(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function on the event loop from another thread."""
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            logger.debug("The event loop ended before the engine")

    def _load(self, folder: Path) -> Weights:
        with torch.inference_mode():
            return load_weights(folder, self._config, self._device,
                                self._decoding.weights if self._decoding else None)


def _deliver(sent: list[tuple[asyncio.Queue[Item], Item]]) -> None:
    for items, item in sent:
        items.put_nowait(item)


def _free(old: list[object]) -> None:
    old.clear()
    free_memory()


def _prefix_limit(wanted_mb: int | None, device: torch.device) -> int:
    """Bytes for the prefix cache on a device."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
    if wanted_mb is None:
        return min(free // 8, _PREFIX_CACHE_MOST)
    if (wanted := wanted_mb << 20) > free:
        logger.warning("prefix_cache_mb: %d is more than the memory that is available (%d MiB): half of that is used",
                       wanted_mb, free >> 20)
        return free // 2
    return wanted


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda") or \
            (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        raise EngineError(f"device: {name!r} does not exist; allowed: auto, cpu"
                          + "".join(f", cuda:{i}" for i in range(torch.cuda.device_count())))
    return device


def _lower_priority(threads: int) -> None:
    """Lower the priority of the calling thread below decoding (on Linux, where threads have priorities)."""
    torch.set_num_threads(threads)
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(),
                       max(_LOADER_NICE, os.getpriority(os.PRIO_PROCESS, 0)))
