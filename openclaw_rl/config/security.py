"""Settings of who may talk to whom."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from openclaw_rl.config.base import Int, Section, Size


class LimitsConfig(Section):
    """What one client of the policy server's doors may take, so that it can't starve the rest. A client is a key, or,
    where none is needed, an address. At gRPC's `keys_port` only `requests_per_minute` and `concurrent` hold, of each
    key."""

    requests_per_minute: Int = Field(600, ge=1)
    """More are answered 429 with the time to retry after."""
    concurrent: Int = Field(64, ge=1)
    """Requests at the same time."""
    body: Size = 8 * 2**20
    """Largest body of a request."""
    connections: Int = Field(256, ge=1)
    """Open connections of one address."""


class SecurityConfig(Section):
    """Encryption, identities and keys; see openclaw_rl/rpc/auth/SECURITY.md."""

    tls: Literal["auto", "on", "off"] = "auto"
    """mTLS between the components. auto: on in mode distributed and when a component listens on more than loopback,
    else off; `off` is refused there."""
    certs: Path | None = None
    """Folder of the certificates: ca.crt, and NAME.crt and NAME.key of each component and of `operator`; default
    certs/ in the home, which `openclaw-rl init` makes."""
    http_tls: Literal["auto", "on", "off"] = "auto"
    """HTTPS at the OpenAI door. auto: as `tls`; off on a network only behind a proxy of your own."""
    http_certificate: Path | None = None
    """PEM file of a certificate of your own for the OpenAI door, its chain included; default the policy server's."""
    http_key: Path | None = None
    """PEM file of its key."""
    keys: Path | None = None
    """File of the bearer keys' digests, names and scopes, which `openclaw-rl keys` writes; default keys.json in the
    home. It is read again when it changes."""
    warn_days: Int = Field(30, ge=1)
    """Days before a certificate's end from which `status` warns."""
    limits: LimitsConfig = LimitsConfig()
