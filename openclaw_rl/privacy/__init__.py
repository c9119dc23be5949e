"""Forgetting a session: what the four components share. See README.md beside this file.

`Target` says what is to go, `Tombstones` remember it for what is still under way, `erase` removes what deleted rows and
set-aside files leave behind.
"""

from openclaw_rl.privacy.target import Target
from openclaw_rl.privacy.tombstones import Tombstones

__all__ = ["Target", "Tombstones"]
