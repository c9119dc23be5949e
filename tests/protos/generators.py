"""tools/generate and what it is made of, for tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.required import left_out
from tools.generation.pinned import environment

ROOT = Path(__file__).parents[2]


def bin_folder() -> Path:
    """Where buf and protoc are; made on first use."""
    try:
        return environment()
    except (subprocess.CalledProcessError, OSError) as error:
        left_out(f"the generators of tools/generate can't be installed: {error}")
