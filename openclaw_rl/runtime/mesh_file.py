"""The mesh file, run/mesh.yaml in a home: addresses of the components of a mesh on several hosts.

`distributed-start` writes it to every host, `mesh join` to any other machine; it is read again whenever it has changed,
so that a component that moved is found without a restart of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from openclaw_rl.config import Config, ConfigError
from openclaw_rl.runtime.home import Home, write_atomically
from openclaw_rl.runtime.reloading import reread_when_changed

_HEAD = b"# Where the components of this mesh are. Written by `openclaw-rl distributed-start` or `mesh join`.\n"


@dataclass(frozen=True)
class Cluster:
    """Access to the cluster that runs the components; on the head and on the machine that started the mesh only."""

    mesh: str  #: the mesh's name, and its namespace in Ray
    address: str  #: HOST:PORT of Ray's head
    ours: bool  #: we brought Ray up, so we end it
    head: str  #: host of Ray's head and of the controller
    hosts: list[str]  #: all hosts of the mesh
    certs: str = ""  #: folder on the head with the certificates for a Ray of ours


@dataclass(frozen=True)
class MeshFile:
    """Content of a mesh file.

    Attributes:
        config: the mesh's configuration; each component that runs has an `address`.
        http_address: http(s)://HOST:PORT of the policy server.
        hosts: host by component.
    """

    config: Config
    http_address: str = ""
    hosts: dict[str, str] = field(default_factory=dict)
    cluster: Cluster | None = None

    def address(self, component: str) -> str | None:
        """HOST:PORT of a component's gRPC server."""
        address: str | None = getattr(self.config.components, component).address
        return address

    @property
    def addresses(self) -> dict[str, str]:
        """HOST:PORT by component."""
        return self.config.components.addresses()

    def dump(self) -> bytes:
        """The file's content."""
        data: dict[str, Any] = {"http_address": self.http_address, "hosts": self.hosts,
                                "config": self.config.model_dump(mode="json", exclude_defaults=True)}
        if self.cluster is not None:
            data["cluster"] = self.cluster.__dict__
        text: str = yaml.safe_dump(data, sort_keys=False)
        return _HEAD + text.encode()


def parse(text: bytes, where: str) -> MeshFile:
    """The mesh file in `text`.

    Raises:
        ConfigError: it is none; `where` names it in the text.
    """
    try:
        data = yaml.safe_load(text)
        return MeshFile(Config.model_validate(data["config"]), str(data["http_address"]),
                        {str(name): str(host) for name, host in data["hosts"].items()},
                        Cluster(**data["cluster"]) if "cluster" in data else None)
    except (yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{where} is damaged ({' '.join(str(error).split())[:200]}): repeat the `openclaw-rl "
                          "distributed-start` or `mesh join` that wrote it, or remove it") from None


def path(home: Home) -> Path:
    """Path of the mesh file."""
    return home.run / "mesh.yaml"


def read(home: Home) -> MeshFile | None:
    """The home's mesh file; None when it has none.

    Raises:
        ConfigError: it can't be used.
    """
    file = path(home)
    try:
        return _read(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{file} can't be read: {error.strerror or error}") from None


@reread_when_changed
def _read(file: Path) -> MeshFile:
    return parse(file.read_bytes(), str(file))


def write(home: Home, mesh: MeshFile) -> None:
    """Write it, atomically; only its owner may read it."""
    write_atomically(path(home), mesh.dump())


def remove(home: Home) -> None:
    """Remove the mesh file."""
    path(home).unlink(missing_ok=True)
