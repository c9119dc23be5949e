"""The HTTP entrypoint: address, HTTPS, keys and limits from the configuration."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from starlette.types import ASGIApp

from openclaw_rl.config import Config, ConfigError
from openclaw_rl.rpc.auth.keys import KeyRing
from openclaw_rl.runtime import identity
from openclaw_rl.runtime.home import Home
from openclaw_rl.serving.chat_service import ChatService
from openclaw_rl.serving.entrypoints.openai.access import Access
from openclaw_rl.serving.entrypoints.openai.app import create_app
from openclaw_rl.serving.entrypoints.openai.http import HttpServer
from openclaw_rl.serving.entrypoints.openai.https import Certificate
from openclaw_rl.serving.entrypoints.openai.metrics import Metrics
from openclaw_rl.serving.entrypoints.openai.site_guard import host_names

logger = logging.getLogger(__name__)


class HttpEntrypoint:
    """OpenAI's API on the policy server's port.

    Args:
        environ: for OPENCLAW_RL_API_KEYS.
        mounted: open no port; `start` returns an application for another program's web server, which is responsible
            for address and HTTPS. Keys and limits apply all the same.

    Raises:
        ConfigError: it would be reachable from a network without a key or without HTTPS, or keys or certificate can't
            be used; the text says what to do.
        OSError: it can't listen; the text names the address.
    """

    def __init__(self, config: Config, home: Home, environ: Mapping[str, str] = os.environ, *,
                 mounted: bool = False) -> None:
        settings, limits = config.components.policy_server, config.security.limits
        self._ring = check_keys(config, home, environ)
        self._certificate = None if mounted else https_certificate(config, home)
        self._access = Access(self._ring, limits, closed=not identity.is_loopback(settings.host))
        self._http = None if mounted else HttpServer(
            settings.host, settings.port, self._certificate.context if self._certificate else None, limits.connections)
        # Of a mounted application, only the program that it is part of knows the names.
        self._hosts = None if mounted and not settings.names else host_names(settings.host, settings.names)
        self._origins = settings.cors_origins
        self._watching: asyncio.Task[None] | None = None
        self.address = self._http.address if self._http else ""  #: http://HOST:PORT or https://HOST:PORT

    def start(self, service: ChatService, client_digest: Callable[[str, str, str], str], metrics: Metrics) -> ASGIApp:
        """Serve, and return the application; see `create_app`."""
        app = create_app(service, client_digest, self._access, metrics, hosts=self._hosts, origins=self._origins,
                         secure=self._certificate is not None)
        if self._http is not None:
            self._http.start(app, metrics.refused, self._access.unlimited)
        self._watching = asyncio.create_task(self._access.monitor_keys(), name="revoked keys")
        return app

    async def stop(self) -> None:
        """Stop serving; running responses are cancelled."""
        if self._watching is not None:
            self._watching.cancel()
        if self._http is not None:
            await self._http.stop()

    def alarms(self) -> list[tuple[str, str]]:
        """Problems with keys or certificate (name, message)."""
        return [("keys_unusable", self._ring.problem),
                ("http_certificate", self._certificate.problem if self._certificate else "")]


def check_keys(config: Config, home: Home, environ: Mapping[str, str] = os.environ) -> KeyRing:
    """Load the keys of a mesh.

    Raises:
        ConfigError: they can't be used, or there is none and the entrypoint is reachable from a network.
    """
    host = config.components.policy_server.host
    ring = KeyRing.of(config, home, environ)
    if not identity.is_loopback(host) and not any(not key.dead() for key in ring.all()):
        raise ConfigError(f"components.policy_server.host: {host} is reachable from the network, and there is no key "
                          "to ask for: make one with `openclaw-rl keys add NAME --scope chat` (in "
                          f"the home {home.root}), or listen on 127.0.0.1 only")
    return ring


def https_certificate(config: Config, home: Home) -> Certificate | None:
    """Load the entrypoint's certificate; None for plain HTTP.

    Raises:
        ConfigError: there is none, or it can't be used.
    """
    security, host = config.security, config.components.policy_server.host
    own = (security.http_certificate, security.http_key)
    if security.http_tls == "off":
        if not identity.is_loopback(host):
            logger.warning("the HTTP entrypoint on %s is not encrypted (security.http_tls: off): keys and messages "
                           "travel in plain text; only your own proxy should be able to reach it", host)
        return None
    if (own[0] is None) != (own[1] is None):
        lacks, has = ("http_key", "http_certificate") if own[1] is None else ("http_certificate", "http_key")
        raise ConfigError(f"security.{lacks}: is missing; security.{has} needs it")
    if security.http_tls == "auto" and own[0] is None and not identity.wanted(config):
        return None
    folder = identity.certificates_folder(config, home)
    certificate: Path = (own[0] or folder / "policy_server.crt").expanduser()
    key: Path = (own[1] or folder / "policy_server.key").expanduser()
    try:
        return Certificate(certificate, key, security.warn_days)
    except ConfigError as error:
        where = "" if own[0] else ("; `openclaw-rl init` makes certificates, security.http_certificate names one of "
                                   "your own, security.http_tls: off disables HTTPS, behind your own proxy")
        raise ConfigError(f"the HTTP entrypoint on {host} needs HTTPS, and {error}{where}") from None
