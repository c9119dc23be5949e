"""Checks of authentication over TLS."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import grpc

from openclaw_rl.conformance.context import Context
from openclaw_rl.conformance.frame import Need, check
from openclaw_rl.rpc.auth.certificates import server_name

_WHERE = "rpc/auth/SECURITY.md: Who may do what"


@check("component.secure.certificate", "Over TLS, callers without a certificate of the mesh, or in plain text, are "
                                       "rejected.", where=_WHERE, needs=[Need.CERTS])
async def certificate(kit: Context) -> None:
    authority = (Path(kit.certs or "") / "ca.crt").read_bytes()
    options = [("grpc.ssl_target_name_override", server_name(kit.service.component))]
    for what, channel in (("a call in plain text", grpc.aio.insecure_channel(kit.address)),
                          ("a call without a certificate", grpc.aio.secure_channel(
                              kit.address, grpc.ssl_channel_credentials(authority), options=options))):
        async with channel:
            await kit.refused(kit.unary("ComponentService/GetStatus", channel=channel), grpc.StatusCode.UNAVAILABLE,
                              grpc.StatusCode.UNAUTHENTICATED, what=what)


@check("component.secure.role", "Over TLS the stream into a component is open to its predecessor only: other members "
                                "of the mesh are rejected with PERMISSION_DENIED.", where=_WHERE, needs=[Need.CERTS])
async def role(kit: Context) -> None:
    method = kit.service.ring or "SyncWeights"
    call = kit.stream(method, channel=kit.channel, timeout=kit.deadline)
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # it may have been refused before
        await call.done_writing()
    found = await kit.refused(_answer(call), grpc.StatusCode.PERMISSION_DENIED,
                              what=f"{method} with the operator's certificate")
    kit.expect(found.ours, f"{method} with the operator's certificate was refused without ErrorInfo")


async def _answer(call: Any) -> str:
    answer = await call.read()
    return "" if answer is grpc.aio.EOF else str(answer)
