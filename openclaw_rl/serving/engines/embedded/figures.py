"""Counters and gauges of the decode loop."""

from __future__ import annotations

import time
from collections import Counter, deque

_RATE_SECONDS = 10.0
_HIT_SECONDS = 60.0


class Figures:
    """Written by the decode loop's thread, read by any.

    Attributes:
        counts: since the start.
    """

    def __init__(self) -> None:
        self.counts = Counter({f"engine_{name}": 0 for name in (
            "requests", "tokens", "prompt_tokens", "cached_tokens", "steps")})
        self._tokens: deque[tuple[float, int]] = deque()  # when, and how many tokens a step made
        self._prompts: deque[tuple[float, int, int]] = deque()  # when, tokens from the prefix cache, and all

    def made(self, tokens: int) -> None:
        """A step sampled so many tokens."""
        self.counts["engine_tokens"] += tokens
        self._tokens.append((now := time.monotonic(), tokens))
        while self._tokens[0][0] < now - _RATE_SECONDS:
            self._tokens.popleft()

    def read(self, cached: int, tokens: int) -> None:
        """A prompt of so many tokens was read, `cached` of them from the prefix cache."""
        self.counts["engine_cached_tokens"] += cached
        self._prompts.append((now := time.monotonic(), cached, tokens))
        while self._prompts[0][0] < now - _HIT_SECONDS:
            self._prompts.popleft()

    def gauges(self) -> dict[str, float]:
        """Tokens a second, and the share of prompt tokens of the last minute that were in the prefix cache; that is
        absent when no prompt was read."""
        now = time.monotonic()
        recent = [(at, count) for at, count in list(self._tokens) if at > now - _RATE_SECONDS]
        span = max(now - recent[0][0], 1.0) if recent else 1.0
        prompts = [(cached, tokens) for at, cached, tokens in list(self._prompts) if at > now - _HIT_SECONDS]
        total = sum(tokens for _, tokens in prompts)
        return {"tokens_per_s": sum(count for _, count in recent) / span,
                **({"prefix_cache_hit_rate": sum(cached for cached, _ in prompts) / total} if total else {})}
