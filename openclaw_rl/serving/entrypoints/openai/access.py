"""Who comes in: keys, scopes and limits of the HTTP door."""

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

#: Seconds after which a revoked key's running responses are ended at the latest.
REVOKED_SECONDS = 1.0
#: Refusals in a second that a client gets at once; further ones come late, so that being refused costs it time.
_PROMPT_REFUSALS, _LATE_SECONDS = 20, 0.5


@dataclass(eq=False, slots=True)
class Caller:
    """One request that was let in."""

    client: str  #: who shares limits and a place in the queue: a key's id, or an address
    name: str  #: for people and metrics: the key's name, or "" without one
    shown: str  #: what the client showed as its key, needed or not; for the client's digest only
    address: str
    headers: dict[str, str]  #: for the response
    key: Key | None = None
    free: bool = False  #: without limits
    ended: asyncio.Event = field(default_factory=asyncio.Event)  #: the key has been revoked


class Access:
    """The rules of a door.

    Args:
        ring: keys; None: there are none, and everybody may come in.
        limits: per key, or per address where none is needed; None: none. Who needs no key and is on this machine has
            none: nobody else is there to be starved.
        closed: a key is needed even if there is none yet, for a door on a network.
    """

    def __init__(self, ring: KeyRing | None = None, limits: LimitsConfig | None = None, closed: bool = False) -> None:
        self.limits = limits or LimitsConfig()
        self._ring, self._closed = ring, closed
        self._limiter = None if limits is None else Limiter(limits)
        self._visits: set[Caller] = set()
        self._refusals: dict[str, int] = {}  # in this second, by client
        self._second = 0

    def enter(self, headers: Mapping[str, str], address: str, scope: Scope) -> Caller:
        """Let a request in, or not. `leave` ends the visit.

        Raises:
            ApiError: 401, 403, 429.
        """
        visit = self._visitor(headers, address)
        if self._limiter is not None and not visit.free:
            who = f"key {visit.name}" if visit.key else f"address {visit.client}"
            visit.headers = take(self._limiter, visit.client, who)
        self._visits.add(visit)
        if visit.key is not None and not visit.key.allows(scope):
            self.leave(visit)
            raise ApiError(403, f"key {visit.name} has not the scope {scope!r} that this needs; it has "
                                f"{', '.join(sorted(visit.key.scopes))}", code="missing_scope")
        return visit

    def leave(self, visit: Caller) -> None:
        """The request has ended."""
        if visit in self._visits:
            self._visits.remove(visit)
            if self._limiter is not None and not visit.free:
                self._limiter.give_back(visit.client)

    def free(self, address: str) -> bool:
        """Whether an address has no limits: no key is needed, and it is this machine's."""
        return self._open() and is_loopback(address)

    def name(self, headers: Mapping[str, str]) -> str:
        """What metrics call a client that was refused: the name of a key that there is or was, else ""."""
        key = self._ring.match(shown_in(headers.get("authorization", ""))) if self._ring is not None else None
        return key.name if key else ""

    async def hold_back(self, address: str) -> None:
        """Wait before a refusal is told, when the client has had many in this second."""
        second, client = int(time.monotonic()), client_address(address)
        if second != self._second:
            self._second, self._refusals = second, {}
        self._refusals[client] = self._refusals.get(client, 0) + 1
        if self._refusals[client] > _PROMPT_REFUSALS:
            await asyncio.sleep(_LATE_SECONDS)

    async def watch(self) -> None:
        """End the visits whose key has been revoked, until cancelled."""
        while True:
            await asyncio.sleep(REVOKED_SECONDS / 2)
            self.end_revoked()

    def end_revoked(self) -> None:
        """Once. Expiry is another thing: a response that began in time is finished."""
        if self._ring is None:
            return
        now = {key.id: key for key in self._ring.all()}
        for visit in self._visits:
            if visit.key is not None and ((key := now.get(visit.key.id)) is None or key.revoked is not None):
                visit.ended.set()

    def _open(self) -> bool:
        return self._ring is None or not (self._closed or self._ring.needed)

    def _visitor(self, headers: Mapping[str, str], address: str) -> Caller:
        shown = shown_in(headers.get("authorization", ""))
        place = client_address(address)
        if self._ring is None or self._open():
            return Caller(place, "", shown, address, {}, free=self.free(address))
        try:
            key = _good(self._ring, shown)
        except ApiError:
            if self._limiter is not None:  # who guesses, or has not noticed, uses up what its address has
                self._limiter.take(place, f"address {place}")
                self._limiter.give_back(place)
            raise
        return Caller(key.id, key.name, shown, address, {}, key)


def _good(ring: KeyRing, shown: str) -> Key:
    if not shown:
        raise ApiError(401, "missing bearer token", code="missing_api_key")
    key = ring.match(shown)
    if key is None:
        raise ApiError(401, "invalid api key", code="invalid_api_key")
    if why := key.dead():
        raise ApiError(401, f"this api key ({key.name}) {why}", code="invalid_api_key")
    return key
