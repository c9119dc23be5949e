"""Who may call what."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from openclaw_rl.config import LimitsConfig
from openclaw_rl.rpc.auth.authorize import TABLE, called_by, caller
from openclaw_rl.rpc.auth.callers import client_digest, client_of
from openclaw_rl.rpc.auth.certificates import ROLES
from openclaw_rl.rpc.auth.keys import KeyFile, KeyRing
from openclaw_rl.rpc.auth.tls import Credentials, OutsideCredentials
from openclaw_rl.rpc.channel import connect
from openclaw_rl.rpc.errors import CATALOGUE, from_rpc_error
from openclaw_rl.rpc.server import ComponentServer
from openclaw_rl.runtime.home import Home
from openclaw_rl.v1 import (
    component_pb2,
    component_pb2_grpc,
    environment_pb2,
    judge_pb2,
    judge_pb2_grpc,
    policy_pb2,
    policy_pb2_grpc,
    trainer_pb2,
)
from tests.rpc.auth.certs import make_certs, secure_server

RPCS = {f"/{service.full_name}/{method.name}"
        for file in (policy_pb2, environment_pb2, judge_pb2, trainer_pb2, component_pb2)
        for service in file.DESCRIPTOR.services_by_name.values() for method in service.methods}


class Judge(judge_pb2_grpc.JudgeServiceServicer):
    async def Judge(self, request: Any, context: Any) -> Any:
        return judge_pb2.JudgeResponse()

    async def JudgeTransitions(self, request_iterator: Any, context: Any) -> Any:
        async for _ in request_iterator:
            yield judge_pb2.JudgeTransitionsResponse()

    async def WatchJudgements(self, request: Any, context: Any) -> Any:
        yield judge_pb2.WatchJudgementsResponse(session_id="s")
        await asyncio.sleep(60)

    async def ListJudgements(self, request: Any, context: Any) -> Any:
        return judge_pb2.ListJudgementsResponse()


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    return make_certs(tmp_path / "certs", "acme")


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.json")


@pytest.fixture
async def server(certs: Path, keys: KeyFile, tmp_path: Path) -> AsyncIterator[ComponentServer]:
    async with secure_server(certs, Home(tmp_path).create(), Judge(), keys=KeyRing(keys.path)) as server:
        yield server


async def call(address: str, credentials: Any, rpc: str) -> str:
    """The reason of the error, "" without one."""
    async with connect(address, "prm_judge", credentials) as channel:
        judge, component = judge_pb2_grpc.JudgeServiceStub(channel), component_pb2_grpc.ComponentServiceStub(channel)
        try:
            if rpc == "JudgeTransitions":
                stream = judge.JudgeTransitions(timeout=10)
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # it may be refused already
                    await stream.write(judge_pb2.JudgeTransitionsRequest())
                assert await stream.read() is not grpc.aio.EOF
            elif rpc == "Health":
                await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
            elif rpc == "Reflection":
                stub = reflection_pb2_grpc.ServerReflectionStub(channel)
                await stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]),
                                                timeout=10).read()
            elif rpc in ("Drain", "GetStatus", "Forget"):
                await getattr(component, rpc)(getattr(component_pb2, f"{rpc}Request")(), timeout=10)
            else:
                await getattr(judge, rpc)(getattr(judge_pb2, f"{rpc}Request")(), timeout=10)
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error).reason
    return ""


def test_every_rpc_of_the_contract_is_in_the_table() -> None:
    assert set(TABLE) == RPCS
    assert all(rule.roles and rule.roles <= set(ROLES) for rule in TABLE.values())


def test_what_only_one_may() -> None:
    def who(rpc: str) -> set[str]:
        return set(TABLE[f"/openclaw_rl.v1.{rpc}"].roles)

    assert who("PolicyService/SyncWeights") == {"trainer"}
    assert who("EnvironmentService/RecordTurns") == {"policy_server"}
    assert who("JudgeService/JudgeTransitions") == {"env_server"}
    assert who("TrainerService/SubmitSamples") == {"prm_judge"}
    assert who("PolicyService/FetchWeights") == who("TrainerService/FetchWeights") == {"policy_server"}
    for rpc in ("SyncWeights", "RecordTurns", "JudgeTransitions", "SubmitSamples", "FetchWeights"):
        assert all(rule.scope is None for name, rule in TABLE.items() if name.endswith(f"/{rpc}")), "no key opens it"
    for name in ("ActivateVersion", "Drain", "Forget", "TrainNow", "Pause", "Resume", "ReadLogs"):
        rule = next(rule for rpc, rule in TABLE.items() if rpc.endswith(f"/{name}"))
        assert "operator" in rule.roles and rule.scope == "admin"


async def test_roles_over_the_wire(server: ComponentServer, certs: Path) -> None:
    allowed = {
        "JudgeTransitions": {"env_server"}, "Judge": {"env_server", "trainer", "operator"},
        "ListJudgements": {"trainer", "operator"}, "GetStatus": set(ROLES), "Health": set(ROLES),
        "Reflection": set(ROLES)}
    for role in ROLES:
        credentials = Credentials(certs, role)
        for rpc, roles in allowed.items():
            assert await call(server.address, credentials, rpc) == ("" if role in roles else "WRONG_ROLE"), (role, rpc)
        if role != "operator":
            assert await call(server.address, credentials, "Drain") == "WRONG_ROLE"
            assert await call(server.address, credentials, "Forget") == "WRONG_ROLE"
    assert not server.stop_requested.is_set()
    assert await call(server.address, Credentials(certs, "operator"), "Drain") == ""
    assert server.stop_requested.is_set()


async def test_an_error_names_who_may_and_who_asked(server: ComponentServer, certs: Path) -> None:
    async with connect(server.address, "prm_judge", Credentials(certs, "trainer")) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await component_pb2_grpc.ComponentServiceStub(channel).Drain(component_pb2.DrainRequest())
    error = from_rpc_error(caught.value)
    assert (error.code, error.reason) == (grpc.StatusCode.PERMISSION_DENIED, "WRONG_ROLE")
    assert error.message == "Drain is for operator; the certificate says trainer" and not error.retryable
    assert CATALOGUE[error.reason][0] is error.code


async def test_a_certificate_of_another_mesh_of_the_same_ca_is_refused(server: ComponentServer, certs: Path,
                                                                       tmp_path: Path) -> None:
    """As when a company's CA signs for several meshes."""
    other = make_certs(tmp_path / "other", "initech", roles=())
    (other / "ca.key").write_bytes((certs / "ca.key").read_bytes())
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    from openclaw_rl.rpc.auth import ca
    from openclaw_rl.rpc.auth.certificates import parse, read_key
    root, key = parse((certs / "ca.crt").read_bytes(), "it"), read_key(certs / "ca.key")
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier("spiffe://initech/env_server"),
                                         x509.DNSName("env_server.openclaw-rl.internal")])
    request = x509.load_pem_x509_csr(ca.new_request(other, "env_server"))
    signed = x509.CertificateBuilder(root.subject, request.subject, request.public_key(), 7, root.not_valid_before_utc,
                                     root.not_valid_after_utc).add_extension(names, critical=False
                                                                             ).sign(key, hashes.SHA256())
    ca.install(other, "env_server", signed.public_bytes(serialization.Encoding.PEM), (certs / "ca.crt").read_bytes())
    for rpc in ("JudgeTransitions", "GetStatus", "Health"):
        assert await call(server.address, Credentials(other, "env_server"), rpc) == "FOREIGN_MESH"


async def test_keys_open_what_their_scopes_say(server: ComponentServer, certs: Path, keys: KeyFile) -> None:
    root = (certs / "ca.crt").read_bytes()
    reasons = {}
    for scope in ("chat", "read", "admin"):
        shown, _ = keys.add(f"one-{scope}", [scope])
        credentials = OutsideCredentials(shown, root)
        for rpc in ("Judge", "ListJudgements", "GetStatus", "Forget", "JudgeTransitions", "Health"):
            reasons[scope, rpc] = await call(server.keys_address, credentials, rpc)
    no = "WRONG_SCOPE"
    assert reasons == {
        ("chat", "Judge"): "", ("chat", "ListJudgements"): no, ("chat", "GetStatus"): no, ("chat", "Forget"): no,
        ("chat", "JudgeTransitions"): no, ("chat", "Health"): "",
        ("read", "Judge"): no, ("read", "ListJudgements"): no, ("read", "GetStatus"): "", ("read", "Forget"): no,
        ("read", "JudgeTransitions"): no, ("read", "Health"): "",
        ("admin", "Judge"): "", ("admin", "ListJudgements"): "", ("admin", "GetStatus"): "",
        ("admin", "Forget"): "UNIMPLEMENTED", ("admin", "JudgeTransitions"): no, ("admin", "Health"): ""}


async def test_no_key_a_wrong_one_and_a_revoked_one(server: ComponentServer, certs: Path, keys: KeyFile) -> None:
    root = (certs / "ca.crt").read_bytes()
    shown, _ = keys.add("ci", ["admin"])
    good = OutsideCredentials(shown, root)
    assert await call(server.keys_address, good, "GetStatus") == ""
    assert await call(server.keys_address, OutsideCredentials(shown[:-1] + "!", root), "GetStatus") == "UNKNOWN_KEY"
    keys.revoke("ci")
    assert await call(server.keys_address, good, "GetStatus") == "UNKNOWN_KEY"
    without = grpc.aio.secure_channel(server.keys_address, grpc.ssl_channel_credentials(root))
    async with without as channel:
        for stub, request in ((component_pb2_grpc.ComponentServiceStub(channel).GetStatus,
                               component_pb2.GetStatusRequest()),
                              (health_pb2_grpc.HealthStub(channel).Check, health_pb2.HealthCheckRequest())):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub(request)
            error = from_rpc_error(caught.value)
            assert error.code is grpc.StatusCode.UNAUTHENTICATED and error.reason == "NO_CREDENTIALS"
            assert "authorization: Bearer KEY" in error.message
    # A key is none at the components' own port, which needs a certificate.
    assert await call(server.address, good, "GetStatus") == "UNAVAILABLE"


async def test_who_may_not_come_in_has_no_message_read(server: ComponentServer, certs: Path) -> None:
    """Not one byte of a request is waited for, or kept, before the caller is known."""
    async with grpc.aio.secure_channel(server.keys_address, grpc.ssl_channel_credentials(
            (certs / "ca.crt").read_bytes())) as channel:
        for make in (channel.stream_unary("/openclaw_rl.v1.ComponentService/GetStatus"),
                     channel.stream_stream("/openclaw_rl.v1.ComponentService/WatchStats")):
            assert await make(timeout=10).code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/openclaw_rl.v1.ComponentService/GetStatus")(bytes(15 * 2**20), timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_call_without_its_message_and_one_that_is_none(server: ComponentServer, certs: Path) -> None:
    credentials, options = Credentials(certs, "operator").channel("prm_judge")
    async with grpc.aio.secure_channel(server.address, credentials, options) as channel:
        nothing = channel.stream_unary("/openclaw_rl.v1.ComponentService/GetStatus")(timeout=10)
        await nothing.done_writing()
        assert await nothing.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/openclaw_rl.v1.ComponentService/ReadLogs")(b"\xff\xff", timeout=10)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_revoking_a_key_ends_its_running_calls(server: ComponentServer, certs: Path, keys: KeyFile) -> None:
    shown, _ = keys.add("watcher", ["admin"])
    credentials = OutsideCredentials(shown, (certs / "ca.crt").read_bytes())
    async with connect(server.keys_address, "prm_judge", credentials) as channel:
        stream = judge_pb2_grpc.JudgeServiceStub(channel).WatchJudgements(judge_pb2.WatchJudgementsRequest(),
                                                                          timeout=30)
        assert (await stream.read()).session_id == "s"
        keys.revoke("watcher")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
    assert from_rpc_error(caught.value).reason == "UNKNOWN_KEY"


async def test_what_runs_for_a_key_that_expires_is_finished(server: ComponentServer, certs: Path,
                                                            keys: KeyFile) -> None:
    """As at the HTTP door."""
    shown, _ = keys.add("guest", ["admin"])
    credentials = OutsideCredentials(shown, (certs / "ca.crt").read_bytes())
    async with connect(server.keys_address, "prm_judge", credentials) as channel:
        stream = judge_pb2_grpc.JudgeServiceStub(channel).WatchJudgements(judge_pb2.WatchJudgementsRequest(),
                                                                          timeout=30)
        await stream.read()
        keys.rotate("guest", keep=0.05)
        async with asyncio.timeout(10):
            while await call(server.keys_address, credentials, "GetStatus") != "UNKNOWN_KEY":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        server._interceptor.authorizer.end_revoked()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.read(), 0.2)


def test_a_scope_below_admin_tells_no_words_of_others() -> None:
    telling = {"GetSession", "ListTurns", "WatchJudgements", "ListJudgements", "ListSamples", "ListSpans", "EndSession",
               "ReadLogs"}
    assert {rule.scope for rpc, rule in TABLE.items() if rpc.rpartition("/")[2] in telling} == {"admin"}


class Policy(policy_pb2_grpc.PolicyServiceServicer):
    async def GetPolicy(self, request: Any, context: Any) -> Any:
        shown, id = caller.get()
        return policy_pb2.GetPolicyResponse(state=policy_pb2.PolicyState(
            model=f"{client_of(context)} {called_by('env_server')} {shown} {id}"))


async def test_a_handler_sees_the_key_and_one_key_is_one_owner_at_both_doors(certs: Path, keys: KeyFile,
                                                                             tmp_path: Path) -> None:
    root = (certs / "ca.crt").read_bytes()
    told = {}
    async with secure_server(certs, Home(tmp_path).create(), Policy(), keys=KeyRing(keys.path), role="policy_server",
                             add=policy_pb2_grpc.add_PolicyServiceServicer_to_server,
                             service="openclaw_rl.v1.PolicyService") as server:
        for name in ("one", "other"):
            shown, key = keys.add(name, ["read"])
            async with connect(server.keys_address, "policy_server", OutsideCredentials(shown, root)) as channel:
                reply = await policy_pb2_grpc.PolicyServiceStub(channel).GetPolicy(policy_pb2.GetPolicyRequest())
            client, *seen = reply.state.model.split(" ")
            assert seen == ["False", shown, key.id]
            told[name] = client.partition(":")[0]
            assert told[name] == client_digest(shown, "the address at the HTTP door", "user").partition(":")[0]
        for role in ("operator", "env_server"):
            async with connect(server.address, "policy_server", Credentials(certs, role)) as channel:
                reply = await policy_pb2_grpc.PolicyServiceStub(channel).GetPolicy(policy_pb2.GetPolicyRequest())
            assert reply.state.model.startswith(":") and reply.state.model.endswith(f" {role == 'env_server'}  ")
    assert told["one"] and told["one"] != told["other"]


async def test_one_key_takes_no_more_than_its_limits(certs: Path, keys: KeyFile, tmp_path: Path) -> None:
    root, limits = (certs / "ca.crt").read_bytes(), LimitsConfig(requests_per_minute=3, concurrent=1)
    one, other = (OutsideCredentials(keys.add(name, ["admin"])[0], root) for name in ("one", "other"))
    async with secure_server(certs, Home(tmp_path).create(), Judge(), keys=KeyRing(keys.path),
                             limits=limits) as server:
        async with connect(server.keys_address, "prm_judge", one) as channel:
            stream = judge_pb2_grpc.JudgeServiceStub(channel).WatchJudgements(judge_pb2.WatchJudgementsRequest())
            await stream.read()
            assert await call(server.keys_address, one, "GetStatus") == "RESOURCE_EXHAUSTED"  # two at the same time
            stream.cancel()
            component = component_pb2_grpc.ComponentServiceStub(channel)
            async with asyncio.timeout(10):  # until the server has noticed that the stream has ended
                while await call(server.keys_address, one, "GetStatus"):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            await component.GetStatus(component_pb2.GetStatusRequest())
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await component.GetStatus(component_pb2.GetStatusRequest())
        error = from_rpc_error(caught.value)
        assert error.reason == "RESOURCE_EXHAUSTED" and "3 requests per minute" in error.message
        assert error.retry_after and error.retry_after <= 21
        assert await call(server.keys_address, other, "GetStatus") == ""
        for _ in range(5):  # certificates have no such limits
            assert await call(server.address, Credentials(certs, "operator"), "GetStatus") == ""


async def test_what_changes_the_mesh_is_logged_with_who_did_it(server: ComponentServer, certs: Path, keys: KeyFile,
                                                               caplog: pytest.LogCaptureFixture) -> None:
    shown, _ = keys.add("night-shift", ["admin"])
    with caplog.at_level(logging.INFO):
        await call(server.address, Credentials(certs, "operator"), "Forget")
        await call(server.keys_address, OutsideCredentials(shown, (certs / "ca.crt").read_bytes()), "Forget")
    assert "Forget called by operator at ipv4:127.0.0.1:" in caplog.text
    assert "Forget called by the key night-shift at ipv4:127.0.0.1:" in caplog.text and shown not in caplog.text


