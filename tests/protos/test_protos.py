"""The contracts are linted, formatted, compatible with main's, and what was generated of them is fresh."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REQUIRED = os.environ.get("OPENCLAW_RL_TEST_REQUIRE") == "all"


def left_out(why: str) -> None:
    """Skip, or fail when nothing may be left out."""
    if REQUIRED:
        pytest.fail(f"{why} (OPENCLAW_RL_TEST_REQUIRE=all)")
    pytest.skip(why)


@pytest.fixture(scope="module")
def generators() -> Path:
    """Folder of buf and protoc, made by tools/generate on first use."""
    loader = importlib.machinery.SourceFileLoader("generate", str(ROOT / "tools/generate"))
    spec = importlib.util.spec_from_loader("generate", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    try:
        folder: Path = module.environment()
    except (subprocess.CalledProcessError, OSError) as error:
        left_out(f"the generators of tools/generate can't be installed: {error}")
        raise
    return folder


def run(*command: str | Path) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_generated_code_is_fresh(generators: Path) -> None:
    run(ROOT / "tools/generate", "--check")


def test_lint(generators: Path) -> None:
    run(generators / "buf", "lint", "protos")


def test_format(generators: Path) -> None:
    run(generators / "buf", "format", "--diff", "--exit-code", "protos")


def test_nothing_breaks_main(generators: Path) -> None:
    for ref in ("refs/remotes/origin/main", "refs/heads/main"):
        known = subprocess.run(["git", "rev-parse", "--verify", "--quiet", f"{ref}:protos/buf.yaml"], cwd=ROOT,
                               capture_output=True, check=False)
        if known.returncode == 0:
            run(generators / "buf", "breaking", "protos", "--against", f".git#ref={ref},subdir=protos")
            return
    left_out("git knows no main branch to compare the contracts with")
