"""Every RPC of every component with every certificate and every sort of key, over TLS: the table of roles and scopes,
and nothing beside it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from openclaw_rl.rpc.auth.authorize import TABLE
from openclaw_rl.rpc.auth.certificates import ROLES
from openclaw_rl.rpc.auth.keys import KeyFile, KeyRing
from openclaw_rl.rpc.auth.tls import Credentials, OutsideCredentials
from openclaw_rl.rpc.channel import connect, with_true_status
from openclaw_rl.rpc.errors import from_rpc_error
from openclaw_rl.runtime.home import COMPONENTS, Home
from openclaw_rl.v1 import environment_pb2_grpc, judge_pb2_grpc, policy_pb2_grpc, trainer_pb2_grpc
from tests.rpc.auth.certs import make_certs, secure_server

#: Component -> the service of its own, with handlers that answer UNIMPLEMENTED to whom is let in.
SERVICES: dict[str, tuple[str, Any, Any]] = {
    "policy_server": ("PolicyService", policy_pb2_grpc.add_PolicyServiceServicer_to_server,
                      policy_pb2_grpc.PolicyServiceServicer()),
    "env_server": ("EnvironmentService", environment_pb2_grpc.add_EnvironmentServiceServicer_to_server,
                   environment_pb2_grpc.EnvironmentServiceServicer()),
    "prm_judge": ("JudgeService", judge_pb2_grpc.add_JudgeServiceServicer_to_server,
                  judge_pb2_grpc.JudgeServiceServicer()),
    "trainer": ("TrainerService", trainer_pb2_grpc.add_TrainerServiceServicer_to_server,
                trainer_pb2_grpc.TrainerServiceServicer())}
#: Scopes of a key -> scopes that it opens.
OPENS = {"chat": {"chat"}, "read": {"read"}, "admin": {"chat", "read", "admin"}, "chat,read": {"chat", "read"}}
REFUSALS = {"NO_CREDENTIALS", "UNKNOWN_KEY", "FOREIGN_MESH", "WRONG_ROLE", "WRONG_SCOPE"}


async def refusal(channel: grpc.aio.Channel, path: str) -> str:
    """Why a call is not let in; "" when it is, whatever becomes of it then."""
    call = with_true_status(channel.stream_stream(path)(iter([b""]), timeout=60))
    try:
        async for _ in call:
            call.cancel()
            return ""
    except grpc.aio.AioRpcError as error:
        reason = from_rpc_error(error).reason
        assert error.code() is not grpc.StatusCode.UNAVAILABLE, error.details()
        return reason if reason in REFUSALS else ""
    return ""


async def refusals(address: str, credentials: Any, paths: list[str]) -> dict[str, str]:
    async with connect(address, "", credentials) as channel:
        return dict(zip(paths, await asyncio.gather(*(refusal(channel, path) for path in paths)), strict=True))


@pytest.mark.parametrize("component", COMPONENTS)
async def test_the_table_and_nothing_beside_it(component: str, tmp_path: Path) -> None:
    certs, file = make_certs(tmp_path / "certs", "acme"), KeyFile(tmp_path / "keys.json")
    ca = (certs / "ca.crt").read_bytes()
    shown = {scopes: file.add(scopes.replace(",", "-"), scopes.split(","))[0] for scopes in OPENS}
    bad = {"NO_CREDENTIALS": "", "UNKNOWN_KEY": "sk-guessed"}
    expired, revoked = file.add("expired", ["admin"], time.time() + 0.01)[0], file.add("revoked", ["admin"])[0]
    file.revoke("revoked")
    service, add, servicer = SERVICES[component]
    paths = [path for path in TABLE if path.split("/")[1].endswith((f".{service}", ".ComponentService"))]
    paths += [f"/openclaw_rl.v1.{service}/Nope", "/openclaw_rl.v1.Nope/Nope"]
    async with secure_server(certs, Home(tmp_path).create(), servicer, component, keys=KeyRing(file.path), add=add,
                             service=f"openclaw_rl.v1.{service}") as server:
        for role in ROLES:
            found = await refusals(server.address, Credentials(certs, role), paths)
            let_in = {path for path in paths if path in TABLE and role in TABLE[path].roles}
            assert {path for path in TABLE if found.get(path) == ""} == let_in, role
            assert {found[path] for path in TABLE if path in found} <= {"", "WRONG_ROLE"}
        for scopes, key in shown.items():
            found = await refusals(server.keys_address, OutsideCredentials(key, ca), paths)
            let_in = {path for path in paths if path in TABLE and TABLE[path].scope in OPENS[scopes]}
            assert {path for path in TABLE if found.get(path) == ""} == let_in, scopes
            assert {found[path] for path in TABLE if path in found} <= {"", "WRONG_SCOPE"}
        for reason, key in (*bad.items(), ("UNKNOWN_KEY", expired), ("UNKNOWN_KEY", revoked)):
            found = await refusals(server.keys_address, OutsideCredentials(key, ca), paths)
            assert {found[path] for path in paths if path in TABLE} == {reason}, key
