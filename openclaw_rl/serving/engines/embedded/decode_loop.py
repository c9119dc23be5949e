"""The decode loop: a thread that advances all requests together, one token per step.

Requests join between two steps and leave between two steps. A step holds the next token of every decoding request and
a bounded piece of the waiting prompts, so a long prompt delays the others by a little many times and never by much.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch

from openclaw_rl.models.llama import Weights
from openclaw_rl.models.memory import out_of_memory
from openclaw_rl.serving.engines.embedded.figures import Figures
from openclaw_rl.serving.engines.embedded.forward import Cache, Forward, Piece
from openclaw_rl.serving.engines.embedded.prefix_cache import PrefixCache
from openclaw_rl.serving.engines.embedded.request import Request, Scores
from openclaw_rl.serving.engines.embedded.sampler import sample
from openclaw_rl.serving.engines.interface import EngineError, Finished, Pause, Token

logger = logging.getLogger(__name__)

#: Prompt tokens per step: while others decode, and while none does. On a CPU, time grows with the rows.
_PROMPT_ROWS = {"cpu": (32, 256), "cuda": (512, 1024)}
_IDLE_SECONDS = 30.0


@dataclass
class _Swap:
    version: int
    weights: Weights
    finished: Callable[[Pause, object], None]


class DecodeLoop:
    """The thread. Methods may be called from any other thread."""

    def __init__(self, forward: Forward, cache: Cache, prefixes: PrefixCache, weights: Weights, *, max_batch: int,
                 threads: int, flush: Callable[[], None]) -> None:
        """Set up the loop with the weights of version 0.

        Args:
            forward: its computation.
            cache: for `max_batch` sequences.
            prefixes: keys and values of earlier ones.
            weights: the base model's.
            max_batch: requests that are in the batch at the same time.
            threads: of PyTorch.
            flush: called after each step, once the step's results were sent.
        """
        self.version = 0
        self.weights = weights
        self._forward, self._cache, self._prefixes, self._max_batch = forward, cache, prefixes, max_batch
        self._rows_busy, self._rows_idle = _PROMPT_ROWS[forward.device.type]
        self._threads = threads
        self._flush = flush
        self._changed = threading.Condition()
        self._waiting: deque[Request] = deque()
        self._swaps: deque[_Swap] = deque()
        self._clears: deque[Callable[[object], None]] = deque()
        self._stopping = False
        #: Slot i belongs to active[i]: decoding requests first, then at most one whose prompt is incomplete, then at
        #: most one background request that it has overtaken.
        self._active: list[Request] = []
        self._figures = Figures()
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; every request gets an EngineError."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    @property
    def waiting(self) -> int:
        """Requests without a slot."""
        return len(self._waiting)

    def submit(self, request: Request) -> None:
        """Add a request to the batch as soon as a slot is free."""
        with self._changed:
            if self._stopping:
                raise EngineError("the engine is stopping")
            if request.background:
                self._waiting.append(request)
            else:  # ahead of background requests
                self._waiting.insert(self._live_waiting(), request)
            self._figures.counts["engine_requests"] += 1
            self._changed.notify()

    def _live_waiting(self) -> int:
        """The number of requests ahead of the first background one."""
        return next((i for i, other in enumerate(self._waiting) if other.background), len(self._waiting))

    def cancel(self, request: Request) -> None:
        """Remove a request before the next step; no effect when it has ended."""
        with self._changed:
            request.cancelled = True
            if request in self._waiting:
                self._waiting.remove(request)

    def swap(self, version: int, weights: Weights, finished: Callable[[Pause, object], None]) -> None:
        """Use new weights from the next step on; `finished` is called with what is to be freed, on the loop's thread.
        """
        with self._changed:
            if self._stopping:
                raise EngineError("the engine is stopping")
            self._swaps.append(_Swap(version, weights, finished))
            self._changed.notify()

    def clear_prefixes(self, finished: Callable[[object], None]) -> None:
        """Drop the prefix cache before the next step, and keep nothing of requests that run; `finished` as in `swap`.
        """
        with self._changed:
            self._clears.append(finished)
            self._changed.notify()

    @property
    def counters(self) -> dict[str, int]:
        """See EngineStatus."""
        return dict(self._figures.counts)

    def gauges(self) -> dict[str, float]:
        """See EngineStatus."""
        return {"running": len(self._active), "waiting": len(self._waiting), **self._figures.gauges(),
                "cache_tokens": sum(request.length for request in list(self._active)),
                "prefix_cache_bytes": self._prefixes.tokens * self._prefixes.token_bytes}

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        with torch.inference_mode():
            while self._wait():
                self._swap()
                while self._clears:
                    self._clears.popleft()(self._prefixes.clear())
                for request in [request for request in self._active if request.cancelled]:
                    self._leave(request)
                if self._active or self._waiting:
                    self._step()
                else:
                    self._cache.release()
        error = EngineError("the engine is stopping")
        for request in [*self._active, *self._waiting]:
            request.send(error)
        self._active.clear()
        self._waiting.clear()
        self._flush()

    def _wait(self) -> bool:
        """Wait for work, or a long idle time; False when the thread shall end."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._active or self._waiting or self._swaps
                                   or self._clears, timeout=_IDLE_SECONDS)
            return not self._stopping

    def _swap(self) -> None:
        while self._swaps:
            started = time.perf_counter()
            swap = self._swaps.popleft()
            old, self.weights, self.version = self.weights, swap.weights, swap.version
            pause = Pause((time.perf_counter() - started) * 1000, 1 if self._active else 0)
            swap.finished(pause, [old, self._prefixes.clear()])  # keys of other weights

    def _step(self) -> None:
        """Advance every request by one token."""
        decoding = [request for request in self._active if request.done == len(request.prompt)]
        pieces: list[tuple[Request, Piece]] = []
        try:
            pieces = self._pieces(self._rows_busy if decoding else self._rows_idle)
            logits = self._forward(self.weights, self._cache, [r.response[-1] for r in decoding],
                                   [r.length for r in decoding], [piece for _, piece in pieces])
            self._take(decoding, pieces, logits)
        except Exception as error:
            # The likely cause is a prompt that doesn't fit into memory: only its request fails, and since no position
            # was advanced, the others repeat the step.
            logger.exception("A decode step failed")
            if out_of_memory(error):
                self._prefixes.clear()
            for request in [request for request, _ in pieces] or decoding:
                request.send(EngineError(f"the engine failed: {type(error).__name__}"))
                request.epoch = None
                self._leave(request)
        self._figures.counts["engine_steps"] += 1
        self._flush()

    def _pieces(self, budget: int) -> list[tuple[Request, Piece]]:
        """Choose pieces of prompts for `budget` tokens, oldest request first; assigns slots to new requests."""
        pieces = []
        slot = sum(1 for request in self._active if request.done == len(request.prompt))
        while budget > 0:
            self._overtake(slot)
            if slot == len(self._active):
                with self._changed:
                    if not self._waiting or slot == self._max_batch:
                        break
                    self._active.append(self._waiting.popleft())
            request = self._active[slot]
            if request.sampling is None and request.scores.version != self.version:
                # Scores are of one version: a swap restarts them.
                request.done, request.scores = 0, Scores([], self.version)
            self._reuse(request, slot)
            start = request.done
            tokens = request.prompt[start:start + budget]
            end = start + len(tokens)
            last = 1 if end == len(request.prompt) else 0
            pieces.append((request, Piece(slot, tokens, start, len(tokens) if request.sampling is None else last)))
            budget -= len(tokens)
            if not last:
                break
            slot += 1
        return pieces

    def _reuse(self, request: Request, slot: int) -> None:
        """Take the keys of a prompt from the prefix cache, as far as they are there by now: a prompt that waited for
        another one's last piece finds what it shares with that one at its own second piece."""
        if request.sampling is None:
            return
        if not request.done:
            request.epoch = self._prefixes.epoch
        if request.epoch != self._prefixes.epoch:
            return
        try:  # the last token is computed in any case, for its logits
            done = self._prefixes.load(request.prompt[:-1], request.done, self._cache.slot(slot))
        except (MemoryError, RuntimeError):
            self._give_up_prefixes()
            return
        request.cached += done - request.done
        request.done = done

    def _keep(self, request: Request, slot: int) -> None:
        """Keep the keys of a request, unless those are of several versions, or of a forgotten session."""
        if request.epoch != self._prefixes.epoch:
            return
        try:
            self._prefixes.keep(request.text, self._cache.slot(slot))
        except (MemoryError, RuntimeError):
            self._give_up_prefixes()

    def _give_up_prefixes(self) -> None:
        """Return the prefix cache's memory: a copy failed, and PyTorch has no error of its own for want of memory."""
        logger.warning("The prefix cache was dropped", exc_info=True)
        self._prefixes.clear()

    def _overtake(self, slot: int) -> None:
        """Let a waiting live request overtake a background prompt that is being read at `slot`."""
        if slot != len(self._active) - 1 or slot + 1 == self._max_batch or not self._active[slot].background:
            return
        with self._changed:
            if not self._waiting or self._waiting[0].background:
                return
            live = self._waiting.popleft()
        self._cache.move(slot, slot + 1, self._active[slot].length)
        self._active.insert(slot, live)

    def _take(self, decoding: list[Request], pieces: list[tuple[Request, Piece]], logits: torch.Tensor) -> None:
        """Sample, send the tokens, and remove requests that have ended."""
        drawing, rows, row = list(decoding), list(range(len(decoding))), len(decoding)
        ended: list[Request] = []
        for request, piece in pieces:
            self._figures.counts["engine_prompt_tokens"] += len(piece.tokens)
            request.done += len(piece.tokens)
            if request.sampling is None:
                self._score(request, piece, logits[row:row + piece.outputs])
                if request.done == len(request.prompt):
                    request.send(request.scores)
                    ended.append(request)
            elif piece.outputs:
                drawing.append(request)
                rows.append(row)
            row += piece.outputs
        read = [(request, piece.slot) for request, piece in pieces if request.sampling and piece.outputs]
        if drawing:
            if len(rows) < len(logits):
                logits = logits[torch.tensor(rows, device=logits.device)]
            results = sample(logits, [request.draw for request in drawing], self.version)
            for request, result in zip(drawing, results, strict=True):
                if self._deliver(request, result):
                    ended.append(request)
            self._figures.made(len(results))
        for request, slot in read:
            self._figures.read(request.cached, len(request.prompt))
            self._keep(request, slot)
        for request in ended:
            self._leave(request)

    def _score(self, request: Request, piece: Piece, logits: torch.Tensor) -> None:
        """Log-probabilities of the tokens that follow the piece's rows."""
        following = request.prompt[piece.start + 1:piece.start + len(piece.tokens) + 1]
        logits = logits[:len(following)]
        ids = torch.tensor(following, device=logits.device, dtype=torch.long)
        chosen = logits.gather(1, ids[:, None])[:, 0] - logits.logsumexp(-1)
        request.scores.logprobs += chosen.tolist()
        if request.top and len(following):
            values, best = (logits - logits.logsumexp(-1, keepdim=True)).topk(min(request.top, logits.shape[1]))
            request.scores.tops += [list(zip(*pair, strict=True))
                                    for pair in zip(best.tolist(), values.tolist(), strict=True)]

    def _deliver(self, request: Request, result: Token | EngineError) -> bool:
        """Send a token to its request; True when it was the last one."""
        if isinstance(result, EngineError):
            request.send(result)
            request.epoch = None
            return True
        if not request.response:
            result.cached_tokens = request.cached
        request.send(result)
        request.response.append(result.id)
        if result.id in request.stop_ids:
            request.send(Finished("stop"))
        elif len(request.response) == request.most_tokens:
            request.send(Finished("length"))
        else:
            return False
        return True

    def _leave(self, request: Request) -> None:
        """Free a slot and close the gap, with the last decoding request before the incomplete ones."""
        if request not in self._active:
            return
        gap = self._active.index(request)
        self._keep(request, gap)
        decoding = sum(1 for other in self._active if other.done == len(other.prompt))
        for following in (decoding - 1, *range(decoding, len(self._active))):
            if gap < following:
                self._cache.move(following, gap, self._active[following].length)
                self._active[gap] = self._active[following]
                gap = following
        self._active.pop(gap)
