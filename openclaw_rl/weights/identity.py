"""Identity of a trainer: an id that stays with its folder of versions."""

from __future__ import annotations

import re
from pathlib import Path

from openclaw_rl.rpc.messages import new_id
from openclaw_rl.runtime.home import write_atomically

#: Metadata of SyncWeights that names the trainer.
TRAINER_KEY = "openclaw-trainer"
_FILE = "identity"


def identity(root: Path) -> str:
    """The id of the trainer whose versions are below `root`; made the first time, or when its file is damaged.

    Raises:
        OSError: it is not there and can't be written.
    """
    path = root / _FILE
    try:
        known = path.read_text(errors="replace").strip()
        if re.fullmatch(r"trainer_[0-9a-f]{32}", known):
            return known
    except FileNotFoundError:
        pass
    made = new_id("trainer_")
    write_atomically(path, made.encode())
    return made
