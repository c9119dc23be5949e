"""A handle on the mesh under test, as a user at its command line has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from openclaw_rl.config import EMBEDDED_MODEL
from openclaw_rl.runtime.home import Home, RunRecord, read_record
from openclaw_rl.runtime.process import all_processes
from openclaw_rl.runtime.supervision import START_VARIABLE
from tests.support import quick_cli
from tests.support.gate import LENIENT_GATE
from tests.support.waiting import until

#: Commands that ask or tell a running mesh something, often again and again until it is so.
_ASKING = {"status", "turns", "trace", "versions", "episodes", "environments", "logs", "set-aside", "rollback", "pin",
           "unpin", "pause", "resume", "train-now", "forget"}


class Mesh:
    def __init__(self, home: Home, env: dict[str, str] | None = None) -> None:
        self.home = home
        self.env = {**os.environ, "OPENCLAW_RL_HOME": str(home.root), START_VARIABLE: "1", **(env or {})}

    def command(self, *args: str, text: str | None = None, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        asking = args[:1] and args[0] in _ASKING
        program = quick_cli.program() if asking else Path(sys.executable).parent / "openclaw-rl"
        return subprocess.run([str(program), *args], env=self.env, text=True, capture_output=True, timeout=timeout,
                              check=False, input=text)

    def cli(self, *args: str) -> str:
        """Run a command that has to succeed."""
        done = self.command(*args)
        assert done.returncode == 0, f"openclaw-rl {' '.join(args)}: {done.stdout}{done.stderr}{self.logs()}"
        return done.stdout

    def json(self, *args: str) -> Any:
        done = self.command(*args, "--json")
        return json.loads(done.stdout)

    def python(self, file: Path, *args: str) -> str:
        """Run a Python program in the mesh's environment that has to succeed."""
        done = subprocess.run([sys.executable, str(file), *args], env=self.env, text=True, capture_output=True,
                              timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def record(self, name: str) -> RunRecord:
        record = read_record(self.home, name)
        assert record is not None, f"{name} is not running\n{self.logs()}"
        return record

    @property
    def url(self) -> str:
        return self.record("policy_server").http_address

    def states(self) -> dict[str, str]:
        return {c["name"]: c["state"] for c in self.json("status")["components"]}

    def all_running(self) -> bool:
        return set(self.states().values()) == {"RUNNING"}

    def settle(self) -> int:
        """Pause training and wait until no version is on its way; the one that answers."""
        self.cli("pause")

        def settled() -> bool:
            trainer = next(c for c in self.json("status")["components"] if c["name"] == "trainer")
            return "paused" in trainer["detail"] and self.json("versions")[-1]["state"] != ""

        until(settled, 300, "training is paused, the newest version active or refused")
        return int(self.json("status")["policy_version"])

    def turns(self, session: str) -> dict[str, dict[str, Any]]:
        """Turns of a session by id, oldest first."""
        return {turn["turn"]: turn for turn in reversed(self.json("turns", "--session", session))}

    def chat(self, messages: list[dict[str, Any]], **fields: Any) -> httpx.Response:
        """One unstreamed request, as curl sends it."""
        headers = fields.pop("headers", {})
        response = httpx.post(f"{self.url}/v1/chat/completions", headers=headers, timeout=120, trust_env=False,
                              json={"messages": messages, "max_tokens": 24, **fields})
        assert response.status_code == 200, response.text
        return response

    def session(self, session: str, *texts: str, done: bool = False) -> list[str]:
        """A conversation of these user messages; the ids of its turns."""
        messages: list[dict[str, Any]] = []
        turns = []
        for i, text in enumerate(texts):
            messages.append({"role": "user", "content": text})
            headers = {"X-Session-Id": session}
            if done and i == len(texts) - 1:
                headers["X-Session-Done"] = "1"
            response = self.chat(messages, headers=headers)
            turns.append(response.headers["x-openclaw-turn-id"])
            messages.append(response.json()["choices"][0]["message"])
        return turns

    def processes(self) -> list[str]:
        """Command lines of all processes of this mesh."""
        found = []
        for process in all_processes():
            try:
                if process.environ().get("OPENCLAW_RL_HOME") == str(self.home.root) and process.pid != os.getpid():
                    found.append(" ".join(process.cmdline()))
            except psutil.Error:
                continue
        return found

    def logs(self) -> str:
        return "".join(f"\n-- {file.name}\n" + "\n".join(file.read_text(errors="replace").splitlines()[-15:])
                       for file in sorted(self.home.logs.glob("*.log")))


#: What is learned in these tests is chance, and their machine may be slow: an alarm about the one or the other, which
#: holds for an hour, would fail whatever test comes next.
_STEADY_TRAINER = {"max_staleness": 1000, "watch": {"enabled": False}}


def make_home(root: Path, model: Path, components: dict[str, Any], **sections: Any) -> Home:
    """A home with a model in the embedded one's place, and a configuration of these components and sections."""
    home = Home(root).create()
    (home.models / EMBEDDED_MODEL).symlink_to(model)
    components = {**components, "trainer": {**_STEADY_TRAINER, **components.get("trainer", {})}}
    home.config_file.write_text(yaml.safe_dump({"components": components, **sections}))
    return home


@contextmanager
def running(mesh: Mesh, *options: str) -> Iterator[Mesh]:
    """Start a mesh; nothing is left of it afterwards, also when it does not start."""
    try:
        mesh.cli("local-start", *options)
        yield mesh
    finally:
        mesh.cli("stop-all")
    left = mesh.processes()
    assert not left, f"stop-all left {left}"
    assert not list(mesh.home.run.glob("*.json"))


@contextmanager
def running_mesh(root: Path, model: Path) -> Iterator[Mesh]:
    """A mesh with a model, all ports free ones."""
    home = make_home(root, model, {
        "policy_server": {"port": 0, "grpc_port": 0, "max_tokens": 48},
        "env_server": {"port": 0, "episodes": {"max_tokens": 24, "timeout": 120}},
        "prm_judge": {"port": 0}, "trainer": {"port": 0, "min_samples": 4, "update_interval": 1,
                                              "gate": LENIENT_GATE, "grpo": {"group_timeout": 120}}})
    with running(Mesh(home)) as mesh:
        yield mesh
