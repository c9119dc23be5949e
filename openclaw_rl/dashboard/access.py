"""Access control of the dashboard.

    reads   figures, states, versions          this machine's own people; a key with scope read or admin; the start link
    words   what users said: turns, logs, ...  this machine's own people; a key with scope admin; the start link
    acts    roll back, pin, pause, ...         a key with scope admin; the start link

"This machine's own people" connect from loopback to a dashboard that listens there, and is known by no other name
(`dashboard.names`): where it is, a proxy connects from loopback too, whatever name and headers it passes on. The start
link, which `openclaw-rl dashboard` prints and opens, holds a token of that start: who has it runs the command line of
this machine and may do all of this there. A session is a signed cookie; the key behind it is looked up at every use,
so that a revoked one is out at once.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from openclaw_rl.config.security import LimitsConfig
from openclaw_rl.rpc.auth.keys import Key, KeyRing
from openclaw_rl.rpc.limits import Limiter
from openclaw_rl.runtime.identity import is_loopback
from openclaw_rl.runtime.json import parse_json
from openclaw_rl.serving.entrypoints.openai.errors import ApiError
from openclaw_rl.serving.entrypoints.openai.limits import take
from openclaw_rl.serving.entrypoints.openai.listener import client_address

logger = logging.getLogger(__name__)

#: Seconds that a session lasts.
SESSION_SECONDS = 7 * 86400
#: Wrong keys or tokens that one address may try in a minute.
GUESSES = 10
#: Sessions that were ended by their reader before their time, kept in mind.
_ENDED = 10_000
_TOKEN = "token"


class NotAllowed(Exception):
    """The reader may not do this; the text says what is needed."""


@dataclass
class Session:
    """What a cookie says: who signed in, until when."""

    who: str  #: id of a key, or "token"
    number: str
    ends: float


@dataclass
class Visitor:
    """Somebody at a page. What they may do is looked up each time, for a page stays open for long."""

    access: Access
    local: bool
    session: Session | None = None

    @property
    def reads(self) -> bool:
        """Figures, states, versions."""
        return self.local or self.admin or ((key := self._key) is not None and key.allows("read"))

    @property
    def words(self) -> bool:
        """What users, tools and models said."""
        return self.local or self.admin

    @property
    def acts(self) -> bool:
        """Change something in the mesh."""
        return self.admin

    @property
    def admin(self) -> bool:
        session = self.session
        if session is None or not self.access.holds(session):
            return False
        return session.who == _TOKEN or ((key := self._key) is not None and key.allows("admin"))

    @property
    def name(self) -> str:
        """What to call them: a key's name, "token" for the start link, else empty."""
        if self.session is None or not self.access.holds(self.session):
            return ""
        return _TOKEN if self.session.who == _TOKEN else key.name if (key := self._key) else ""

    def require_acts(self) -> None:
        """Call it right before acting.

        Raises:
            NotAllowed: they may not.
        """
        if not self.acts:
            raise NotAllowed("this action requires an admin key: sign in")

    @property
    def _key(self) -> Key | None:
        if self.session is None or not self.access.holds(self.session):
            return None
        return self.access.key(self.session.who)


@dataclass
class Access:
    """The rules.

    Args:
        ring: the mesh's keys.
        loopback: the dashboard listens on loopback only.
        secret: signs the cookies.
        clock: seconds since the epoch.
        ended: a file that keeps which sessions were ended by their readers, so that a restart brings none back.
    """

    ring: KeyRing
    loopback: bool
    secret: bytes
    clock: Callable[[], float] = time.time
    ended: Path | None = None
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    def __post_init__(self) -> None:
        self._limiter = Limiter(LimitsConfig(requests_per_minute=GUESSES))
        self._ended: OrderedDict[str, float] = OrderedDict()  # number, and when it would have ended
        if self.ended is not None and self.ended.exists():
            try:
                self._ended.update({str(number): float(ends) for number, ends in parse_json(self.ended.read_text())})
            except (OSError, ValueError, TypeError) as error:  # nobody can tell who signed out: all must sign in again
                logger.warning("cannot read %s (%s): all dashboard sessions end", self.ended, error)
                self.secret = secrets.token_bytes(32)

    def visitor(self, cookie: str, address: str, proxied: bool = False, host: str = "") -> Visitor:
        """Who sends a request.

        Args:
            cookie: the session's, or empty.
            address: where the connection comes from.
            proxied: a proxy stands between, or may.
            host: what the request calls us, without the port: a proxy's name is none of this machine's people.
        """
        local = self.loopback and not proxied and is_loopback(address) and is_loopback(host)
        return Visitor(self, local, self.session(cookie))

    def sign_in(self, shown: str, address: str) -> str:
        """The cookie of a new session for a key or the start link's token.

        Raises:
            ApiError: it opens nothing here: 401, or 429 where too many that don't were tried.
        """
        place = client_address(address)
        if hmac.compare_digest(hashlib.sha256(shown.encode("utf-8", "surrogateescape")).digest(),
                               hashlib.sha256(self.token.encode()).digest()):
            return self._cookie(_TOKEN)
        key = self.ring.find(shown)
        if key is None or not key.allows("read"):
            # Only what fails counts: behind a proxy all have one address, and nobody may lock the others out.
            take(self._limiter, place, f"address {place}")
            self._limiter.give_back(place)
            logger.warning("invalid dashboard key from %s", place)
            raise ApiError(401, "invalid key", code="invalid_api_key")
        logger.info("dashboard sign-in with key %s from %s", key.name, place)
        return self._cookie(key.id)

    def sign_out(self, cookie: str) -> None:
        """End a session for good."""
        if (session := self.session(cookie)) is not None:
            self._ended[session.number] = session.ends
            for number in [number for number, ends in self._ended.items() if ends < self.clock()]:
                del self._ended[number]
            while len(self._ended) > _ENDED:
                self._ended.popitem(last=False)
            self._keep_ended()

    def _keep_ended(self) -> None:
        if self.ended is None:
            return
        made = self.ended.with_name(self.ended.name + ".new")
        try:
            with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
                json.dump(list(self._ended.items()), out)
            made.replace(self.ended)
        except OSError as error:
            logger.warning("cannot write %s (%s): the session that was ended becomes valid again after a restart",
                           self.ended, error.strerror)

    def session(self, cookie: str) -> Session | None:
        """The session of a cookie; None when we didn't make it, or it is over."""
        body, _, signature = cookie.partition(".")
        if not hmac.compare_digest(self._sign(body).encode(), signature.encode("utf-8", "surrogateescape")):
            return None
        try:
            data = parse_json(base64.urlsafe_b64decode(body))
            session = Session(str(data["who"]), str(data["number"]), float(data["ends"]))
        except (ValueError, KeyError, TypeError):
            return None
        return session if self.holds(session) else None

    def holds(self, session: Session) -> bool:
        """The session isn't over."""
        return session.ends > self.clock() and session.number not in self._ended

    def key(self, identity: str) -> Key | None:
        """A key by its id, as long as it is good."""
        return next((key for key in self.ring.all() if key.id == identity and not key.dead()), None)

    def _cookie(self, who: str) -> str:
        data = {"who": who, "number": secrets.token_hex(8), "ends": self.clock() + SESSION_SECONDS}
        body = base64.urlsafe_b64encode(json.dumps(data).encode()).decode()
        return f"{body}.{self._sign(body)}"

    def _sign(self, body: str) -> str:
        return hmac.new(self.secret, body.encode("utf-8", "surrogateescape"), "sha256").hexdigest()


def secret_in(folder: Path) -> bytes:
    """The secret that signs cookies, kept so that a restart ends no session; a new one when it can't be read."""
    file = folder / "secret"
    try:
        found = file.read_bytes()
        if len(found) == 32 and not file.stat().st_mode & 0o077:
            return found
    except OSError:
        pass
    made = secrets.token_bytes(32)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(made)
    except OSError as error:
        logger.warning("cannot write %s (%s): dashboard sessions will not survive a restart", file, error.strerror)
    return made


def visitor() -> Visitor:
    """Who looks at the page that is being built or updated."""
    from nicegui import ui

    found = ui.context.client.request.state.visitor
    assert isinstance(found, Visitor)
    return found


__all__ = ["GUESSES", "SESSION_SECONDS", "Access", "ApiError", "NotAllowed", "Session", "Visitor", "secret_in",
           "visitor"]
