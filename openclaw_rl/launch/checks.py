"""Checks before a start, so that nothing is started in vain."""

from __future__ import annotations

import contextlib
import logging
import shutil
import socket
from collections.abc import Iterator

import psutil

from openclaw_rl.config import Config
from openclaw_rl.models.api_endpoints import uses_api
from openclaw_rl.runtime import identity
from openclaw_rl.runtime.home import COMPONENTS, Home
from openclaw_rl.runtime.lock import machine_lock
from openclaw_rl.runtime.private import NotPrivate

logger = logging.getLogger(__name__)

#: Free bytes that a mesh needs at the least: logs and records, and, when it trains, some versions of the weights.
_NEEDED_BYTES = 200 * 2**20
_NEEDED_BYTES_TRAINING = 2 * 2**30


class StartError(Exception):
    """The mesh can't be started; the text says why and what to do.

    Attributes:
        shown: it was shown to the user already, before what was started was ended.
    """

    shown = False


def started_here(config: Config) -> list[str]:
    """The components that this machine is to run: enabled ones without an address of their own."""
    return [name for name in COMPONENTS
            if getattr(config.components, name).enabled and not getattr(config.components, name).address]


def check_home(home: Home, config: Config) -> None:
    """The folder can be written, has room, and only its owner can read it.

    Raises:
        StartError: it can't, hasn't, or others can.
    """
    try:
        home.try_writing()
    except NotPrivate as error:
        raise StartError(f"{home.root} can't be used: {error.strerror}") from None
    except OSError as error:
        raise StartError(f"{home.root} can't be written: {error.strerror or error}; "
                         "set OPENCLAW_RL_HOME to a folder that can") from None
    free, needed = shutil.disk_usage(home.root).free, needed_bytes(config)
    if free < needed:
        raise StartError(f"{home.root} has {free / 2**20:.0f} MB free and needs {needed / 2**20:.0f} MB; make room, or "
                         "set OPENCLAW_RL_HOME to a folder on another disk")


def needed_bytes(config: Config) -> int:
    """Return the free bytes that a mesh needs on its disk at the least."""
    return _NEEDED_BYTES if uses_api(config.components.policy_server) else _NEEDED_BYTES_TRAINING


def check_packages(config: Config) -> None:
    """The embedded engine's packages are installed.

    Raises:
        StartError: they are not.
    """
    from importlib.util import find_spec

    if uses_api(config.components.policy_server):
        return
    check_engine(config)
    missing = [name for name in ("torch", "transformers", "safetensors", "tokenizers") if find_spec(name) is None]
    if missing:
        raise StartError(f"the embedded model needs packages that are not installed ({', '.join(missing)}): "
                         "pip install 'openclaw-rl[embedded]'")


def check_trainer(config: Config, home: Home) -> str:
    """The trainer's back end can run on this machine, and fits the model.

    Returns:
        How it will be laid out, for a person; empty when there is nothing to choose.

    Raises:
        StartError: it can't or doesn't.
    """
    from openclaw_rl.training.backends.megatron import plan

    if problems := plan.check_trainer(config, home):
        raise StartError("\n".join(problems))
    return plan.describe_trainer(config, home)


def check_engine(config: Config) -> None:
    """SGLang is installed where it was asked for, and its settings can be.

    Raises:
        StartError: one line for each problem.
    """
    policy = config.components.policy_server
    if policy.address or not (policy.engine == "sglang" or policy.sglang.tool_parser or policy.sglang.reasoning_parser):
        return
    from openclaw_rl.serving.engines.factory import validate_settings

    if found := validate_settings(policy):
        raise StartError("\n".join(found))


def check_certificates(home: Home, config: Config, names: list[str]) -> None:
    """The certificates of the components that are to be started, and of `operator`, are there and can be used, where
    the mesh needs some.

    Raises:
        ConfigError: one is not, or the mesh is to be open to the network without; the text says what to do.
    """
    if identity.wanted(config):
        from openclaw_rl.rpc.auth import tls

        for role in (*names, "operator"):
            tls.credentials(config, home, role)


def check_entrypoint(home: Home, config: Config, names: list[str]) -> None:
    """The policy server's HTTP entrypoint is closed to strangers, and its keys and certificate can be used.

    Raises:
        ConfigError: they can't, or it is on a network without a key or HTTPS; the text says what to do.
    """
    if "policy_server" in names:
        from openclaw_rl.serving.entrypoints.openai.entrypoint import check_keys, https_certificate

        check_keys(config, home)
        https_certificate(config, home)


def check_ports(config: Config, names: list[str]) -> None:
    """The ports of the components that are to be started are free, and no two components want the same.

    Raises:
        StartError: one is not; the text names the key and, where it can be seen, who has it.
    """
    problems = []
    wanted: dict[int, str] = {}  # on all hosts: two that differ may be one address
    for name in started_here(config):
        section = getattr(config.components, name)
        for key in ("port", "grpc_port"):
            port = getattr(section, key, 0)
            if not port:
                continue
            if port in wanted:
                problems.append(f"components.{name}.{key}: {port} is {wanted[port]} too; set another port, or 0 for "
                                "any free one")
                continue
            wanted[port] = f"components.{name}.{key}"
            if name in names and (error := bind_error(section.host, port)):
                problems.append(f"components.{name}.{key}: {section.host}:{port} {error}{owner(port)}; "
                                "set another port, or 0 for any free one")
    if problems:
        raise StartError("\n".join(problems))


@contextlib.contextmanager
def held_ports(config: Config, names: list[str]) -> Iterator[None]:
    """Keep other meshes that are started at this moment from the same ports, until ours listens on them: both would
    find them free.

    Raises:
        StartError: another one is doing so.
    """
    with contextlib.ExitStack() as held:
        for name in names:
            section = getattr(config.components, name)
            for key in ("port", "grpc_port"):
                port = getattr(section, key, 0)
                if not port:
                    continue
                if (lock := machine_lock(f"port {port}")) is None:
                    raise StartError(f"components.{name}.{key}: {section.host}:{port} is taken by another mesh, which "
                                     "is starting at this moment; set another port, or 0 for any free one")
                held.enter_context(lock)
        yield


def bind_error(host: str, port: int) -> str | None:
    """The reason why nothing can listen there, such as "is in use"; None when it can."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        in_use = error.errno is not None and "in use" in (error.strerror or "").lower()
        return "is in use" if in_use else f"can't be used ({error.strerror or error})"
    return None


def owner(port: int) -> str:
    """" by pid N (name)", or nothing when it can't be seen."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f" by pid {connection.pid} ({psutil.Process(connection.pid).name()})"
    return ""
