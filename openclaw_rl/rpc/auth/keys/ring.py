"""The keys that a door takes: those of the file, as it is now, and those of configuration and environment."""

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

log = logging.getLogger(__name__)

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
        self.problem = ""  #: what is wrong with the file, for a person; empty when nothing is
        self._file = None if path is None else KeyFile(path)
        self._fixed = tuple(fixed)
        self._keys: tuple[Key, ...] = ()
        self._state = self._stat()
        self._keys = self._read()

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
        self.refresh()
        return bool(self._keys or self._fixed)

    def find(self, shown: str) -> Key | None:
        """The good key that somebody shows, else None. Takes the same time whatever is shown."""
        key = self.match(shown)
        return None if key is None or key.dead() else key

    def match(self, shown: str) -> Key | None:
        """The key that somebody shows, also one that is no good any more (see `Key.dead`): its holder may be told."""
        self.refresh()
        known = digest(shown)
        found: Key | None = None
        for key in (*self._keys, *self._fixed):  # all of them, so that time tells nothing
            if hmac.compare_digest(known, key.digest):
                found = key
        return found

    def all(self) -> list[Key]:
        """Every key, also those that are no good any more."""
        self.refresh()
        return [*self._keys, *self._fixed]

    def refresh(self) -> None:
        """Read the file again when it has changed."""
        state = self._stat()
        if state == self._state:
            return
        self._state = state
        if state is None:
            self.problem = (f"{self._path} is gone: the keys that were in it hold until a restart; restore it, or "
                            "make new keys with `openclaw-rl keys add`")
            log.error("%s", self.problem)
            return
        try:
            self._keys = self._read()
        except KeyFileError as error:
            self.problem = f"{error} (until then the keys that were read before hold)"
            log.error("%s", self.problem)
        else:
            self.problem = ""
            log.info("%s was read again: %d keys", self._path, len(self._keys))

    @property
    def _path(self) -> Path | None:
        return None if self._file is None else self._file.path

    def _read(self) -> tuple[Key, ...]:
        return () if self._file is None else tuple(self._file.read())

    def _stat(self) -> tuple[int, ...] | None:
        """What changes with the file; None without one."""
        if self._file is None:
            return None
        try:
            found = os.stat(self._file.path)
        except OSError:
            return None
        return (found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode)


def key_path(config: Config, home: Home) -> Path:
    """Where the keys' file of a mesh is."""
    return home.root / "keys.json" if config.security.keys is None else config.security.keys.expanduser()


def _plain(source: str, shown: Iterable[str]) -> list[Key]:
    given = [text.strip() for text in shown if text.strip()]
    return [Key(f"{source}-{i}", f"{source}-{i}", digest(text), _PLAIN_SCOPES, time.time())
            for i, text in enumerate(given, 1)]
