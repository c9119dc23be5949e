"""Reading and checking of certificates and private keys in files."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from openclaw_rl.config import ConfigError
from openclaw_rl.runtime.home import COMPONENTS

#: Who a certificate can be for: the components, and people with their tools.
ROLES = (*COMPONENTS, "operator")
#: DNS name that all components' certificates have, for callers that don't mind which component answers.
ANY_COMPONENT = "component.openclaw-rl.internal"

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class CertificateError(ConfigError):
    """A certificate, key or request can't be used; the text names the file and says what to do."""


@dataclass(frozen=True)
class Identity:
    """Who a certificate is for."""

    mesh: str  #: trust domain; "" when the certificate has none
    role: str  #: one of ROLES; "" when it names none of them


def server_name(role: str) -> str:
    """The DNS name under which others expect the holder of `role`."""
    return f"{role}.openclaw-rl.internal"


def identity_of(certificate: x509.Certificate) -> Identity:
    """Who it is for: by its URI `spiffe://MESH/ROLE`, else by the common name of its subject when that is a role."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = [uri for uri in names.get_values_for_type(x509.UniformResourceIdentifier)
                if uri.startswith("spiffe://")]
    except (x509.ExtensionNotFound, ValueError):
        uris = []
    if len(uris) == 1:  # SPIFFE: exactly one
        mesh, _, path = uris[0].removeprefix("spiffe://").partition("/")
        return Identity(mesh, path if path in ROLES else "")
    common = [str(name.value) for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return Identity("", common[0] if len(common) == 1 and common[0] in ROLES and not uris else "")


def has_server_name(certificate: x509.Certificate, role: str) -> bool:
    """It has the DNS name under which the mesh expects `role`; one of another make may go by host names instead."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    return server_name(role) in names.get_values_for_type(x509.DNSName)


def parse(pem: bytes, what: str) -> x509.Certificate:
    """The first certificate of a PEM text.

    Raises:
        CertificateError: there is none; `what` names it.
    """
    return parse_all(pem, what)[0]


def parse_all(pem: bytes, what: str) -> list[x509.Certificate]:
    """All certificates of a PEM text; raises as `parse`."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise CertificateError(f"{what} is no certificate (PEM is needed): {error}") from None


def read_file(path: Path) -> bytes:
    """A file's bytes.

    Raises:
        CertificateError: it can't be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(f"{path} can't be read: {error.strerror}") from None


def read_key(path: Path, pem: bytes | None = None) -> PrivateKey:
    """A private key (PEM, without a passphrase) that only its owner can read.

    Args:
        pem: what was read of the file already.

    Raises:
        CertificateError: it can't be read, or others can.
    """
    check_private(path)
    try:
        key = serialization.load_pem_private_key(read_file(path) if pem is None else pem, None)
    except (ValueError, TypeError) as error:  # the errors' texts don't contain the key
        raise CertificateError(f"{path} is no private key (PEM without a passphrase is needed): {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise CertificateError(f"{path} has a key of type {type(key).__name__}; EC or RSA is needed")
    return key


def check_private(path: Path) -> None:
    """Only its owner, who is this user or root, can write the file, and nobody else can read it, but for the group of a
    file of root's.

    Raises:
        CertificateError: others can, or it is not there.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise CertificateError(f"{path} can't be read: {error.strerror}") from None
    # A file of root's may be given to a group of this user to read: so come Kubernetes' secrets.
    given = found.st_uid == 0 != os.geteuid()
    if found.st_mode & (0o037 if given else 0o077):
        raise CertificateError(f"{path} is a secret that others may read (mode {stat.S_IMODE(found.st_mode):04o}): "
                               f"chmod 600 {path}")
    if found.st_uid not in (0, os.geteuid()):
        raise CertificateError(f"{path} belongs to user {found.st_uid}: chown {os.geteuid()} {path}")


def belong(key: PrivateKey, certificate: x509.Certificate) -> bool:
    """The certificate is for this key."""
    der = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(*der) == certificate.public_key().public_bytes(*der)


def signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """`authority` signed it (validity is not looked at)."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
