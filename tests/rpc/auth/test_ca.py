"""The mesh's CA and its certificates."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from openclaw_rl.rpc.auth import ca
from openclaw_rl.rpc.auth.certificates import (
    ROLES,
    CertificateError,
    Identity,
    identity_of,
    parse,
    read_key,
    signed_by,
)
from openclaw_rl.rpc.auth.tls import Credentials
from tests.rpc.auth.certs import make_certs, reissue, serial


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "certs"


def certificate(file: Path) -> x509.Certificate:
    return parse(file.read_bytes(), file.name)


def request_for(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, common_name: str, *uris: str) -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
    if uris:
        builder = builder.add_extension(x509.SubjectAlternativeName(
            [x509.UniformResourceIdentifier(uri) for uri in uris]), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_a_certificate_says_who_and_where(folder: Path) -> None:
    make_certs(folder, "acme", roles=())
    assert ca.issue(folder, "trainer", ["10.0.0.4", "gpu-4.example", "::", "10.0.0.4"])
    made = certificate(folder / "trainer.crt")
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["spiffe://acme/trainer"]
    assert set(names.get_values_for_type(x509.DNSName)) == {
        "trainer.openclaw-rl.internal", "component.openclaw-rl.internal", "localhost", "gpu-4.example"}
    assert {str(ip) for ip in names.get_values_for_type(x509.IPAddress)} == {"127.0.0.1", "::1", "10.0.0.4"}
    assert identity_of(made) == Identity("acme", "trainer") and ca.hosts_of(made) == ["gpu-4.example", "10.0.0.4"]
    life = made.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=364) < life < datetime.timedelta(days=366)
    assert made.not_valid_before_utc < datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=30)
    root = certificate(folder / "ca.crt")
    assert signed_by(made, root) and root.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not ca.issue(folder, "trainer") and certificate(folder / "trainer.crt") == made


def test_an_operators_certificate_can_be_no_component(folder: Path) -> None:
    make_certs(folder, roles=("operator",))
    names = certificate(folder / "operator.crt").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert not [name for name in names.get_values_for_type(x509.DNSName) if name.endswith(".openclaw-rl.internal")]


def test_a_second_ca_is_never_made(folder: Path) -> None:
    assert ca.make_authority(folder)
    before = (folder / "ca.crt").read_bytes()
    assert not ca.make_authority(folder) and (folder / "ca.crt").read_bytes() == before
    (folder / "ca.crt").unlink()
    with pytest.raises(CertificateError, match=r"ca\.key is there without .*ca\.crt"):
        ca.make_authority(folder)
    assert not (folder / "ca.crt").exists()


def test_the_signer_decides_the_role_whatever_the_request_says(folder: Path) -> None:
    make_certs(folder, "acme", roles=())
    request = request_for(ec.generate_private_key(ec.SECP256R1()), "trainer", "spiffe://acme/trainer")
    signed = parse(ca.sign(folder, request, "prm_judge", ["judge"]), "it")
    assert identity_of(signed) == Identity("acme", "prm_judge") and b"trainer" not in signed.public_bytes(
        serialization.Encoding.DER)


def test_without_a_ca_no_key_is_left(folder: Path) -> None:
    with pytest.raises(CertificateError, match="there is no CA"):
        ca.issue(folder, "trainer")
    assert not folder.exists() or not list(folder.iterdir())


@pytest.mark.parametrize(("request_", "message"), [
    (lambda: b"nothing", "can't be read"),
    (lambda: request_for(ec.generate_private_key(ec.SECP256R1()), "trainer") * 100, "has .* bytes"),
    (lambda: request_for(rsa.generate_private_key(65537, 1024), "trainer"), "RSA of at least 2048"),
    (lambda: request_for(ec.generate_private_key(ec.SECP192R1()), "trainer"), "EC of at least 256"),
])
def test_a_request_that_is_not_signed(folder: Path, request_: Any, message: str) -> None:
    make_certs(folder, roles=())
    with pytest.raises(CertificateError, match=message):
        ca.sign(folder, request_(), "trainer")


def test_a_request_that_another_key_signed(folder: Path) -> None:
    make_certs(folder, roles=())
    pem = request_for(ec.generate_private_key(ec.SECP256R1()), "trainer")
    der = bytearray(x509.load_pem_x509_csr(pem).public_bytes(serialization.Encoding.DER))
    der[-1] ^= 1
    broken = x509.load_der_x509_csr(bytes(der)).public_bytes(serialization.Encoding.PEM)
    with pytest.raises(CertificateError, match="not signed by its own key"):
        ca.sign(folder, broken, "trainer")


@pytest.mark.parametrize("host", ["trainer.openclaw-rl.internal", "*.openclaw-rl.internal", "a b", "x\ny", "-", "ä.de"])
def test_hosts_that_are_none_or_would_be_somebody_else(folder: Path, host: str) -> None:
    make_certs(folder, roles=())
    with pytest.raises(CertificateError, match="is no name or IP address of a host"):
        ca.issue(folder, "prm_judge", [host])


def test_keys_stay_where_they_are_made(folder: Path, tmp_path: Path) -> None:
    make_certs(folder, roles=("operator",))
    host = tmp_path / "host"
    request = ca.new_request(host, "trainer")
    assert sorted(file.name for file in host.iterdir()) == ["trainer.key.new"]
    assert (host / "trainer.key.new").stat().st_mode & 0o777 == 0o600 and b"PRIVATE" not in request
    signed = ca.sign(folder, request, "trainer", ["10.0.0.4"])
    ca.install(host, "trainer", signed, (folder / "ca.crt").read_bytes())
    assert sorted(file.name for file in host.iterdir()) == ["ca.crt", "trainer.crt", "trainer.key"]
    assert Credentials(host, "trainer").identity.role == "trainer"
    again = ca.sign(folder, ca.new_request(host, "trainer"), "trainer")  # a renewal: a new key, too
    key = (host / "trainer.key").read_bytes()
    assert Credentials(host, "trainer")  # until it is installed the old pair is whole
    ca.install(host, "trainer", again, (folder / "ca.crt").read_bytes())
    assert (host / "trainer.key").read_bytes() != key and Credentials(host, "trainer")


def test_what_can_not_be_installed(folder: Path, tmp_path: Path) -> None:
    make_certs(folder, roles=("operator", "trainer"))
    other = make_certs(tmp_path / "other", roles=("trainer",))
    root = (folder / "ca.crt").read_bytes()
    before = {file: file.read_bytes() for file in folder.iterdir()}
    for role, signed, authority, message in (
            ("trainer", (folder / "operator.crt").read_bytes(), root, "is for operator, not for trainer"),
            ("trainer", (other / "trainer.crt").read_bytes(), root, "was not signed by the CA"),
            ("trainer", (other / "trainer.crt").read_bytes(), (other / "ca.crt").read_bytes(), "fits no key"),
            ("trainer", b"x", root, "is no certificate")):
        with pytest.raises(CertificateError, match=message):
            ca.install(folder, role, signed, authority)
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_may_read_is_refused(folder: Path, mode: int) -> None:
    make_certs(folder, roles=("trainer",))
    (folder / "trainer.key").chmod(mode)
    with pytest.raises(CertificateError, match=f"chmod 600 {folder / 'trainer.key'}"):
        read_key(folder / "trainer.key")
    (folder / "ca.key").chmod(mode)
    with pytest.raises(CertificateError, match=f"chmod 600 {folder / 'ca.key'}"):
        ca.issue(folder, "operator")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_key_of_another_user_is_refused(folder: Path) -> None:
    make_certs(folder, roles=("trainer",))
    os.chown(folder / "trainer.key", 12345, -1)
    with pytest.raises(CertificateError, match="belongs to user 12345"):
        read_key(folder / "trainer.key")


def test_a_certificate_never_outlives_its_ca(folder: Path) -> None:
    make_certs(folder, roles=())
    reissue(folder, "trainer", -1, 10_000)
    assert ca.expiry(folder / "trainer.crt") == ca.expiry(folder / "ca.crt")


def test_a_bundle_of_old_and_new_ca(folder: Path, tmp_path: Path) -> None:
    """How a CA is replaced: first both are trusted, then certificates are signed by the new one."""
    make_certs(folder, "acme")
    new = make_certs(tmp_path / "new", "acme", roles=())
    old_root, new_root = (folder / "ca.crt").read_bytes(), (new / "ca.crt").read_bytes()
    (folder / "ca.crt").write_bytes(old_root + new_root)
    (folder / "ca.key").write_bytes((new / "ca.key").read_bytes())
    before = serial(folder, "trainer")
    assert Credentials(folder, "trainer")  # the old one's are good
    ca.renew(folder, "trainer")
    assert serial(folder, "trainer") != before and signed_by(certificate(folder / "trainer.crt"), parse(new_root, "it"))
    assert Credentials(folder, "trainer") and Credentials(folder, "operator")


def test_a_role_by_common_name_or_uri_but_not_by_two_uris() -> None:
    key = ec.generate_private_key(ec.SECP256R1())

    def made(common_name: str, *uris: str) -> Identity:
        now = datetime.datetime.now(datetime.UTC)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1))
        if uris:
            builder = builder.add_extension(x509.SubjectAlternativeName(
                [x509.UniformResourceIdentifier(uri) for uri in uris]), critical=False)
        return identity_of(builder.sign(key, hashes.SHA256()))

    for role in ROLES:
        assert made(role) == Identity("", role)
    assert made("somebody") == Identity("", "")
    assert made("operator", "spiffe://acme/trainer") == Identity("acme", "trainer")
    assert made("operator", "spiffe://acme/other") == Identity("acme", "")
    assert made("operator", "spiffe://acme/trainer", "spiffe://acme/operator") == Identity("", "")
    assert made("trainer", "https://example.org") == Identity("", "trainer")
