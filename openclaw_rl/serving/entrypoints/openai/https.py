"""The certificate of the HTTP entrypoint, reloaded when its files change."""

from __future__ import annotations

import datetime
import logging
import ssl
from pathlib import Path

from cryptography import x509

from openclaw_rl.config import ConfigError
from openclaw_rl.rpc.auth.certificates import check_private
from openclaw_rl.runtime.reloading import Reloading

logger = logging.getLogger(__name__)


class Certificate:
    """A certificate with its chain, and its key, in two PEM files.

    Args:
        warn_days: days before its expiry from which `problem` warns.

    Raises:
        ConfigError: they can't be used; the text names the file.
    """

    def __init__(self, certificate: Path, key: Path, warn_days: int = 30) -> None:
        self._certificate, self._key = certificate, key
        self._warn = datetime.timedelta(days=warn_days)
        # The pair may be half written: retried at the next connection.
        self._pair = Reloading(f"the HTTPS certificate {certificate}", (certificate, key), self._load, ConfigError,
                               incomplete=lambda _: True)

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection, of the newest usable files."""
        return self._pair.value()[0]

    @property
    def problem(self) -> str:
        """What is wrong, or soon will be; empty when nothing is."""
        if broken := self._pair.problem:
            return f"the new HTTPS certificate can't be used ({broken}); the previous one is in use"
        ends = self._pair.value()[1]
        left = ends - datetime.datetime.now(datetime.UTC)
        if left < datetime.timedelta():
            return f"the HTTPS certificate {self._certificate} expired on {ends:%Y-%m-%d}: clients refuse it"
        if left < self._warn:
            return (f"the HTTPS certificate {self._certificate} expires on {ends:%Y-%m-%d}: put a new one there, "
                    "it is loaded without a restart")
        return ""

    def _load(self) -> tuple[ssl.SSLContext, datetime.datetime]:
        check_private(self._key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        try:
            ends = x509.load_pem_x509_certificate(self._certificate.read_bytes()).not_valid_after_utc
            context.load_cert_chain(self._certificate, self._key, password=lambda: "")
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise ConfigError(f"{self._certificate} and {self._key} can't be used for HTTPS: {why}") from None
        return context, ends
