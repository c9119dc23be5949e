"""Credentials of a role on the network: its certificate, and what channels and servers make of it.

A component's are part of its `Runtime`, where `channel.connect` and `ComponentServer` find them. Command line and
clients use `current.for_client`. Files are read again when they change, with the next connection, in either direction:
certificates are replaced without a restart.
"""

from __future__ import annotations

import datetime
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from openclaw_rl.config import Config, ConfigError, LimitsConfig
from openclaw_rl.rpc.auth.certificates import (
    ANY_COMPONENT,
    CertificateError,
    Identity,
    belong,
    has_server_name,
    identity_of,
    parse_all,
    read_file,
    read_key,
    server_name,
    signed_by,
)
from openclaw_rl.rpc.auth.keys import KeyFileError, KeyRing
from openclaw_rl.runtime import identity
from openclaw_rl.runtime.home import COMPONENTS, Home
from openclaw_rl.runtime.reloading import Reloading

logger = logging.getLogger(__name__)

#: Seconds that a certificate and a key which don't fit may be there while they are replaced.
_REPLACING_SECONDS = 2.0


@dataclass(frozen=True)
class Material:
    """What the files had when they were last read."""

    certificate: bytes  #: PEM, intermediate ones behind it
    key: bytes  #: PEM
    authority: bytes  #: PEM of one or more CAs
    identity: Identity
    expires: datetime.datetime  #: UTC; the earliest of the certificate's and its CA's
    authority_ends: bool  #: it is the CA that ends then

    @property
    def by_role(self) -> bool:
        """Others are expected under the mesh's own DNS names; with certificates that name a role by their common name
        only, under the names of their hosts."""
        return bool(self.identity.mesh)


class Credentials:
    """The certificate of one role in one folder.

    Args:
        folder: with ca.crt, ROLE.crt and ROLE.key.
        role: one of `certificates.ROLES`.
        warn_days: days before its end from which `problems` warns.
        keys: bearer keys of clients without a certificate.
        keys_port: port for them; 0 for any free one, None for none.
        limits: what one of them may take.

    Raises:
        CertificateError: they can't be used; the text says what to do.
    """

    def __init__(self, folder: Path, role: str, warn_days: int = 30, *, keys: KeyRing | None = None,
                 keys_port: int | None = None, limits: LimitsConfig | None = None) -> None:
        self.folder, self.role = folder, role
        self.keys, self.keys_port, self.limits = keys, keys_port, limits
        self._warn = datetime.timedelta(days=warn_days)
        files = [folder / name for name in ("ca.crt", f"{role}.crt", f"{role}.key")]
        deadline = time.monotonic() + _REPLACING_SECONDS
        while True:
            try:
                self._material = Reloading(f"the certificates in {folder}", files, lambda: _load(folder, role),
                                           CertificateError, incomplete=lambda error: isinstance(error, _NotAPair))
                break
            except _NotAPair:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def material(self) -> Material:
        """The newest that can be used. New files that can't be are told by `problems`, and tried again when they
        change."""
        return self._material.value()

    def channel(self, role: str = "") -> tuple[grpc.ChannelCredentials, list[tuple[str, Any]]]:
        """Credentials and options of a channel to a component.

        Args:
            role: which one; "" for any.
        """
        now = self.material()
        credentials = grpc.ssl_channel_credentials(now.authority, now.key, now.certificate)
        if not now.by_role:
            return credentials, []
        name = server_name(role) if role in COMPONENTS else ANY_COMPONENT
        return credentials, [("grpc.ssl_target_name_override", name)]

    def server(self, certified: bool = True) -> grpc.ServerCredentials:
        """Credentials of a server's port.

        Args:
            certified: clients need a certificate of the mesh; else they may have none at all.
        """
        given = [self.material()]

        def configuration(now: Material) -> grpc.ServerCertificateConfiguration:
            return grpc.ssl_server_certificate_configuration([(now.key, now.certificate)],
                                                             now.authority if certified else None)

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            now = self.material()  # for each connection: the old ones are as good as new, and that is a stat of 3 files
            if now is given[0]:
                return None
            given[0] = now
            return configuration(now)

        return grpc.dynamic_ssl_server_credentials(configuration(given[0]), fetch, certified)

    @property
    def identity(self) -> Identity:
        """Who this process is."""
        return self.material().identity

    @property
    def expires(self) -> datetime.datetime:
        """When the certificate, or its CA's, ends (UTC)."""
        return self.material().expires

    def problems(self) -> list[tuple[str, str]]:
        """Alarms (name, message) about the certificates."""
        left = self.expires - datetime.datetime.now(datetime.UTC)
        raised = []
        if left < self._warn:
            when = self.expires.strftime("%Y-%m-%d %H:%M UTC")
            of_authority = self.material().authority_ends
            what = (f"the CA in {self.folder / 'ca.crt'}" if of_authority
                    else f"the certificate in {self.folder / f'{self.role}.crt'}")
            raised.append(("certificate_expires", (f"{what} has ended ({when}): nobody connects any more"
                                                   if left < datetime.timedelta() else f"{what} ends on {when}")
                           + ("; nothing that it signs lasts longer: make another CA, as rpc/auth/SECURITY.md says"
                              if of_authority else
                              "; `openclaw-rl certs renew` makes a new one, which is taken without a restart")))
        if problem := self._material.problem:
            raised.append(("certificate_unusable", f"new certificates can't be used ({problem}); the previous ones are "
                           "in use: repair the files, or `openclaw-rl certs renew`"))
        return raised


class OutsideCredentials:
    """Credentials of a client without a certificate: a bearer key, for the port `keys_port` of a component, which is
    expected under the name of its host.

    Args:
        key: the bearer key.
        authority: PEM of the mesh's CA (ca.crt); None takes the CAs of the system.
    """

    def __init__(self, key: str, authority: bytes | None = None) -> None:
        self._credentials = grpc.composite_channel_credentials(grpc.ssl_channel_credentials(authority),
                                                               grpc.access_token_call_credentials(key))

    def channel(self, role: str = "") -> tuple[grpc.ChannelCredentials, list[tuple[str, Any]]]:
        """As `Credentials.channel`."""
        return self._credentials, []


def credentials(config: Config, home: Home, role: str) -> Credentials | None:
    """The certificate of `role` in the folder that the configuration names; None without TLS.

    Raises:
        ConfigError: they are needed and can't be used, or `security.tls: off` isn't possible; what to do is in the
            text.
    """
    if not identity.wanted(config):
        return None
    folder = identity.certificates_folder(config, home)
    port = getattr(config.components, role).keys_port if role in COMPONENTS else None
    try:
        return Credentials(folder, role, config.security.warn_days, keys_port=port, limits=config.security.limits,
                           keys=None if port is None else KeyRing.of(config, home))
    except KeyFileError as error:
        raise ConfigError(str(error)) from None
    except CertificateError as error:
        raise CertificateError(f"{identity.why(config)}, and {error}") from None


class _NotAPair(CertificateError):
    """Certificate and key don't fit, as while they are replaced."""


def _load(folder: Path, role: str) -> Material:
    authority_file, file, key_file = folder / "ca.crt", folder / f"{role}.crt", folder / f"{role}.key"
    missing = [path.name for path in (authority_file, file, key_file) if not path.exists()]
    if missing:
        raise CertificateError(f"{folder} lacks {', '.join(missing)}: `openclaw-rl init` makes the certificates, "
                               f"`openclaw-rl certs add --role {role}` this one; or set security.certs to a folder "
                               "with your own")
    key_pem, certificate, authority = read_file(key_file), read_file(file), read_file(authority_file)
    key, chain = read_key(key_file, key_pem), parse_all(certificate, str(file))
    leaf = chain[0]
    if not belong(key, leaf):
        raise _NotAPair(f"{file} is not for the key in {key_file}: `openclaw-rl certs renew --role {role}` makes a new "
                        "pair")
    owner = identity_of(leaf)
    if owner.role != role:
        raise CertificateError(f"{file} is for {owner.role or 'no role of a mesh'}, not for {role} (its URI "
                               f"spiffe://MESH/{role}, or its common name, says so)")
    if owner.mesh and role in COMPONENTS and not has_server_name(leaf, role):
        raise CertificateError(f"{file} has the URI spiffe://{owner.mesh}/{role} and lacks the DNS name "
                               f"{server_name(role)}, under which the others expect it")
    signers = [ca for ca in parse_all(authority, str(authority_file)) if signed_by(chain[-1], ca)]
    if not signers:
        raise CertificateError(f"{file} was not signed by a CA in {authority_file}: others would refuse it")
    own, signer = min(c.not_valid_after_utc for c in chain), max(ca.not_valid_after_utc for ca in signers)
    if leaf.not_valid_before_utc > datetime.datetime.now(datetime.UTC):
        logger.warning("%s is valid from %s: this machine's clock, or that of the one which signed it, is wrong",
                       file, leaf.not_valid_before_utc)
    return Material(certificate, key_pem, authority, owner, min(own, signer), signer <= own)
