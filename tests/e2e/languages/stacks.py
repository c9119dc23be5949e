"""How the clients and servers in other languages are checked, tested and built."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CLIENTS, SERVERS = ROOT / "clients", ROOT / "servers"
Command = tuple[Path, str]

#: By language: the program that it takes, and what to do in which folder. A client's own tests are run with the
#: variables of `peers`; a server's are in what follows.
CHECKS: dict[str, tuple[str, list[Command]]] = {
    "go": ("go", [
        (CLIENTS / "go", 'test -z "$(gofmt -l .)" && go vet ./... && go test -race -count=1 .'),
        (SERVERS / "judge_go", 'test -z "$(gofmt -l .)" && go vet ./... && go test -count=1 ./...')]),
    "typescript": ("npm", [
        (CLIENTS / "typescript", "npm ci --silent && npm run --silent lint && npm test --silent"),
        (SERVERS / "environment_typescript", "npm ci --silent && npm run --silent lint && npm test --silent")]),
    "java": ("mvn", [(SERVERS / "trainer_java", "mvn -q -B -f reactor.xml package")]),
    "rust": ("cargo", [
        (CLIENTS / "rust", "cargo fmt --all --check && cargo clippy -q --workspace --all-features --all-targets -- "
                           "-D warnings && cargo test -q --workspace --all-features")]),
}


def needs(language: str) -> None:
    """Leave a test out where the language's tools are missing, or fail when nothing may be left out."""
    program = CHECKS[language][0]
    if shutil.which(program) is None:
        why = f"{program} is missing; the README says which version of {language} is needed"
        if os.environ.get("OPENCLAW_RL_TEST_REQUIRE") == "all":
            pytest.fail(f"{why} (OPENCLAW_RL_TEST_REQUIRE=all)")
        pytest.skip(why)


def shell(folder: Path, command: str, variables: Mapping[str, str] | None = None, seconds: float = 900) -> str:
    """Run a command line that has to succeed."""
    done = subprocess.run(["bash", "-c", command], cwd=folder, env={**os.environ, **(variables or {})},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, f"{folder}: {command}\n{done.stdout[-6000:]}"
    return done.stdout
