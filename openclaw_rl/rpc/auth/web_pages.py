"""Validation of HTTP requests that keeps other sites' web pages out.

A browser sends a page's requests to any address, also to this machine's, and some of them without asking first (a
POST of `text/plain`). A page of a site whose name suddenly points here (DNS rebinding) even reads the responses. Both
are told by headers that a page can't set: Host, Origin and Sec-Fetch-Site. Programs send no Origin, and any Host.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from starlette.datastructures import Headers

from openclaw_rl.runtime.identity import is_loopback
from openclaw_rl.runtime.rejection import Rejection

#: RFC 9112, 3.2: a registered name or address, and an optional port.
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.%\w]+\]|[\w.~!$&'()*+,;=%-]+)(?::\d{0,5})?", re.ASCII)
_JSON = re.compile(r"application/(?:[\w.+-]+\+)?json", re.ASCII)


class PageRejection(StrEnum):
    """Why a request is not accepted."""

    BAD_HOST = "bad_host"  #: no Host, several, or one that is none
    UNKNOWN_HOST = "unknown_host"  #: a name that may be any site's
    CROSS_SITE = "cross_site"  #: sent by another site's page
    NOT_JSON = "not_json"


#: The HTTP status for each.
STATUS = {PageRejection.BAD_HOST: 400, PageRejection.UNKNOWN_HOST: 421, PageRejection.CROSS_SITE: 403,
          PageRejection.NOT_JSON: 415}


@dataclass(frozen=True)
class HostNames:
    """The names that a listener is known by.

    Args:
        names: besides `localhost`, its subdomains, and addresses, in lower case.
        loopback: of addresses, only loopback ones. No address can be made to point elsewhere.
        setting: configuration key that takes further names; "" where there is none.
    """

    names: frozenset[str]
    loopback: bool
    setting: str

    @classmethod
    def of(cls, names: Iterable[str], loopback: bool, setting: str) -> HostNames:
        """The same from names as they are configured."""
        return cls(frozenset(name.lower().rstrip(".") for name in names), loopback, setting)

    def validate(self, host: str) -> Rejection[PageRejection] | None:
        """Check a Host header that `validate_host` has accepted."""
        name = host_name(host)
        if name in self.names or name == "localhost" or name.endswith(".localhost"):
            return None
        try:
            ipaddress.ip_address(name)
        except ValueError:
            pass
        else:
            if is_loopback(name) or not self.loopback:
                return None
        add = f", or add the name to {self.setting}" if self.setting else ""
        return Rejection(PageRejection.UNKNOWN_HOST, f"This server is not known by the name {host[:200]!r}. Use an "
                                                     f"address of this machine{add}.")


def validate_host(headers: Headers, http_version: str = "1.1") -> Rejection[PageRejection] | None:
    """Check that there is one Host header, as RFC 9112, 3.2 demands; HTTP/1.0 needs none."""
    hosts = headers.getlist("host")
    if not hosts and http_version == "1.0":
        return None
    if len(hosts) != 1:
        return Rejection(PageRejection.BAD_HOST, f"The request has {len(hosts)} Host headers; it must have one.")
    if not _HOST.fullmatch(hosts[0]):
        return Rejection(PageRejection.BAD_HOST, f"The Host header {hosts[0][:200]!r} is not HOST or HOST:PORT.")
    return None


def validate_site(headers: Headers, method: str, secure: bool, origins: frozenset[str] = frozenset(),
                  setting: str = "") -> Rejection[PageRejection] | None:
    """Check that no page of another site sent the request.

    Args:
        secure: the listener speaks HTTPS. Otherwise a proxy may, so that our own pages are https nevertheless.
        origins: of the pages that may send requests, besides our own.
        setting: configuration key that takes further origins; "" where there is none.
    """
    origin = headers.get("origin")
    if origin is not None:
        host = headers.get("host", "").lower()
        own = (f"{scheme}://{host}" for scheme in (("https",) if secure else ("http", "https")))
        if origin.lower() in (*own, *origins):
            return None
    elif headers.get("sec-fetch-site") not in ("cross-site", "same-site") or (
            headers.get("sec-fetch-mode") == "navigate" and method == "GET"):  # somebody followed a link
        return None
    allow = f" To allow it, add its origin to {setting}." if setting else ""
    return Rejection(PageRejection.CROSS_SITE, f"Cross-site request rejected: it comes from a page of "
                                               f"{(origin or 'another site')[:200]}.{allow}")


def validate_json(headers: Headers) -> Rejection[PageRejection] | None:
    """Check that a request's content is declared as JSON, for which a browser asks another site first (a preflight)."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if _JSON.fullmatch(kind):
        return None
    given = f"Content-Type {kind[:80]!r}" if kind else "no Content-Type"
    return Rejection(PageRejection.NOT_JSON,
                     f"The request has {given}; send JSON with `Content-Type: application/json`.")


def host_name(host: str) -> str:
    """The name or address in a Host header, without port and brackets, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")
