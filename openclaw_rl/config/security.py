"""Settings of who may talk to whom."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from openclaw_rl.config.base import Int, Section, Size


class LimitsConfig(Section):
    """Limits per client of the policy server, to prevent starvation of others. A client is a key or, where none is
    required, an address. At `keys_port` (gRPC) only `requests_per_minute` and `concurrent` apply, per key."""

    requests_per_minute: Int = Field(600, ge=1)
    """Requests beyond it are rejected with 429 and Retry-After."""
    concurrent: Int = Field(64, ge=1)
    """Maximum concurrent requests."""
    body: Size = 8 * 2**20
    """Maximum size of a request body."""
    connections: Int = Field(256, ge=1)
    """Maximum open connections per address."""


class SecurityConfig(Section):
    """Encryption, identities and keys; see openclaw_rl/rpc/auth/SECURITY.md."""

    tls: Literal["auto", "on", "off"] = "auto"
    """mTLS between components. auto: on in mode distributed and if a component listens on more than loopback, else off;
    `off` is rejected there."""
    certs: Path | None = None
    """Folder with ca.crt, and NAME.crt and NAME.key of each component and of `operator`; default: certs/ in the home
    folder, made by `openclaw-rl init`."""
    http_tls: Literal["auto", "on", "off"] = "auto"
    """HTTPS of the OpenAI API. auto: as `tls`; off on a network only behind your own proxy."""
    http_certificate: Path | None = None
    """PEM file of your own certificate for the OpenAI API, including its chain; default: the policy server's."""
    http_key: Path | None = None
    """PEM file of its private key."""
    keys: Path | None = None
    """File of bearer keys (digests, names, scopes), written by `openclaw-rl keys`; default: keys.json in the home
    folder. It is reloaded when it changes."""
    warn_days: Int = Field(30, ge=1)
    """Days before a certificate's expiry from which `status` warns."""
    limits: LimitsConfig = LimitsConfig()
