"""The decode loop: a thread that advances all requests together, one token per step.

Requests join between two steps and leave between two steps. A step holds the next token of every decoding request and
a bounded piece of the waiting prompts, so a long prompt delays the others by a little many times and never by much.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from openclaw_rl.models.llama import Weights
from openclaw_rl.serving.engines.embedded.forward import Cache, Forward, Piece
from openclaw_rl.serving.engines.embedded.sampler import Draw, sample
from openclaw_rl.serving.engines.interface import EngineError, Finished, Pause, Sampling, Token

logger = logging.getLogger(__name__)

#: Prompt tokens per step: while others decode, and while none does. On a CPU, time grows with the rows.
_PROMPT_ROWS = {"cpu": (32, 256), "cuda": (512, 1024)}
_RATE_SECONDS = 10.0
_IDLE_SECONDS = 30.0


@dataclass(slots=True)
class Scores:
    """The result of a scoring request."""

    logprobs: list[float]
    version: int


#: Results of a request: tokens and their end, or scores, or an error.
Item = Token | Finished | Scores | EngineError


@dataclass(eq=False)
class Request:
    """A request in the loop."""

    prompt: Sequence[int]
    sampling: Sampling | None  #: None: score the prompt without sampling
    stop_ids: frozenset[int]
    most_tokens: int  #: of the response
    send: Callable[[Item], None]  #: called from the loop's thread
    draw: Draw = field(init=False)
    done: int = 0  #: prompt tokens whose keys are in the cache
    tokens: int = 0  #: of the response
    last: int = 0  #: last token of the response
    scores: Scores = field(default_factory=lambda: Scores([], 0))
    cancelled: bool = False

    def __post_init__(self) -> None:
        self.draw = Draw(self.sampling or Sampling())

    @property
    def background(self) -> bool:
        """Whether it yields to live requests."""
        return self.sampling is not None and self.sampling.background

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self.done + max(self.tokens - 1, 0)


@dataclass
class _Swap:
    version: int
    weights: Weights
    finished: Callable[[Pause, Weights], None]


class DecodeLoop:
    """The thread. Methods may be called from any other thread."""

    def __init__(self, forward: Forward, cache: Cache, weights: Weights, *, max_batch: int, threads: int,
                 flush: Callable[[], None]) -> None:
        """Set up the loop with the weights of version 0.

        Args:
            forward: its computation.
            cache: for `max_batch` sequences.
            weights: the base model's.
            max_batch: requests that are in the batch at the same time.
            threads: of PyTorch.
            flush: called after each step, once the step's results were sent.
        """
        self.version = 0
        self._weights = weights
        self._forward, self._cache, self._max_batch = forward, cache, max_batch
        self._rows_busy, self._rows_idle = _PROMPT_ROWS[forward.device.type]
        self._threads = threads
        self._flush = flush
        self._changed = threading.Condition()
        self._waiting: deque[Request] = deque()
        self._swaps: deque[_Swap] = deque()
        self._stopping = False
        #: Slot i belongs to active[i]: decoding requests first, then at most one whose prompt is incomplete, then at
        #: most one background request that it has overtaken.
        self._active: list[Request] = []
        self._counts = {"engine_requests": 0, "engine_tokens": 0, "engine_prompt_tokens": 0, "engine_steps": 0}
        self._recent: deque[tuple[float, int]] = deque()
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
            self._counts["engine_requests"] += 1
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

    def swap(self, version: int, weights: Weights, finished: Callable[[Pause, Weights], None]) -> None:
        """Use new weights from the next step on; `finished` is called with the old ones on the loop's thread."""
        with self._changed:
            if self._stopping:
                raise EngineError("the engine is stopping")
            self._swaps.append(_Swap(version, weights, finished))
            self._changed.notify()

    @property
    def counters(self) -> dict[str, int]:
        """See EngineStatus."""
        return dict(self._counts)

    def gauges(self) -> dict[str, float]:
        """See EngineStatus."""
        now = time.monotonic()
        recent = [(at, count) for at, count in list(self._recent) if at > now - _RATE_SECONDS]
        span = max(now - recent[0][0], 1.0) if recent else 1.0
        return {"running": len(self._active), "waiting": len(self._waiting),
                "tokens_per_s": sum(count for _, count in recent) / span,
                "cache_tokens": sum(request.length for request in list(self._active))}

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        with torch.inference_mode():
            while self._wait():
                self._swap()
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
            self._changed.wait_for(lambda: self._stopping or self._active or self._waiting or self._swaps,
                                   timeout=_IDLE_SECONDS)
            return not self._stopping

    def _swap(self) -> None:
        while self._swaps:
            started = time.perf_counter()
            swap = self._swaps.popleft()
            old, self._weights, self.version = self._weights, swap.weights, swap.version
            pause = Pause((time.perf_counter() - started) * 1000, 1 if self._active else 0)
            swap.finished(pause, old)

    def _step(self) -> None:
        """Advance every request by one token."""
        decoding = [request for request in self._active if request.done == len(request.prompt)]
        pieces: list[tuple[Request, Piece]] = []
        try:
            pieces = self._pieces(self._rows_busy if decoding else self._rows_idle)
            logits = self._forward(self._weights, self._cache, [r.last for r in decoding],
                                   [r.length for r in decoding], [piece for _, piece in pieces])
            self._take(decoding, pieces, logits)
        except Exception as error:
            # The likely cause is a prompt that doesn't fit into memory: only its request fails, and since no position
            # was advanced, the others repeat the step.
            logger.exception("A decode step failed")
            for request in [request for request, _ in pieces] or decoding:
                request.send(EngineError(f"the engine failed: {type(error).__name__}"))
                self._leave(request)
        self._counts["engine_steps"] += 1
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
            self._counts["engine_prompt_tokens"] += len(piece.tokens)
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
        if drawing:
            if len(rows) < len(logits):
                logits = logits[torch.tensor(rows, device=logits.device)]
            results = sample(logits, [request.draw for request in drawing], self.version)
            for request, result in zip(drawing, results, strict=True):
                if self._deliver(request, result):
                    ended.append(request)
            self._count(len(results))
        for request in ended:
            self._leave(request)

    def _score(self, request: Request, piece: Piece, logits: torch.Tensor) -> None:
        """Log-probabilities of the tokens that follow the piece's rows."""
        following = request.prompt[piece.start + 1:piece.start + len(piece.tokens) + 1]
        logits = logits[:len(following)]
        ids = torch.tensor(following, device=logits.device, dtype=torch.long)
        chosen = logits.gather(1, ids[:, None])[:, 0] - logits.logsumexp(-1)
        request.scores.logprobs += chosen.tolist()

    def _deliver(self, request: Request, result: Token | EngineError) -> bool:
        """Send a token to its request; True when it was the last one."""
        request.send(result)
        if isinstance(result, EngineError):
            return True
        request.tokens, request.last = request.tokens + 1, result.id
        if result.id in request.stop_ids:
            request.send(Finished("stop"))
        elif request.tokens == request.most_tokens:
            request.send(Finished("length"))
        else:
            return False
        return True

    def _count(self, tokens: int) -> None:
        now = time.monotonic()
        self._counts["engine_tokens"] += tokens
        self._recent.append((now, tokens))
        while self._recent[0][0] < now - _RATE_SECONDS:
            self._recent.popleft()

    def _leave(self, request: Request) -> None:
        """Free a slot and close the gap, with the last decoding request before the incomplete ones."""
        if request not in self._active:
            return
        gap = self._active.index(request)
        decoding = sum(1 for other in self._active if other.done == len(other.prompt))
        for following in (decoding - 1, *range(decoding, len(self._active))):
            if gap < following:
                self._cache.move(following, gap, self._active[following].length)
                self._active[gap] = self._active[following]
                gap = following
        self._active.pop(gap)
