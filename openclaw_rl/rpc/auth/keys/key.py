"""A bearer key's record: everything but the key itself."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

Scope = Literal["chat", "read", "admin"]
#: What a key can open: chat (requests to the policy, feedback), read (models, metrics, state), admin (all of it, and
#: what changes the mesh).
SCOPES: tuple[Scope, ...] = get_args(Scope)

#: Keys begin with it, so that a person, or a scanner of repositories, knows one.
PREFIX = "ocl_"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Key:
    """A key by its digest. Times are seconds since the epoch."""

    id: str  #: for ever one key's, also when another one gets its name
    name: str  #: what people, logs and metrics call it
    digest: bytes  #: SHA-256 of the key
    scopes: frozenset[Scope]
    created: float
    expires: float | None = None
    revoked: float | None = None

    def allows(self, scope: Scope) -> bool:
        """Whether the key opens what `scope` stands for; admin opens everything."""
        return scope in self.scopes or "admin" in self.scopes

    def dead(self, at: float | None = None) -> str:
        """Why the key is no good (any more), a clause; empty while it is good."""
        at = time.time() if at is None else at
        if self.revoked is not None and self.revoked <= at:
            return "has been revoked"
        if self.expires is not None and self.expires <= at:
            return "has expired"
        return ""


def digest(shown: str) -> bytes:
    """What is kept of a key. A plain SHA-256 is enough, and is what makes a look-up cheap: slow, salted hashes protect
    what people choose and can be guessed; there is nothing to guess among 2**256 random keys."""
    return hashlib.sha256(shown.encode("utf-8", "surrogateescape")).digest()


def new_key(name: str, scopes: Iterable[str], expires: float | None = None) -> tuple[str, Key]:
    """Make a key of 256 random bits.

    Returns:
        The key, which is shown once and kept nowhere, and what is kept of it.

    Raises:
        ValueError: a name or scope that is not allowed.
    """
    shown = PREFIX + secrets.token_urlsafe(32)
    return shown, Key("key_" + secrets.token_hex(6), check_name(name), digest(shown), check_scopes(scopes),
                      float(int(time.time())), expires)


def check_name(name: str) -> str:
    """Names stand in metrics and tables.

    Raises:
        ValueError: it can't.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"name: {name!r} is not allowed: 1 to 64 letters, digits, dots, dashes or underscores, the "
                         "first a letter or digit")
    return name


def check_scopes(scopes: Iterable[str]) -> frozenset[Scope]:
    """Raises:
        ValueError: none, or an unknown one.
    """
    given = set(scopes)
    known = frozenset(scope for scope in SCOPES if scope in given)
    if not given or given - known:
        wrong = ", ".join(map(repr, sorted(given - known))) or "none"
        raise ValueError(f"scope: {wrong} is not allowed: at least one of {', '.join(SCOPES)}")
    return known


def shown_in(authorization: str) -> str:
    """The key in an Authorization header or metadata, `Bearer KEY`; empty when there is none."""
    scheme, _, shown = authorization.partition(" ")
    return shown.strip() if scheme.lower() == "bearer" else ""
