"""The tests' stand-in for a started command line says the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import quick_cli


def run(program: Path, *arguments: str, home: Path, text: str = "") -> tuple[int, str, str]:
    done = subprocess.run([program, *arguments], input=text, capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, "OPENCLAW_RL_HOME": str(home)})
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("command, code", [("docs --lang zh", 0), ("status --json", 1), ("nosuch", 2)])
def test_it_is_the_real_one(command: str, code: int, tmp_path: Path) -> None:
    stand_in = run(quick_cli.program(), *command.split(), home=tmp_path)
    assert stand_in == run(Path(sys.executable).parent / "openclaw-rl", *command.split(), home=tmp_path)
    assert stand_in[0] == code


def test_it_reads_what_is_piped_in_and_has_its_own_variables(tmp_path: Path) -> None:
    code, _, said = run(quick_cli.program(), "chat", home=tmp_path / "nowhere", text="Hello")
    assert code == 1 and "nothing answers at" in said
