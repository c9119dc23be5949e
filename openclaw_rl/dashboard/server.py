"""HTTP(S) server of the dashboard: listener, certificate, start link."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from openclaw_rl.config import Config, ConfigError
from openclaw_rl.dashboard.access import Access, secret_in
from openclaw_rl.dashboard.context import Dashboard
from openclaw_rl.monitoring.collector import Collector
from openclaw_rl.monitoring.history import History
from openclaw_rl.monitoring.mesh import MeshData
from openclaw_rl.rpc.auth.keys import KeyRing
from openclaw_rl.runtime import identity
from openclaw_rl.runtime.home import Home
from openclaw_rl.serving.entrypoints.openai.https import Certificate

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Listener:
    """Where the dashboard listens."""

    socket: socket.socket
    host: str
    port: int
    certificate: Certificate | None

    @property
    def url(self) -> str:
        """For this machine's browser."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, f"[{self.host}]" if ":" in self.host
                                                          else self.host)
        return f"{'http' if self.certificate is None else 'https'}://{host}:{self.port}"


def listen(config: Config, home: Home, host: str, port: int, plain: bool = False) -> Listener:
    """Bind the address.

    Args:
        plain: clear text is wanted on another address than loopback: a proxy with TLS stands in front.

    Raises:
        ConfigError: the address can't be used; the text says what to do.
    """
    found = certificate(config, home, host, plain)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(128)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"port {port} of {host} is in use, perhaps by another dashboard: open "
                              f"http://{host}:{port}, or choose another port with --port (0: any free port)") from None
        raise ConfigError(f"the dashboard cannot listen on {host}:{port}: {error.strerror or error}; choose another "
                          "address with --host and --port") from None
    return Listener(bound, host, bound.getsockname()[1], found)


def certificate(config: Config, home: Home, host: str, plain: bool) -> Certificate | None:
    """The certificate to serve with; None where plain HTTP is right: on loopback, unless `security.tls` is on.

    Raises:
        ConfigError: there is none and it is needed, or it can't be used.
    """
    security = config.security
    if plain or (identity.is_loopback(host) and security.tls != "on"):
        return None
    folder = identity.certificates_folder(config, home)
    pairs = [(security.http_certificate, security.http_key),
             *((folder / f"{role}.crt", folder / f"{role}.key") for role in ("policy_server", "operator"))]
    for crt, key in pairs:
        if crt is not None and key is not None and Path(crt).expanduser().exists():
            return Certificate(crt.expanduser(), key.expanduser(), security.warn_days)
    if identity.is_loopback(host):
        raise ConfigError(f"security.tls is on, but {folder} has no certificate: `openclaw-rl init` creates one")
    raise ConfigError(f"plain HTTP on {host} would expose keys and messages to the network: run `openclaw-rl init` for "
                      "certificates, set security.http_certificate to your own, or use --plain-http behind an HTTPS "
                      "proxy")


def build(config: Config, home: Home, listener: Listener) -> Dashboard:
    """The dashboard of a home.

    Raises:
        KeyFileError: the keys' file can't be used.
    """
    mesh, history = MeshData(home), History(home.root / "dashboard", config.dashboard.keep_days)
    folder = home.root / "dashboard"
    access = Access(KeyRing.of(config, home), identity.is_loopback(listener.host), secret_in(folder),
                    ended=folder / "ended")
    return Dashboard(home, config, mesh, history, Collector(mesh, history, config.dashboard.interval), access)


def serve(config: Config, home: Home, listener: Listener, ready: Callable[[str], None]) -> None:
    """Serve until interrupted.

    Args:
        ready: told the start link once pages can be opened.
    """
    from openclaw_rl.dashboard.app import make_app

    dashboard = build(config, home, listener)
    app = make_app(dashboard, names=tuple(config.dashboard.names), secure=listener.certificate is not None,
                   port=listener.port)
    # h11 sends no chunks to HTTP/1.0 (RFC 9112, 6.1), as nginx asks by default; uvicorn's other parser does.
    settings = _Settings(app, log_config=None, access_log=False, server_header=False, proxy_headers=False,
                         http="h11", ws="wsproto", timeout_graceful_shutdown=2, lifespan="on")
    settings.load()
    settings.certificate = listener.certificate
    if listener.certificate is not None:
        settings.ssl = _renewing(listener.certificate)
    link = f"{listener.url}/login#{dashboard.access.token}"
    asyncio.run(_Server(settings, lambda: ready(link)).serve(sockets=[listener.socket]))


class _Settings(uvicorn.Config):
    """Knows that it speaks HTTPS with a certificate of ours."""

    certificate: Certificate | None = None

    @property
    def is_ssl(self) -> bool:
        return self.certificate is not None


class _Server(uvicorn.Server):
    """Tells when pages can be opened."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


def _renewing(certificate: Certificate) -> ssl.SSLContext:
    """A context that hands each connection over to that of the files as they are now."""
    context = certificate.context()

    def renew(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = certificate.context()

    context.sni_callback = renew  # type: ignore[assignment]
    return context
