"""Checks, tests, builds and processes of the clients and servers in other languages."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.required import left_out
from tests.support.waiting import until

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
        (CLIENTS / "typescript", "npm run --silent lint && npm test --silent"),
        (SERVERS / "environment_typescript", "npm run --silent lint && npm test --silent")]),
    "java": ("mvn", [(SERVERS / "trainer_java", "mvn -q -B -f reactor.xml package")]),
    "rust": ("cargo", [
        (CLIENTS / "rust", "cargo fmt --all --check && cargo clippy -q --workspace --all-features --all-targets -- "
                           "-D warnings && cargo test -q --workspace --all-features")]),
}


@functools.cache
def build(language: str) -> None:
    """Build what the tests of a language run, and what they compile themselves; leave the test that asks out where the
    language's tools are missing, or fail it when nothing may be left out."""
    program = CHECKS[language][0]
    if shutil.which(program) is None:
        left_out(f"{program} is missing; the README says which version of {language} is needed")
    shell(ROOT, f"tools/languages {language}")


def shell(folder: Path, command: str, variables: Mapping[str, str] | None = None, seconds: float = 900) -> str:
    """Run a command line that has to succeed."""
    done = subprocess.run(["bash", "-c", command], cwd=folder, env={**os.environ, **(variables or {})},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, f"{folder}: {command}\n{done.stdout[-6000:]}"
    return done.stdout


#: Starts the server of a language, beside its options.
PROGRAMS: dict[str, list[str]] = {
    "go": [str(SERVERS / "judge_go/judge_go")],
    "typescript": ["node", str(SERVERS / "environment_typescript/dist/main.js")],
    "java": ["java", "-jar", str(SERVERS / "trainer_java/target/openclaw-rl-trainer.jar")],
    "rust": [str(CLIENTS / "rust/target/debug/openclaw-rl-policy")],
}


#: Id of the meshes that servers in other languages are part of.
MESH = "mesh-of-languages"


class Foreign:
    """A server in another language, that may be killed and started again.

    Args:
        name: of the component that it is.
        options: of its command line, beside --listen and --data.
    """

    def __init__(self, language: str, name: str, folder: Path, *options: str, **variables: str) -> None:
        build(language)
        self.name, self._env = name, {**os.environ, "OPENCLAW_RL_MESH": MESH, **variables}
        self._command = [*PROGRAMS[language], "--data", str(folder / f"{name}-data"), *options]
        self.log = folder / f"{name}.log"
        self.address = "127.0.0.1:0"
        self.start()

    def start(self) -> None:
        """Start it where it was before, and wait until it serves."""
        with self.log.open("w") as log:
            self._process = subprocess.Popen([*self._command, "--listen", self.address], stdout=log, stderr=log,
                                             env=self._env)
        self.address = self._says(rf"{self.name} serves gRPC on (\S+)")

    def http_address(self) -> str:
        """http://HOST:PORT, of a policy server."""
        return self._says(rf"{self.name} serves HTTP on (\S+)")

    def kill(self) -> None:
        """As `kill -9`."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """As its operator does; it has to end well."""
        self._process.terminate()
        try:
            code = self._process.wait(30)
        finally:
            self.kill()
        assert code == 0, f"{self.name} ended with {code}: {self.log.read_text()[-3000:]}"

    def _says(self, pattern: str) -> str:
        def said() -> re.Match[str] | None:
            assert self._process.poll() is None, self.log.read_text()[-3000:]
            return re.search(pattern, self.log.read_text())

        return str(until(said, 60, f"{self.name}: {pattern}")[1])
