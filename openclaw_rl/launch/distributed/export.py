"""The access file, by which another machine can use the mesh: addresses of its components, its CA, and a
certificate of an operator."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from openclaw_rl.config import Config, ConfigError
from openclaw_rl.launch.supervisor import Supervisor
from openclaw_rl.rpc import membership
from openclaw_rl.rpc.auth import ca
from openclaw_rl.runtime import identity, mesh_file
from openclaw_rl.runtime.home import COMPONENTS, Home, write_atomically
from openclaw_rl.runtime.mesh_file import MeshFile

_HEAD = ("# Access to a mesh as its operator, written by `openclaw-rl mesh export`: keep it secret, and give it to\n"
         "# `openclaw-rl mesh join FILE` on the machine that shall use the mesh.\n")


def export(home: Home, path: Path) -> None:
    """Write the file; only its owner may read it.

    Raises:
        ConfigError: no mesh of several hosts runs here, it has no certificates, or the file can't be written.
    """
    mesh = mesh_file.read(home)
    if mesh is None:
        raise ConfigError(f"no mesh on several hosts was started from {home.root}; `openclaw-rl distributed-start` "
                          "starts one, and a mesh on one machine is used there")
    folder = identity.certificates_folder(mesh.config, home)
    try:
        certs = {name: (folder / name).read_text() for name in ("ca.crt", "operator.crt", "operator.key")}
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}; `openclaw-rl certs` makes an operator's certificate "
                          "where the mesh was started") from None
    bare = _bare(mesh.config).model_copy(update={"mesh_id": membership.id_of(home)})
    passed = MeshFile(bare, mesh.http_address, mesh.hosts)
    text = _HEAD + yaml.safe_dump({"mesh": passed.dump().decode(), "certificates": certs}, sort_keys=False)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error.strerror}") from None


def _bare(config: Config) -> Config:
    """Addresses, and what a client must know of the encryption; nothing else."""
    components: dict[str, dict[str, Any]] = {
        name: {"address": section.address, "enabled": section.enabled} for name in COMPONENTS
        if (section := getattr(config.components, name))}
    components["trainer"]["policy_servers"] = config.components.trainer.policy_servers
    return Config.model_validate({
        "mode": config.mode, "security": {"tls": config.security.tls, "http_tls": config.security.http_tls},
        "components": components})


def join(home: Home, path: Path) -> MeshFile:
    """Let this machine's commands use the mesh.

    Raises:
        ConfigError: the file is none, or the home is in use by another mesh.
    """
    try:
        data = yaml.safe_load(path.read_bytes())
        text, certs = data["mesh"].encode(), data["certificates"]
        wanted = {name: str(certs[name]) for name in ("ca.crt", "operator.crt", "operator.key")}
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{path} is no file of `openclaw-rl mesh export`") from None
    mesh = mesh_file.parse(text, str(path))
    there = mesh_file.read(home)
    if there is not None and there.cluster is not None:
        raise ConfigError(f"a mesh was started from {home.root}: set OPENCLAW_RL_HOME to another folder")
    if Supervisor(home).running():
        raise ConfigError(f"a mesh runs in {home.root}: `openclaw-rl stop-all` first, or set OPENCLAW_RL_HOME to "
                          "another folder")
    if ca.can_sign(home.certs) and (home.certs / "ca.crt").read_text() != wanted["ca.crt"]:
        raise ConfigError(f"{home.certs} has a CA of its own, which joining would replace: set OPENCLAW_RL_HOME to "
                          "another folder")
    try:
        home.create()
        home.certs.mkdir(mode=0o700, exist_ok=True)
        for name, content in wanted.items():
            write_atomically(home.certs / name, content.encode())
        mesh_file.write(home, mesh)
    except OSError as error:
        raise ConfigError(f"{home.root} can't be written: {error.strerror}") from None
    return mesh


def leave(home: Home) -> bool:
    """Forget a mesh that was joined; False when there is none.

    Raises:
        ConfigError: it was started from here.
    """
    mesh = mesh_file.read(home)
    if mesh is None:
        return False
    if mesh.cluster is not None:
        raise ConfigError("this mesh was started from here; `openclaw-rl stop-all` ends it")
    mesh_file.remove(home)
    if not ca.can_sign(home.certs):
        for name in ("operator.key", "operator.crt", "ca.crt"):
            (home.certs / name).unlink(missing_ok=True)
    return True
