"""The key file: digests of bearer keys, written by `openclaw-rl keys` and read by the entrypoints."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from openclaw_rl.config import ConfigError
from openclaw_rl.rpc.auth.keys.key import Key, check_name, check_scopes, new_key
from openclaw_rl.runtime.home import write_atomically
from openclaw_rl.runtime.json import parse_json

_FORMAT = 1


class KeyFileError(ConfigError):
    """The file can't be used, or a change of it is not possible; the text says why and what to do."""


class KeyFile:
    """Keys on disk: JSON, mode 0600, changed by one process at a time and replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Key]:
        """All keys, revoked ones too; none when there is no file.

        Raises:
            KeyFileError: it is damaged, can't be read, another user's, or others may write it.
        """
        try:
            with open(self.path, "rb") as file:
                facts = os.fstat(file.fileno())
                if facts.st_uid not in (0, os.geteuid()):
                    raise KeyFileError(f"{self.path} belongs to user {facts.st_uid}, who could add keys of their own: "
                                       f"chown {os.geteuid()} {self.path}")
                if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    raise KeyFileError(f"{self.path} can be written by others than its owner, who could add keys of "
                                       f"their own: chmod 600 {self.path}")
                data = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise KeyFileError(f"{self.path} can't be read: {error.strerror}") from None
        try:
            content = parse_json(data)
            if content["format"] != _FORMAT:
                raise KeyFileError(f"{self.path} has format {content['format']!r}, and this version of openclaw-rl "
                                   f"knows {_FORMAT} only")
            keys = [_key(entry) for entry in content["keys"]]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise KeyFileError(f"{self.path} is damaged: restore it, or remove it and make new keys with "
                               "`openclaw-rl keys add`") from None
        if len({key.id for key in keys}) < len(keys):
            raise KeyFileError(f"{self.path} is damaged: an id is there twice")
        return keys

    def add(self, name: str, scopes: Iterable[str], expires: float | None = None) -> tuple[str, Key]:
        """Make a key and keep its digest. See `new_key`.

        Raises:
            KeyFileError: there is a good key of that name, or the file can't be used.
            ValueError: a name or scope that is not allowed.
        """
        shown, key = new_key(name, scopes, expires)

        def change(keys: list[Key]) -> list[Key]:
            if any(other.name == name and not other.dead() for other in keys):
                raise KeyFileError(f"there is a key named {name!r} already: choose another name, or give it a new key "
                                   f"with `openclaw-rl keys rotate {name}`")
            return [*keys, key]

        self._change(change)
        return shown, key

    def revoke(self, name: str) -> list[Key]:
        """Revoke the good keys of a name (or id).

        Returns:
            Them, as they are now.

        Raises:
            KeyFileError: there is none, or the file can't be used.
        """
        found: list[Key] = []

        def change(keys: list[Key]) -> list[Key]:
            found.extend(replace(key, revoked=time.time()) for key in _good(keys, name, self.path))
            return _replaced(keys, found)

        self._change(change)
        return found

    def rotate(self, name: str, keep: float = 0.0) -> tuple[str, Key]:
        """Give a name a new key with the same scopes and, when it expires, as long a life as the old one had.

        Args:
            keep: seconds for which the old key stays good.

        Raises:
            KeyFileError: there is no good key of that name, or the file can't be used.
        """
        made: list[tuple[str, Key]] = []

        def change(keys: list[Key]) -> list[Key]:
            good = _good(keys, name, self.path)
            newest = good[-1]
            life = None if newest.expires is None else newest.expires - newest.created
            now = time.time()
            made.append(new_key(newest.name, newest.scopes, None if life is None else now + life))
            old = [replace(key, expires=min(key.expires or now + keep, now + keep)) if keep > 0
                   else replace(key, revoked=now) for key in good]
            return [*_replaced(keys, old), made[0][1]]

        self._change(change)
        return made[0]

    def _change(self, change: Callable[[list[Key]], list[Key]]) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _alone(self.path):
                keys = change(self.read())
                content = {"format": _FORMAT, "keys": [_entry(key) for key in keys]}
                write_atomically(self.path, json.dumps(content, indent=1).encode())  # 0600, as mkstemp makes files
        except OSError as error:
            raise KeyFileError(f"{self.path} can't be written: {error.strerror}") from None


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Two commands at once must not lose each other's change."""
    fd = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _good(keys: list[Key], name: str, path: Path) -> list[Key]:
    good = [key for key in keys if name in (key.name, key.id) and not key.dead()]
    if not good:
        names = ", ".join(sorted({key.name for key in keys if not key.dead()})) or "none"
        raise KeyFileError(f"there is no key named {name!r} in {path} that could be used; there are: {names}")
    return good


def _replaced(keys: list[Key], by: Iterable[Key]) -> list[Key]:
    new = {key.id: key for key in by}
    return [new.get(key.id, key) for key in keys]


def _entry(key: Key) -> dict[str, Any]:
    times = {"created": key.created, "expires": key.expires, "revoked": key.revoked}
    return {"id": key.id, "name": key.name, "sha256": key.digest.hex(), "scopes": sorted(key.scopes),
            **{name: datetime.fromtimestamp(at, UTC).isoformat() for name, at in times.items() if at is not None}}


def _key(entry: dict[str, Any]) -> Key:
    def at(name: str) -> float | None:
        return None if entry.get(name) is None else datetime.fromisoformat(entry[name]).timestamp()

    digest, created = bytes.fromhex(entry["sha256"]), at("created")
    if len(digest) != 32 or created is None or not isinstance(entry["id"], str):
        raise ValueError("no digest, id or time")
    return Key(entry["id"], check_name(entry["name"]), digest, check_scopes(entry["scopes"]), created, at("expires"),
               at("revoked"))
