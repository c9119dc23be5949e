"""The first command of the README: what it does with a path and with a Python that can't be used."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose environment is made: its command shows where it is started, and with what."""
    checkout = tmp_path / "a checkout"
    (checkout / "tools").mkdir(parents=True)
    (checkout / "tools" / "start").write_text((ROOT / "tools" / "start").read_text())
    (checkout / "tools" / "environment").write_text("exit 0\n")
    command = checkout / ".venv" / "bin" / "openclaw-rl"
    command.parent.mkdir(parents=True)
    command.write_text('#!/bin/sh\npwd\nprintf "%s|" "$@"\n')
    command.chmod(0o755)
    return checkout


def test_paths_are_taken_from_where_the_user_stands(checkout: Path, tmp_path: Path) -> None:
    done = subprocess.run(["bash", str(checkout / "tools" / "start"), "-c", "my config.yaml"], cwd=tmp_path, text=True,
                          capture_output=True, timeout=60, check=True)
    assert done.stdout.splitlines()[1:] == [str(tmp_path), "local-start|-c|my config.yaml|"]


@pytest.mark.parametrize(("python", "why"), [("/bin/false", "it does not start"), ("nonesuch", "it does not start"),
                                             ("OLD", "it is Python 3.9.1")])
def test_a_python_that_cannot_be_used(python: str, why: str, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text('#!/bin/sh\n[ "$1" = -V ] && echo Python 3.9.1 || exit 1\n')
    old.chmod(0o755)
    python = str(old) if python == "OLD" else python
    done = subprocess.run(["bash", str(ROOT / "tools" / "environment"), "embedded"], text=True, capture_output=True,
                          env=os.environ | {"PYTHON": python}, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == (f"error: PYTHON={python} can't be used: Python 3.11 or newer is needed, and {why}\n")
