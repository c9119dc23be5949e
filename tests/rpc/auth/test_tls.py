"""Encryption between components: who is taken for whom, and certificates that change while calls run."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from openclaw_rl.client import AsyncComponentServiceClient, ComponentServiceClient
from openclaw_rl.config import Config, ConfigError
from openclaw_rl.rpc.auth import ca, current, tls
from openclaw_rl.rpc.auth.tls import Credentials
from openclaw_rl.rpc.channel import connect
from openclaw_rl.rpc.component_run import ComponentRun
from openclaw_rl.rpc.errors import MeshError, from_rpc_error
from openclaw_rl.rpc.server import ComponentServer
from openclaw_rl.runtime import identity
from openclaw_rl.runtime.component import Component, Service
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.runtime import Runtime
from openclaw_rl.v1 import component_pb2 as pb
from openclaw_rl.v1 import component_pb2_grpc, judge_pb2, judge_pb2_grpc
from tests.rpc.auth.certs import acting, make_certs, reissue, secure_server, serial


class Judge(judge_pb2_grpc.JudgeServiceServicer):
    """Streams for as long as somebody reads."""

    async def WatchJudgements(self, request: Any, context: Any) -> Any:
        for i in range(10_000):
            yield judge_pb2.WatchJudgementsResponse(session_id=str(i))
            await asyncio.sleep(0.01)


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    return make_certs(tmp_path / "certs")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path).create()


@pytest.fixture
async def server(certs: Path, home: Home) -> AsyncIterator[ComponentServer]:
    async with secure_server(certs, home, Judge()) as server:
        yield server


async def status(address: str, credentials: Credentials | None, role: str = "prm_judge") -> pb.ComponentStatus:
    async with connect(address, role, credentials) as channel:
        try:
            return (await component_pb2_grpc.ComponentServiceStub(channel).GetStatus(pb.GetStatusRequest(),
                                                                                     timeout=10)).status
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None


async def test_a_component_tells_that_it_is_secure_and_until_when(server: ComponentServer, certs: Path) -> None:
    found = await status(server.address, Credentials(certs, "operator"))
    assert found.secure and found.certificate_expires_at.ToDatetime().timestamp() == pytest.approx(
        ca.expiry(certs / "prm_judge.crt").replace(tzinfo=None).timestamp(), abs=1)
    assert found.state == pb.COMPONENT_STATE_RUNNING and not found.alarms


async def test_another_component_at_the_address_is_not_taken_for_the_one_expected(server: ComponentServer,
                                                                                  certs: Path) -> None:
    mine = Credentials(certs, "policy_server")
    assert (await status(server.address, mine)).name == "prm_judge"
    assert (await status(server.address, mine, "")).name == "prm_judge"  # any component will do
    with pytest.raises(MeshError, match="its certificate is that of another component"):
        await status(server.address, mine, "env_server")


async def test_new_certificates_are_taken_while_a_stream_runs_and_after(server: ComponentServer, certs: Path) -> None:
    mine = Credentials(certs, "operator")
    before = serial(certs, "prm_judge")
    async with connect(server.address, "prm_judge", mine) as channel:
        stream = judge_pb2_grpc.JudgeServiceStub(channel).WatchJudgements(judge_pb2.WatchJudgementsRequest())
        first = int((await stream.read()).session_id)
        make_certs_anew(certs)  # another CA, even
        assert serial(certs, "prm_judge") != before
        found = await status(server.address, mine)  # both sides have taken the new ones
        assert found.secure and mine.material().certificate == (certs / "operator.crt").read_bytes()
        seen = [int((await stream.read()).session_id) for _ in range(20)]
        assert seen == list(range(first + 1, first + 21))  # the stream misses nothing
        stream.cancel()
    with pytest.raises(MeshError, match="compare `openclaw-rl certs show`"):  # and nobody takes the old CA's any more
        await status(server.address, Credentials(make_certs(certs.parent / "old"), "operator"))


def make_certs_anew(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    make_certs(folder)


async def test_a_pair_that_does_not_fit_yet_waits_for_its_other_half(certs: Path) -> None:
    mine = Credentials(certs, "trainer")
    old = mine.material()
    ca.renew(certs, "trainer")
    new_key = (certs / "trainer.key").read_bytes()
    (certs / "trainer.key").write_bytes(old.key)  # as between the two writes of a renewal
    assert mine.material() == old and mine.problems()[0][0] == "certificate_unusable"
    (certs / "trainer.key").write_bytes(new_key)
    assert mine.material().certificate == (certs / "trainer.crt").read_bytes() and not mine.problems()


async def test_new_files_that_can_not_be_used_leave_the_old_ones_and_raise_an_alarm(server: ComponentServer,
                                                                                    certs: Path) -> None:
    mine = Credentials(certs, "operator")
    good = (certs / "prm_judge.crt").read_bytes()
    (certs / "prm_judge.crt").write_text("rubbish")
    found = await status(server.address, mine)
    assert found.state == pb.COMPONENT_STATE_DEGRADED and found.alarms[0].name == "certificate_unusable"
    assert "prm_judge.crt is no certificate" in found.alarms[0].message and found.detail == found.alarms[0].message
    (certs / "prm_judge.crt").write_bytes(good)
    assert not (await status(server.address, mine)).alarms


@pytest.mark.parametrize(("days", "told"), [(20, "ends on"), (-0.01, "has ended")])
async def test_the_end_of_a_certificate_is_warned_of(certs: Path, home: Home, days: float, told: str) -> None:
    reissue(certs, "prm_judge", -40, days)
    alarm = Credentials(certs, "prm_judge").problems()[0]
    assert alarm[0] == "certificate_expires" and told in alarm[1] and "openclaw-rl certs renew" in alarm[1]
    assert not Credentials(certs, "prm_judge", warn_days=10).problems() or days < 0
    if days > 0:
        async with secure_server(certs, home, Judge()) as server:
            found = await status(server.address, Credentials(certs, "operator"))
            assert found.alarms[0].name == "certificate_expires" and found.state == pb.COMPONENT_STATE_DEGRADED


def test_the_end_of_a_ca_is_told_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`certs renew` would help nothing: what it signs ends with the CA."""
    folder = tmp_path / "short"
    make_certs(folder, "acme", ("trainer",))
    material = Credentials(folder, "trainer").material()
    assert not material.authority_ends
    mine = Credentials(folder, "trainer")
    ended = dataclasses.replace(material, authority_ends=True, expires=datetime.datetime.now(datetime.UTC))
    monkeypatch.setattr(mine, "material", lambda: ended)
    (_, text), = mine.problems()
    assert "the CA in" in text and "certs renew" not in text and "SECURITY.md" in text


def test_the_key_is_read_once(certs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewal between two readings would give a pair that doesn't fit."""
    read: list[str] = []
    plain = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path.name) or plain(path))
    Credentials(certs, "trainer")
    assert read.count("trainer.key") == 1


async def test_clients_of_a_home_use_the_operators_certificate(server: ComponentServer, home: Home) -> None:
    home.config_file.write_text("security: {tls: 'on'}")
    async with AsyncComponentServiceClient(server.address, component="prm_judge", home=home) as client:
        assert (await client.get_status()).status.secure

    def blocking() -> bool:
        with ComponentServiceClient(component="prm_judge", home=home) as client:
            return client.get_status().status.secure

    assert await asyncio.to_thread(blocking)
    home.config_file.write_text("security: {tls: 'off'}")
    async with AsyncComponentServiceClient(server.address, component="prm_judge", home=home) as client:
        with pytest.raises(MeshError, match=r"does not answer.*If it uses TLS, this side has no certificate"):
            await client.get_status()


@pytest.mark.parametrize(("config", "wanted"), [
    ({}, False),
    ({"components": {"trainer": {"host": "localhost"}}}, False),
    ({"components": {"trainer": {"host": "::1"}, "prm_judge": {"address": "127.0.0.1:50053"}}}, False),
    ({"security": {"tls": "on"}}, True),
    ({"mode": "distributed"}, True),
    ({"components": {"trainer": {"host": "0.0.0.0"}}}, True),
    ({"components": {"trainer": {"host": "gpu-4"}}}, True),
    ({"components": {"trainer": {"host": "10.0.0.4", "enabled": False}}}, False),
    ({"components": {"prm_judge": {"address": "10.0.0.3:50053"}}}, True),
    ({"components": {"policy_server": {"weights_from": "10.0.0.1:50051"}}}, True),
    ({"security": {"tls": "off"}, "components": {"prm_judge": {"address": "10.0.0.3:50053"}}}, False),
])
def test_when_the_mesh_is_encrypted(config: Any, wanted: bool) -> None:
    assert identity.wanted(Config.model_validate(config)) is wanted


@pytest.mark.parametrize(("config", "message"), [
    ({"mode": "distributed"}, "mode: distributed"),
    ({"components": {"trainer": {"host": "10.0.0.4"}}}, "components.trainer.host: 10.0.0.4")])
def test_off_is_refused_on_a_network(config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"security.tls: off is not allowed with {message}.*openclaw-rl init"):
        identity.wanted(Config.model_validate({**config, "security": {"tls": "off"}}))


def test_keys_in_plain_text_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"components\.trainer\.keys_port: .*security\.tls: on"):
        identity.wanted(Config.model_validate({"components": {"trainer": {"keys_port": 1}}}))


def test_missing_certificates_are_named_with_what_to_do(home: Home) -> None:
    config = Config.model_validate({"components": {"trainer": {"host": "10.0.0.4"}}})
    with pytest.raises(ConfigError, match=r"components\.trainer\.host: 10\.0\.0\.4 is on the network, which needs "
                                          r"certificates, and .* lacks ca\.crt, trainer\.crt, trainer\.key: "
                                          "`openclaw-rl init` makes"):
        tls.credentials(config, home, "trainer")


def test_certificates_of_others_are_not_this_role(certs: Path, tmp_path: Path) -> None:
    other = make_certs(tmp_path / "other")
    os.replace(certs / "operator.crt", certs / "trainer.crt")
    os.replace(certs / "operator.key", certs / "trainer.key")
    with pytest.raises(ConfigError, match="is for operator, not for trainer"):
        Credentials(certs, "trainer")
    (certs / "prm_judge.crt").write_bytes((other / "prm_judge.crt").read_bytes())
    (certs / "prm_judge.key").write_bytes((other / "prm_judge.key").read_bytes())
    with pytest.raises(ConfigError, match="was not signed by a CA in"):
        Credentials(certs, "prm_judge")


async def test_a_component_has_its_certificate_while_it_runs(certs: Path, home: Home) -> None:
    seen = []

    class Trainer(Component):
        name = "trainer"

        def __init__(self, runtime: Runtime, *, mounted: bool = False) -> None:
            seen.append(current.credentials())
            raise ConfigError("seen enough")

        def services(self) -> list[Service]:
            return []

        def status(self) -> pb.ComponentStatus:
            return pb.ComponentStatus()

    async def run(config: Config) -> None:
        with pytest.raises(ConfigError, match="seen enough"):
            await ComponentRun(Trainer, config, home).run()

    await run(Config.model_validate({"security": {"tls": "on", "certs": str(certs)}}))
    assert seen[0].identity.role == "trainer" and current.credentials() is None
    await run(Config())
    assert seen[1] is None
    with acting(seen[0]):
        await run(Config())
        assert seen[2] is None and current.credentials() is seen[0]


async def test_certificates_of_the_users_own_name_roles_by_common_name(tmp_path: Path, home: Home) -> None:
    """A CA of another make: no URI, no name of the mesh; hosts are verified as everywhere."""
    folder = own_certificates(tmp_path / "own", ["prm_judge", "operator", "env_server"])
    async with secure_server(folder, home, Judge()) as server:
        assert (await status(server.address, Credentials(folder, "operator"))).secure
        async with connect(server.address, "prm_judge", Credentials(folder, "env_server")) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await component_pb2_grpc.ComponentServiceStub(channel).Drain(pb.DrainRequest())
            assert from_rpc_error(caught.value).reason == "WRONG_ROLE"


def own_certificates(folder: Path, roles: list[str]) -> Path:
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.x509.oid import NameOID

    folder.mkdir()
    now, later = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days) for days in (-1, 90))
    root_key = rsa.generate_private_key(65537, 2048)

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    root = x509.CertificateBuilder(name("Acme"), name("Acme"), root_key.public_key(), 1, now, later).add_extension(
        x509.BasicConstraints(True, None), critical=True).sign(root_key, hashes.SHA256())
    (folder / "ca.crt").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    for number, role in enumerate(roles, 2):
        key = rsa.generate_private_key(65537, 2048)
        made = x509.CertificateBuilder(name("Acme"), name(role), key.public_key(), number, now, later).add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
            ).sign(root_key, hashes.SHA256())
        (folder / f"{role}.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
        (folder / f"{role}.key").touch(mode=0o600)
        (folder / f"{role}.key").write_bytes(key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()))
    return folder
