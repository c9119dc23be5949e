"""Bearer keys of the entrypoints: named, scoped, revocable. See README.md."""

from __future__ import annotations

from openclaw_rl.rpc.auth.keys.key import PREFIX, SCOPES, Key, Scope, new_key, shown_in
from openclaw_rl.rpc.auth.keys.ring import KeyRing
from openclaw_rl.rpc.auth.keys.store import KeyFile, KeyFileError

__all__ = ["PREFIX", "SCOPES", "Key", "KeyFile", "KeyFileError", "KeyRing", "Scope", "new_key", "shown_in"]
