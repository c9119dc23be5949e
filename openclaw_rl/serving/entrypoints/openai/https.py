"""The certificate of the HTTP door, read again when its files change."""

from __future__ import annotations

import datetime
import logging
import ssl
from pathlib import Path

from cryptography import x509

from openclaw_rl.config import ConfigError
from openclaw_rl.rpc.auth.certificates import check_private
from openclaw_rl.runtime.home import file_stamp

logger = logging.getLogger(__name__)


class Certificate:
    """A certificate with its chain, and its key, in two PEM files.

    Args:
        warn_days: days before its end from which `problem` warns.

    Raises:
        ConfigError: they can't be used; the text names the file.
    """

    def __init__(self, certificate: Path, key: Path, warn_days: int = 30) -> None:
        self._certificate, self._key = certificate, key
        self._warn = datetime.timedelta(days=warn_days)
        self._broken = ""
        self._seen = self._state()
        self._context, self._ends = self._load()

    def context(self) -> ssl.SSLContext:
        """For the next connection: made of the files as they are now, or as they last could be used."""
        seen = self._state()
        if seen != self._seen:
            try:
                self._context, self._ends = self._load()
            except ConfigError as error:
                if self._broken != str(error):  # the pair may be half written: it is tried again
                    logger.error("the HTTPS certificate from before stays: %s", error)
                self._broken = str(error)
            else:
                logger.info("took the HTTPS certificate in %s, valid until %s", self._certificate, self._ends)
                self._broken, self._seen = "", seen
        return self._context

    @property
    def problem(self) -> str:
        """What is wrong or soon will be, for a person; empty when nothing is."""
        self.context()
        if self._broken:
            return f"the new HTTPS certificate can't be used ({self._broken}); the one from before is in use"
        left = self._ends - datetime.datetime.now(datetime.UTC)
        if left < datetime.timedelta():
            return f"the HTTPS certificate {self._certificate} ended on {self._ends:%Y-%m-%d}: clients refuse it"
        if left < self._warn:
            return (f"the HTTPS certificate {self._certificate} ends on {self._ends:%Y-%m-%d}: put a new one there, it "
                    "is taken without a restart")
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

    def _state(self) -> tuple[tuple[int, int, int], ...]:
        return file_stamp(self._certificate), file_stamp(self._key)
