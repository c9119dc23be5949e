"""The escape tests once more, by a user who is not root."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from openclaw_rl.rollouts.sandboxes.bubblewrap.backend import Bubblewrap

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_holds_for_an_ordinary_user(bubblewrap: Bubblewrap, open_folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("the other tests ran as one")
    user = ["setpriv", "--reuid", "23456", "--regid", "23456", "--clear-groups"]
    python = next((path for path in (shutil.which("python3", path="/usr/bin:/usr/local/bin"),) if path), "")
    environment = {"HOME": str(open_folder), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    open_folder.chmod(0o777)
    # Only what a sandbox needs, where that user can read it.
    for part in ("openclaw_rl/rollouts/sandboxes", "tests/rollouts/sandboxes"):
        shutil.copytree(ROOT / part, open_folder / part,
                        ignore=shutil.ignore_patterns("__pycache__", "test_*", "conftest*"))
    (open_folder / "openclaw_rl/runtime").mkdir()
    shutil.copy(ROOT / "openclaw_rl/runtime/rejection.py", open_folder / "openclaw_rl/runtime")
    for package in ("openclaw_rl", "openclaw_rl/rollouts", "openclaw_rl/runtime", "tests", "tests/rollouts"):
        (open_folder / package / "__init__.py").touch()
    subprocess.run(["chmod", "-R", "a+rX", str(open_folder)], check=True)
    command = [*user, python, "-m", "tests.rollouts.sandboxes.escapes"]
    if subprocess.run([*user, python, "-c", "import sys; assert sys.version_info >= (3, 11)"], check=False,
                      capture_output=True).returncode != 0:
        pytest.skip("that user has no Python 3.11")
    done = subprocess.run(command, cwd=open_folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = done.stdout.splitlines()[2:]
    assert len(rows) > 50 and "ESCAPED" not in done.stdout
    assert all(row.split(" | ")[2].startswith(("refused", "contained", "partly")) for row in rows), done.stdout
