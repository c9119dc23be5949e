"""How the clients and servers in other languages are checked, tested, built and run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.mesh.mesh import until
from tests.support.required import left_out

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
        left_out(why)


def shell(folder: Path, command: str, variables: Mapping[str, str] | None = None, seconds: float = 900) -> str:
    """Run a command line that has to succeed."""
    done = subprocess.run(["bash", "-c", command], cwd=folder, env={**os.environ, **(variables or {})},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, f"{folder}: {command}\n{done.stdout[-6000:]}"
    return done.stdout


#: Builds the server of a language; what is started then, beside its options.
BUILDS: dict[str, tuple[list[Command], list[str]]] = {
    "go": ([(SERVERS / "judge_go", "go build -o judge_go .")], [str(SERVERS / "judge_go/judge_go")]),
    "typescript": ([(CLIENTS / "typescript", "npm ci --silent && npm run --silent build"),
                    (SERVERS / "environment_typescript", "npm ci --silent && npm run --silent build")],
                   ["node", str(SERVERS / "environment_typescript/dist/main.js")]),
    "java": ([(SERVERS / "trainer_java", "mvn -q -B -Dmaven.test.skip=true -f reactor.xml package")],
             ["java", "-jar", str(SERVERS / "trainer_java/target/openclaw-rl-trainer.jar")]),
    "rust": ([(CLIENTS / "rust", "cargo build -q -p openclaw-rl-policy")],
             [str(CLIENTS / "rust/target/debug/openclaw-rl-policy")]),
}


class Foreign:
    """A server in another language, that may be killed and started again.

    Args:
        name: of the component that it is.
        options: of its command line, beside --listen and --data.
    """

    def __init__(self, language: str, name: str, folder: Path, *options: str, **variables: str) -> None:
        needs(language)
        commands, program = BUILDS[language]
        for where, command in commands:
            shell(where, command)
        self.name, self._env = name, {**os.environ, **variables}
        self._command = [*program, "--data", str(folder / f"{name}-data"), *options]
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
