"""The mesh's own certificate authority, and the certificates of its components.

A folder (certs/ in the home) holds `ca.crt`, on the machine that made it `ca.key`, and for each role ROLE.crt and
ROLE.key. A certificate says who its holder is by the URI `spiffe://MESH/ROLE` (SPIFFE ID, https://spiffe.io), and has
the DNS names under which the others expect it. See SECURITY.md beside this file.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from openclaw_rl.rpc.auth.certificates import (
    ANY_COMPONENT,
    ROLES,
    CertificateError,
    PrivateKey,
    belong,
    identity_of,
    parse,
    parse_all,
    read_file,
    read_key,
    server_name,
    signed_by,
)
from openclaw_rl.runtime.home import COMPONENTS, write_atomically

_CA_DAYS, _LEAF_DAYS = 3650, 365
#: A certificate is valid from so long before it is made: clocks differ.
_EARLIER = datetime.timedelta(hours=1)
_LARGEST_REQUEST = 32 * 2**10


def make_authority(folder: Path, mesh: str = "") -> bool:
    """Make a CA, unless there is one.

    Args:
        mesh: name of the mesh, of lower-case letters, digits, dots and hyphens; default a random one.

    Returns:
        True when it was made.

    Raises:
        CertificateError: half of one is there; what can be done is in the text.
        OSError: the folder can't be written.
    """
    certificate, key_file = folder / "ca.crt", folder / "ca.key"
    if certificate.exists():  # without a key it was made elsewhere, and that is where certificates are signed
        return False
    if key_file.exists():
        raise CertificateError(f"{key_file} is there without {certificate}: put the certificate back, or, when no "
                               "other machine trusts it, remove the key and repeat this")
    mesh = mesh or f"mesh-{secrets.token_hex(4)}"
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,48}", mesh):
        raise CertificateError(f"the mesh's name {mesh!r} is not allowed: lower-case letters, digits, dots and hyphens")
    _make_folder(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "openclaw-rl"),
                      x509.NameAttribute(NameOID.COMMON_NAME, f"{mesh} CA")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    made = _builder(name, name, key.public_key(), _validity(_CA_DAYS)).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True).add_extension(
        _usage(authority=True), critical=True).add_extension(
        x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"spiffe://{mesh}")]), critical=False
        ).add_extension(identifier, critical=False).add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False
        ).sign(key, hashes.SHA256())
    _write_key(key_file, key)
    write_public(certificate, made.public_bytes(serialization.Encoding.PEM))
    return True


def expiry(path: Path) -> datetime.datetime:
    """Until when the certificate of a file is valid (UTC).

    Raises:
        CertificateError: it can't be read.
    """
    return parse(read_file(path), str(path)).not_valid_after_utc


def can_sign(folder: Path) -> bool:
    """The CA's key is in this folder."""
    return (folder / "ca.key").exists()


def issue(folder: Path, role: str, hosts: Iterable[str] = (), *, into: Path | None = None,
          replace: bool = False) -> bool:
    """Make the key and the certificate of `role`, unless they are there.

    Args:
        folder: the CA's.
        hosts: names and IP addresses of the machines where it will run; see `sign`.
        into: where the two go, and the CA's certificate beside them; default the CA's folder.
        replace: make new ones in place of those that are there.

    Returns:
        True when they were made.

    Raises:
        CertificateError: no CA, or a file can't be used; nothing was written.
        OSError: the folder can't be written.
    """
    _check_role(role)
    into = into or folder
    if not replace and (into / f"{role}.crt").exists() and (into / f"{role}.key").exists():
        return False
    _authority(folder)  # or its error, before a key is made
    request = new_request(into, role)
    install(into, role, sign(folder, request, role, hosts), (folder / "ca.crt").read_bytes())
    return True


def new_request(folder: Path, role: str) -> bytes:
    """Make a private key for `role`, which stays in the folder (ROLE.key.new until `install`), and a signing request.

    Returns:
        The request (CSR), PEM.

    Raises:
        CertificateError: no such role.
        OSError: the folder can't be written.
    """
    _check_role(role)
    _make_folder(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    _write_key(folder / f"{role}.key.new", key)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, role)])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def sign(folder: Path, request: bytes, role: str, hosts: Iterable[str] = (), *,
         validity: tuple[datetime.datetime, datetime.datetime] | None = None) -> bytes:
    """Certify the key of a signing request for `role`. The signer decides: whatever names and roles the request asks
    for are not looked at.

    Args:
        folder: where the CA is.
        request: CSR, PEM.
        role: one of ROLES.
        hosts: names and IP addresses that clients which know nothing of roles (a browser at the HTTPS door) connect
            to. `localhost` and the loopback addresses are always among them; wildcards are left out.
        validity: from and to; default a year from now. Never longer than the CA's.

    Returns:
        The certificate, PEM.

    Raises:
        CertificateError: no CA here, or the request can't be used.
    """
    _check_role(role)
    authority, key = _authority(folder)
    if len(request) > _LARGEST_REQUEST:
        raise CertificateError(f"the signing request has {len(request)} bytes; one has a few hundred")
    try:
        asked = x509.load_pem_x509_csr(request)
        public = asked.public_key()
        genuine = asked.is_signature_valid
    except (ValueError, TypeError) as error:
        raise CertificateError(f"the signing request can't be read: {error}") from None
    if not genuine:
        raise CertificateError("the signing request is not signed by its own key")
    strong = ((isinstance(public, ec.EllipticCurvePublicKey) and public.key_size >= 256)
              or (isinstance(public, rsa.RSAPublicKey) and public.key_size >= 2048))
    if not strong:
        raise CertificateError("the signing request's key must be EC of at least 256 bits or RSA of at least 2048")
    assert isinstance(public, ec.EllipticCurvePublicKey | rsa.RSAPublicKey)
    mesh = identity_of(authority).mesh or "openclaw-rl"
    begin, end = validity or _validity(_LEAF_DAYS)
    end = min(end, authority.not_valid_after_utc)
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(f"spiffe://{mesh}/{role}")]
    if role in COMPONENTS:
        names += [x509.DNSName(server_name(role)), x509.DNSName(ANY_COMPONENT)]
    names += _general_names(["localhost", "127.0.0.1", "::1", *hosts])
    subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "openclaw-rl"),
                         x509.NameAttribute(NameOID.COMMON_NAME, role)])
    made = _builder(authority.subject, subject, public, (begin, end)).add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True).add_extension(
        _usage(authority=False), critical=True).add_extension(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        ).add_extension(x509.SubjectAlternativeName(names), critical=False).add_extension(
        x509.SubjectKeyIdentifier.from_public_key(public), critical=False).add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
        ).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM)


def install(folder: Path, role: str, certificate: bytes, authority: bytes) -> None:
    """Put a signed certificate into the folder, beside the key that `new_request` made, and the CA's certificate.
    A process that reads the files meanwhile gets the old pair or the new one (`tls` waits for a pair that fits).

    Args:
        certificate: of `role`, PEM; intermediate ones behind it.
        authority: the CA's, PEM.

    Raises:
        CertificateError: it fits no key here, is for another role, or the CA did not sign it.
        OSError: the folder can't be written.
    """
    _check_role(role)
    leaf = parse(certificate, "the certificate")
    trusted = parse_all(authority, "the CA's certificate")
    if identity_of(leaf).role != role:
        raise CertificateError(f"the certificate is for {identity_of(leaf).role or 'no role'}, not for {role}")
    if not any(signed_by(last, ca) for last in parse_all(certificate, "the certificate")[-1:] for ca in trusted):
        raise CertificateError(f"the certificate of {role} was not signed by the CA that came with it")
    key_file, pending = folder / f"{role}.key", folder / f"{role}.key.new"
    fits = next((file for file in (pending, key_file)
                 if file.exists() and belong(read_key(file), leaf)), None)
    if fits is None:
        raise CertificateError(f"the certificate of {role} fits no key in {folder}: make a new signing request")
    if not (folder / "ca.crt").exists() or (folder / "ca.crt").read_bytes() != authority:
        write_public(folder / "ca.crt", authority)
    if fits == pending:
        os.replace(pending, key_file)
    write_public(folder / f"{role}.crt", certificate)
    pending.unlink(missing_ok=True)


def renew(folder: Path, role: str, hosts: Iterable[str] = ()) -> None:
    """Replace the key and the certificate of `role` by new ones for the same hosts, and `hosts` besides. Running
    processes take them with their next connections.

    Raises:
        CertificateError: no CA's key here, or nothing to renew.
        OSError: the folder can't be written.
    """
    file = folder / f"{role}.crt"
    if not file.exists():
        raise CertificateError(f"there is no {file} to renew; `openclaw-rl certs add --role {role}` makes one")
    issue(folder, role, [*hosts_of(parse(file.read_bytes(), str(file))), *hosts], replace=True)


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """Names and IP addresses of machines that it is for, without those that each has."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    found = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    return [name for name in found
            if name not in ("localhost", "127.0.0.1", "::1") and not name.endswith(".openclaw-rl.internal")]


def local_names() -> list[str]:
    """This machine's own name and the addresses that it has, as far as they can be told."""
    import psutil

    names = {socket.gethostname(), socket.getfqdn()}
    for addresses in psutil.net_if_addrs().values():
        names.update(a.address.partition("%")[0] for a in addresses if a.family in (socket.AF_INET, socket.AF_INET6))
    return sorted(name for name in names if _allowed_host(name) and not name.startswith("fe80"))


def write_public(path: Path, data: bytes) -> None:
    """Write a file that anybody may read, atomically."""
    write_atomically(path, data)
    path.chmod(0o644)


def _write_key(path: Path, key: PrivateKey) -> None:
    write_atomically(path, key.private_bytes(  # which makes files of mode 0600
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))


def _make_folder(folder: Path) -> None:
    if not folder.exists():
        folder.mkdir(parents=True)
        with contextlib.suppress(OSError):  # a file system without modes; the keys' own are checked when they are read
            folder.chmod(0o700)


def _authority(folder: Path) -> tuple[x509.Certificate, PrivateKey]:
    if not (folder / "ca.crt").exists():
        raise CertificateError(f"there is no CA in {folder}: `openclaw-rl init` makes one")
    if not can_sign(folder):
        raise CertificateError(f"the CA's key is not in {folder}: certificates are signed on the machine where "
                               "`openclaw-rl init` made the CA")
    key = read_key(folder / "ca.key")
    # A bundle may hold older and coming CAs: what the key belongs to signs.
    for certificate in parse_all(read_file(folder / "ca.crt"), str(folder / "ca.crt")):
        if belong(key, certificate):
            return certificate, key
    raise CertificateError(f"{folder / 'ca.key'} is not the key of a certificate in {folder / 'ca.crt'}")


def _check_role(role: str) -> None:
    if role not in ROLES:
        raise CertificateError(f"{role!r} is no role: {', '.join(ROLES)}")


def _validity(days: int) -> tuple[datetime.datetime, datetime.datetime]:
    now = datetime.datetime.now(datetime.UTC)
    return now - _EARLIER, now + datetime.timedelta(days=days)


def _builder(issuer: x509.Name, subject: x509.Name, public: ec.EllipticCurvePublicKey | rsa.RSAPublicKey,
             validity: tuple[datetime.datetime, datetime.datetime]) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(issuer_name=issuer, subject_name=subject, public_key=public,
                                   serial_number=x509.random_serial_number(),
                                   not_valid_before=validity[0], not_valid_after=validity[1])


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(digital_signature=not authority, key_cert_sign=authority, crl_sign=authority,
                         content_commitment=False, key_encipherment=False, data_encipherment=False,
                         key_agreement=False, encipher_only=False, decipher_only=False)


def _general_names(hosts: Iterable[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys(host.strip().strip("[]") for host in hosts):
        if host in ("", "0.0.0.0", "::"):
            continue
        if not _allowed_host(host):
            raise CertificateError(f"{host!r} is no name or IP address of a host")
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return names


def _allowed_host(host: str) -> bool:
    """A name or address; not one of the mesh's own, which say who somebody is."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return "%" not in host
    return bool(re.fullmatch(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?", host)
                ) and not host.lower().endswith(".openclaw-rl.internal")
