"""Admission of HTTP requests: keys, scopes and limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from openclaw_rl.config.security import LimitsConfig
from openclaw_rl.rpc.auth.keys import Key, KeyRing, Scope, shown_in
from openclaw_rl.rpc.limits import Limiter
from openclaw_rl.runtime.identity import is_loopback
from openclaw_rl.serving.entrypoints.openai.errors import ApiError
from openclaw_rl.serving.entrypoints.openai.limits import take
from openclaw_rl.serving.entrypoints.openai.listener import client_address

#: Running responses of a revoked key end within this many seconds.
REVOKED_SECONDS = 1.0
#: Refusals per second that a client gets at once; further ones are delayed, so that being refused costs it time.
_PROMPT_REFUSALS, _DELAY_SECONDS = 20, 0.5


@dataclass(eq=False, slots=True)
class Caller:
    """The sender of an admitted request."""

    client: str  #: shares limits and a place in the queue: a key's id, or an address
    name: str  #: for people and metrics: the key's name; empty without a key
    shown: str  #: the bearer token as sent, needed or not; for the client's digest only
    address: str
    headers: dict[str, str]  #: to send with the response
    key: Key | None = None
    unlimited: bool = False
    revoked: asyncio.Event = field(default_factory=asyncio.Event)  #: set when the key is revoked


class Access:
    """Admits or refuses requests.

    Args:
        ring: keys; None: everybody is admitted.
        limits: per key, or per address where no key is needed; None: unlimited. Local callers without a key are
            exempt.
        closed: require a key even while there is none, for an entrypoint that is reachable from a network.
    """

    def __init__(self, ring: KeyRing | None = None, limits: LimitsConfig | None = None, closed: bool = False) -> None:
        self.limits = limits or LimitsConfig()
        self._ring, self._closed = ring, closed
        self._limiter = None if limits is None else Limiter(limits)
        self._callers: set[Caller] = set()
        self._refusals: dict[str, int] = {}  # in this second, by client
        self._second = 0

    def enter(self, headers: Mapping[str, str], address: str, scope: Scope) -> Caller:
        """Admit a request; `leave` ends it.

        Raises:
            ApiError: 401, 403, 429.
        """
        caller = self._identify(headers, address)
        if self._limiter is not None and not caller.unlimited:
            who = f"key {caller.name}" if caller.key else f"address {caller.client}"
            caller.headers = take(self._limiter, caller.client, who)
        self._callers.add(caller)
        if caller.key is not None and not caller.key.allows(scope):
            self.leave(caller)
            raise ApiError(403, f"key {caller.name} has not the scope {scope!r} that this needs; it has "
                                f"{', '.join(sorted(caller.key.scopes))}", code="missing_scope")
        return caller

    def leave(self, caller: Caller) -> None:
        """The request has ended."""
        if caller in self._callers:
            self._callers.remove(caller)
            if self._limiter is not None and not caller.unlimited:
                self._limiter.give_back(caller.client)

    def unlimited(self, address: str) -> bool:
        """Whether an address is exempt from limits: no key is needed, and it is this machine's."""
        return self.open and is_loopback(address)

    def name(self, headers: Mapping[str, str]) -> str:
        """The name in metrics of a refused client: that of a known key, also a revoked one, else ""."""
        key = self._ring.match(_shown(headers)) if self._ring is not None else None
        return key.name if key else ""

    async def hold_back(self, address: str) -> None:
        """Delay a refusal of a client that was refused often within this second."""
        second, client = int(time.monotonic()), client_address(address)
        if second != self._second:
            self._second, self._refusals = second, {}
        self._refusals[client] = self._refusals.get(client, 0) + 1
        if self._refusals[client] > _PROMPT_REFUSALS:
            await asyncio.sleep(_DELAY_SECONDS)

    async def monitor_keys(self) -> None:
        """End requests whose key is revoked. Never returns."""
        while True:
            await asyncio.sleep(REVOKED_SECONDS / 2)
            self.end_revoked()

    def end_revoked(self) -> None:
        """End requests whose key has been revoked. An expired key's responses are finished."""
        if self._ring is None:
            return
        now = {key.id: key for key in self._ring.all()}
        for caller in self._callers:
            if caller.key is not None and ((key := now.get(caller.key.id)) is None or key.revoked is not None):
                caller.revoked.set()

    @property
    def open(self) -> bool:
        """Whether no key is needed."""
        return self._ring is None or not (self._closed or self._ring.needed)

    def _identify(self, headers: Mapping[str, str], address: str) -> Caller:
        shown = _shown(headers)
        source = client_address(address)
        if self._ring is None or self.open:
            return Caller(source, "", shown, address, {}, unlimited=self.unlimited(address))
        try:
            key = _valid_key(self._ring, shown)
        except ApiError:
            if self._limiter is not None:  # guesses count against the limits of their address
                take(self._limiter, source, f"address {source}")
                self._limiter.give_back(source)
            raise
        return Caller(key.id, key.name, shown, address, {}, key)


def _shown(headers: Mapping[str, str]) -> str:
    """The key as it was sent: Anthropic's SDKs have a header of their own for it."""
    return shown_in(headers.get("authorization", "")) or headers.get("x-api-key", "").strip()


def _valid_key(ring: KeyRing, shown: str) -> Key:
    if not shown:
        raise ApiError(401, "missing bearer token", code="missing_api_key")
    key = ring.match(shown)
    if key is None:
        raise ApiError(401, "invalid api key", code="invalid_api_key")
    if why := key.dead():
        raise ApiError(401, f"this api key ({key.name}) {why}", code="invalid_api_key")
    return key
