"""Proxies that the environment names: which one a URL goes through, and what never goes through any."""

from __future__ import annotations

import urllib.parse
import urllib.request
from collections.abc import Iterable, MutableMapping

from openclaw_rl.config import Config
from openclaw_rl.runtime.home import COMPONENTS
from openclaw_rl.runtime.identity import is_loopback

_NAMES = ("no_proxy", "NO_PROXY")  # libraries read the one or the other
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def spare(hosts: Iterable[str], environ: MutableMapping[str, str]) -> None:
    """Keep loopback and these hosts from every proxy, in all libraries of this process and of those that it starts."""
    said = [part.strip() for name in _NAMES for part in environ.get(name, "").split(",")]
    whole = ",".join(dict.fromkeys(filter(None, [*said, *_LOOPBACK, *hosts])))
    environ.update(dict.fromkeys(_NAMES, "*" if "*" in said else whole))


def hosts_of(config: Config) -> list[str]:
    """The hosts of a mesh's components, as its configuration has them."""
    sections = [getattr(config.components, name) for name in COMPONENTS]
    addresses = [*filter(None, (section.address for section in sections)), *config.components.trainer.policy_servers]
    return [*(section.host for section in sections), *(address.rpartition(":")[0] for address in addresses)]


def proxy_of(url: str) -> str | None:
    """The proxy that requests to a URL go through; None: none."""
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    proxies = urllib.request.getproxies_environment()
    if is_loopback(host) or urllib.request.proxy_bypass(host):
        return None
    return proxies.get(parts.scheme) or proxies.get("all") or None


def without_password(proxy: str) -> str:
    """A proxy's URL for a message."""
    before, at, host = proxy.rpartition("@")
    return f"{before.partition('://')[0]}://***@{host}" if at else proxy
