"""The folder of a mesh: `~/.openclaw-rl`, or the one that OPENCLAW_RL_HOME names."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openclaw_rl.runtime import private

logger = logging.getLogger(__name__)

#: The four components, in the order of the ring.
COMPONENTS = ("policy_server", "env_server", "prm_judge", "trainer")


#: Names by one of which an existing folder is known as a home.
_KNOWN = {"run", "logs", "models", "certs", "config.yaml", "keys.json", *COMPONENTS}


@dataclass(frozen=True)
class Home:
    """The folder of one mesh. Two meshes on one machine have two of them."""

    root: Path

    @classmethod
    def default(cls) -> Home:
        """The folder of OPENCLAW_RL_HOME, or `~/.openclaw-rl`."""
        return cls(Path(os.environ.get("OPENCLAW_RL_HOME") or Path.home() / ".openclaw-rl").expanduser().absolute())

    @property
    def config_file(self) -> Path:
        return self.root / "config.yaml"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def run(self) -> Path:
        """Records of what is running: one JSON file per component, the supervisor's files."""
        return self.root / "run"

    @property
    def certs(self) -> Path:
        """Certificates and their private keys; see openclaw_rl/rpc/auth/SECURITY.md."""
        return self.root / "certs"

    @property
    def models(self) -> Path:
        return self.root / "models"

    def component(self, name: str) -> Path:
        """The folder for a component's own state."""
        return self.root / name

    def create(self) -> Home:
        """Make the folders, which only their owner can enter.

        Raises:
            private.NotPrivate: the folder exists, others can enter it, and that can't be changed.
            OSError: the folder can't be made or written (read-only, full, a file of that name).
        """
        self.root.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            self.root.mkdir(mode=0o700)
        private.close(self.root, _KNOWN)
        for folder in (self.logs, self.run, self.models):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self

    def try_writing(self) -> None:
        """Make the folders and write a file, which goes again.

        Raises:
            OSError: the folder can't be made or written.
        """
        self.create()
        probe = self.run / f".probe-{os.getpid()}"
        probe.write_bytes(b"x" * 4096)
        probe.unlink()


@dataclass(frozen=True)
class RunRecord:
    """Name, process and addresses of a running component, for the others."""

    name: str
    pid: int
    address: str  #: gRPC, HOST:PORT
    http_address: str = ""  #: http://HOST:PORT, policy server only


def write_record(home: Home, record: RunRecord) -> None:
    """Write a component's record, atomically."""
    write_atomically(home.run / f"{record.name}.json", json.dumps(record.__dict__).encode())


def read_record(home: Home, name: str) -> RunRecord | None:
    """Read the record of `name`; None without a readable one."""
    try:
        data: dict[str, Any] = json.loads((home.run / f"{name}.json").read_text())
        return RunRecord(name=name, pid=int(data["pid"]), address=str(data["address"]),
                         http_address=str(data.get("http_address", "")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remove_record(home: Home, name: str) -> None:
    """Remove a component's record."""
    (home.run / f"{name}.json").unlink(missing_ok=True)


def make_way(path: Path) -> None:
    """Move a folder that stands where a file of ours belongs out of the way, to `NAME.foreign-TIME`."""
    if path.is_dir() and not path.is_symlink():
        aside = path.with_name(f"{path.name}.foreign-{time.strftime('%Y%m%dT%H%M%S')}")
        os.rename(path, aside)
        logger.error("%s is a folder where a file belongs; it was moved to %s", path, aside)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    make_way(path)
    fd, tmp = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        os.replace(tmp, path)
    except BaseException:
        Path(tmp).unlink(missing_ok=True)
        raise
