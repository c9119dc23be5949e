"""Quarantine of versions in the trainer's folder that it did not make."""

from __future__ import annotations

import os
import time
from pathlib import Path

from openclaw_rl.storage.quarantine_files import delete_oldest

#: Versions that are kept; beyond these the oldest go.
KEEP = 3
FOLDER = "set-aside"


def quarantine_version(root: Path, version: int) -> Path:
    """Move what `root` has of a version, below versions/ and checkpoints/, to set-aside/.

    Raises:
        OSError: it can't be moved.
    """
    place = root / FOLDER / f"version-{version}-{time.strftime('%Y%m%dT%H%M%S')}"
    place.mkdir(parents=True, exist_ok=True)
    for kind in ("versions", "checkpoints"):
        if (root / kind / str(version)).exists():
            os.rename(root / kind / str(version), place / kind)
    delete_oldest((root / FOLDER).iterdir(), KEEP, key=lambda path: path.stat().st_mtime)
    return place
