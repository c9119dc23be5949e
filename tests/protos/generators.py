"""tools/generate and what it is made of, for tests."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.required import left_out

ROOT = Path(__file__).parents[2]


def module(name: str) -> Any:
    """A module of tools/generation."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module(f"generation.{name}")
    finally:
        sys.path.pop(0)


def bin_folder() -> Path:
    """Where buf and protoc are; made on first use."""
    try:
        folder: Path = module("pinned").environment()
    except (subprocess.CalledProcessError, OSError) as error:
        left_out(f"the generators of tools/generate can't be installed: {error}")
        raise
    return folder
