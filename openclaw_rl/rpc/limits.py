"""Limits of each client: requests per minute, and requests at the same time."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from openclaw_rl.rpc.errors import MeshError

if TYPE_CHECKING:
    from openclaw_rl.config.security import LimitsConfig

#: Clients that are remembered. Addresses come and go; one that is forgotten begins with a full bucket again.
REMEMBERED = 10_000


@dataclass(slots=True)
class _Client:
    tokens: float  # requests that it may make now
    at: float  # when `tokens` was right
    running: int = 0


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a client has left."""

    limit: int  #: requests per minute
    remaining: int  #: requests that it may make now
    reset: float  #: seconds until it may make a minute's again


class LimitReached(MeshError):
    """RESOURCE_EXHAUSTED: a client has taken too much.

    Attributes:
        wait: seconds until the next request is taken.
        allowance: what the client has left.
    """

    def __init__(self, message: str, wait: float, allowance: Allowance) -> None:
        super().__init__(grpc.StatusCode.RESOURCE_EXHAUSTED, "RESOURCE_EXHAUSTED", message,
                         retry_after=float(max(1, math.ceil(wait))))
        self.wait, self.allowance = wait, allowance


class Limiter:
    """A token bucket and a count for each client: it may make a minute's requests at once, and gets new ones evenly.

    Memory is bounded: of the clients without running requests the longest unseen are forgotten.

    Args:
        clock: seconds; for tests.
    """

    def __init__(self, limits: LimitsConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._clients: OrderedDict[str, _Client] = OrderedDict()

    def __len__(self) -> int:
        return len(self._clients)

    def take(self, client: str, who: str) -> Allowance:
        """Begin a request; `give_back` ends it.

        Args:
            who: the client's name in an error.

        Returns:
            What is left.

        Raises:
            LimitReached: it may try again later.
        """
        now, rate = self._clock(), self.limits.requests_per_minute / 60
        state = self._state(client, now, rate)
        if state.tokens < 1:
            wait = (1 - state.tokens) / rate
            raise LimitReached(f"Rate limit reached for {who}: {self.limits.requests_per_minute} requests per minute. "
                               f"Please try again in {duration(wait)}.", wait, self._allowance(state, rate))
        if state.running >= self.limits.concurrent:
            raise LimitReached(f"Rate limit reached for {who}: {self.limits.concurrent} requests at the same time. "
                               "Please try again when one of them has ended.", 1.0, self._allowance(state, rate))
        state.tokens -= 1
        state.running += 1
        return self._allowance(state, rate)

    def give_back(self, client: str) -> None:
        """A request has ended."""
        if state := self._clients.get(client):
            state.running -= 1

    def _state(self, client: str, now: float, rate: float) -> _Client:
        most = float(self.limits.requests_per_minute)
        state = self._clients.get(client)
        if state is None:
            state = self._clients[client] = _Client(most, now)
            self._forget()
        else:
            state.tokens, state.at = min(most, state.tokens + (now - state.at) * rate), now
            self._clients.move_to_end(client)
        return state

    def _forget(self) -> None:
        for _ in range(100):
            if len(self._clients) <= REMEMBERED:
                return
            client, state = next(iter(self._clients.items()))
            if state.running:  # one of few, since connections are bounded
                self._clients.move_to_end(client)
            else:
                del self._clients[client]

    def _allowance(self, state: _Client, rate: float) -> Allowance:
        most = self.limits.requests_per_minute
        return Allowance(most, max(0, int(state.tokens)), (most - state.tokens) / rate)


def duration(seconds: float) -> str:
    """A time as OpenAI writes it: 8ms, 1.2s, 6m0s."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    if seconds < 60:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{int(seconds // 60)}m{int(seconds % 60)}s"
