"""Bearer keys that an entrypoint accepts: those of the key file, the configuration and the environment."""

from __future__ import annotations

import hmac
import logging
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from openclaw_rl.config import Config
from openclaw_rl.rpc.auth.keys.key import Key, Scope, digest
from openclaw_rl.rpc.auth.keys.store import KeyFile, KeyFileError
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.reloading import Reloading

logger = logging.getLogger(__name__)

#: Scopes of a key that has none of its own: one of the configuration or of OPENCLAW_RL_API_KEYS.
_PLAIN_SCOPES: frozenset[Scope] = frozenset({"chat", "read"})


class KeyRing:
    """Finds a key among all. May be used from several threads.

    The file is looked at (one `stat`) at each call, so that a change holds from the next request on. While it can't be
    used, or is gone, the keys that were read last go on to hold, and `problem` says so: neither shall a damaged file
    lock everybody out, nor a deleted one open the door.
    """

    def __init__(self, path: Path | None = None, fixed: Iterable[Key] = ()) -> None:
        """
        Args:
            path: of the file; None: there are only the fixed keys.
            fixed: keys that don't change.

        Raises:
            KeyFileError: the file is there and can't be used.
        """
        self._path = path
        self._there = False  # there was a file
        self._fixed = tuple(fixed)
        self._keys = Reloading(f"the keys in {path}", () if path is None else (path,), self._read, KeyFileError)

    @classmethod
    def of(cls, config: Config, home: Home, environ: Mapping[str, str] = os.environ) -> KeyRing:
        """The ring of a mesh: the keys of `security.keys` (keys.json in the home), of policy_server.api_keys (named
        config-1, ...) and of OPENCLAW_RL_API_KEYS (env-1, ...); the latter two with the scopes chat and read.

        Raises:
            KeyFileError: the file is there and can't be used.
        """
        return cls(key_path(config, home), [
            *_plain("config", config.components.policy_server.api_keys),
            *_plain("env", environ.get("OPENCLAW_RL_API_KEYS", "").split(","))])

    @property
    def needed(self) -> bool:
        """Whether there is any key, also one that is revoked or has expired: revoking the last one opens no door."""
        return bool(self.all())

    def find(self, shown: str) -> Key | None:
        """The good key that somebody shows, else None. Takes the same time whatever is shown."""
        key = self.match(shown)
        return None if key is None or key.dead() else key

    def match(self, shown: str) -> Key | None:
        """The key that somebody shows, also one that is no good any more (see `Key.dead`): its holder may be told."""
        known = digest(shown)
        found: Key | None = None
        for key in self.all():  # all of them, so that time tells nothing
            if hmac.compare_digest(known, key.digest):
                found = key
        return found

    def all(self) -> list[Key]:
        """Every key, also those that are no good any more."""
        return [*self._keys.value(), *self._fixed]

    @property
    def problem(self) -> str:
        """What is wrong with the file, for a person; empty when nothing is."""
        problem = self._keys.problem
        return problem and f"{problem} (until then the keys that were read before hold)"

    def _read(self) -> tuple[Key, ...]:
        if self._path is None:
            return ()
        if self._there and not self._path.exists():
            raise KeyFileError(f"{self._path} is gone: restore it, or make new keys with `openclaw-rl keys add`")
        keys = tuple(KeyFile(self._path).read())
        self._there = self._path.exists()
        return keys


def key_path(config: Config, home: Home) -> Path:
    """Where the keys' file of a mesh is."""
    return home.root / "keys.json" if config.security.keys is None else config.security.keys.expanduser()


def _plain(source: str, shown: Iterable[str]) -> list[Key]:
    given = [text.strip() for text in shown if text.strip()]
    return [Key(f"{source}-{i}", f"{source}-{i}", digest(text), _PLAIN_SCOPES, time.time())
            for i, text in enumerate(given, 1)]
