"""A mesh's certificates, and servers and clients that use them, without process-wide state."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc

from openclaw_rl.config import LimitsConfig
from openclaw_rl.rpc.auth import ca
from openclaw_rl.rpc.auth.certificates import ROLES, parse_all
from openclaw_rl.rpc.auth.keys import KeyRing
from openclaw_rl.rpc.auth.tls import Credentials
from openclaw_rl.rpc.server import ComponentServer
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.runtime import Ambient, activated
from openclaw_rl.v1 import component_pb2 as pb
from openclaw_rl.v1 import judge_pb2_grpc

JUDGE = "openclaw_rl.v1.JudgeService"


def make_certs(folder: Path, mesh: str = "", roles: tuple[str, ...] = ROLES) -> Path:
    """A CA and the certificates of all roles."""
    ca.make_authority(folder, mesh)
    for role in roles:
        ca.issue(folder, role)
    return folder


def reissue(folder: Path, role: str, begins: float, ends: float) -> None:
    """Give a role a certificate that is valid between so many days from now."""
    now = datetime.datetime.now(datetime.UTC)
    validity = now + datetime.timedelta(days=begins), now + datetime.timedelta(days=ends)
    signed = ca.sign(folder, ca.new_request(folder, role), role, validity=validity)
    ca.install(folder, role, signed, (folder / "ca.crt").read_bytes())


def serial(folder: Path, role: str) -> int:
    """Tells certificates apart."""
    return parse_all((folder / f"{role}.crt").read_bytes(), "it")[0].serial_number


@contextmanager
def acting(credentials: Credentials | None) -> Iterator[None]:
    """Servers and channels made here have these meanwhile."""
    with activated(Ambient(credentials=credentials, identified=True)):
        yield


@asynccontextmanager
async def secure_server(folder: Path, home: Home, servicer: Any, role: str = "prm_judge",
                        keys: KeyRing | None = None, limits: LimitsConfig | None = None,
                        add: Any = judge_pb2_grpc.add_JudgeServiceServicer_to_server, service: str = JUDGE
                        ) -> AsyncIterator[ComponentServer]:
    """A component's server with TLS, and with a port for keys when there are some."""
    server = ComponentServer(role, "127.0.0.1", 0, home, lambda: pb.ComponentStatus(state=pb.COMPONENT_STATE_RUNNING))
    server.add(add, servicer, service)
    with acting(Credentials(folder, role, keys=keys, keys_port=None if keys is None else 0, limits=limits)):
        await server.start()
    try:
        yield server
    finally:
        await server.stop(0)


def details(error: grpc.aio.AioRpcError) -> str:
    """What gRPC says of a failed call."""
    return error.details() or ""
