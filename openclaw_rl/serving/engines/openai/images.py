"""Addresses of pictures that an API is asked to fetch.

A client names the address, and the API that fetches it may stand within a private network: it must not become the
client's way into that network (server-side request forgery, CWE-918). The API resolves the name and follows redirects
by itself, so it needs limits of its own, too; see SECURITY.md.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

from openclaw_rl.rpc import errors
from openclaw_rl.v1 import turn_pb2

#: Hosts that one request may name.
MOST_HOSTS = 32
#: Seconds for their addresses. What is not resolved in time is left to the API.
_SECONDS = 5.0
#: Characters that other readers of addresses end a host at, or leave out.
_MISREAD = re.compile(r"[\\\s\x00-\x1f\x7f]")
_PRIVATE_NAMES = (".localhost", ".local", ".internal")
_ALLOWED = "a data: address, or http:// or https:// with a host on the public Internet"


async def check_images(messages: Sequence[turn_pb2.ChatMessage], hosts: Collection[str]) -> None:
    """Check the pictures of a conversation.

    Args:
        hosts: that may be named although they are not public.

    Raises:
        MeshError: INVALID_ARGUMENT, an address is not one that the API may be asked for.
    """
    names: dict[str, tuple[str, str]] = {}  # host -> the field that names it, and its value
    for i, message in enumerate(messages):
        for k, part in enumerate(message.parts):
            if part.WhichOneof("part") == "image_url" and (host := _host(part.image_url)) is not None \
                    and host not in hosts:
                names.setdefault(host, (f"messages[{i}].content[{k}].image_url", part.image_url))
    if len(names) > MOST_HOSTS:
        raise errors.invalid_many([("messages", f"image URLs of {len(names)} hosts; at most {MOST_HOSTS}")])
    resolved = await asyncio.gather(*(_addresses(host) for host in names))
    for (field, url), addresses in zip(names.values(), resolved, strict=True):
        if not all(map(_public, addresses)):
            raise errors.invalid(field, url, f"{_ALLOWED}; components.policy_server.image_hosts allows others")


def _host(url: str) -> str | None:
    """The host of an address, "" if there is none that may be asked; None if nothing is fetched."""
    if url[:5].lower() == "data:":
        return None
    if _MISREAD.search(url):
        return ""
    try:
        split = urlsplit(url)
        return (split.hostname or "") if split.scheme in ("http", "https") else ""
    except ValueError:
        return ""


async def _addresses(host: str) -> list[str]:
    """What a host stands for; empty if that can't be found out here."""
    name = host.rstrip(".")
    if not name or "%" in name or f".{name}".endswith(_PRIVATE_NAMES):
        return [""]
    try:
        return [str(ipaddress.ip_address(name))]
    except ValueError:
        pass
    try:
        return [socket.inet_ntoa(socket.inet_aton(name))]  # 127.1, 0x7f000001 and the like
    except (OSError, UnicodeError):
        pass
    if "." not in name:
        return [""]
    try:
        async with asyncio.timeout(_SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # TimeoutError among them
        return []
    return [str(entry[4][0]).partition("%")[0] for entry in found]


def _public(address: str) -> bool:
    if not address:
        return False
    found = ipaddress.ip_address(address)
    inner = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None)
    return found.is_global and not found.is_multicast and (inner is None or inner.is_global)
