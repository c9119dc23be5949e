"""Middleware that checks origin and access of every request.

Refused are names that aren't this machine's (a web site that lets its name point here, DNS rebinding) and origins
other than our own (another site's scripts and sockets). What goes out gets a content security policy: scripts only
from here, none inline but NiceGUI's own, which carry a number that is new for each page.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from openclaw_rl.dashboard.access import Access
from openclaw_rl.dashboard.i18n import chosen, texts
from openclaw_rl.runtime.identity import is_loopback

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

#: Paths that show nothing of the mesh, and open to everybody.
OPEN = ("/login", "/logout", "/language", "/theme", "/dash/", "/favicon.ico")
THEMES = {"auto": "None", "light": "False", "dark": "True"}  #: as NiceGUI's page template says it


class Guard:
    """ASGI middleware around everything.

    Args:
        app: what it guards.
        access: who may read.
        names: host names that the dashboard is known by, beside this machine's.
        secure: it speaks HTTPS.
        port: of the listener; cookies are per host, so their names carry it.
    """

    def __init__(self, app: Any, access: Access, names: Iterable[str], secure: bool, port: int) -> None:
        self.app, self._access, self._secure = app, access, secure
        own = () if access.loopback else (socket.gethostname(), socket.getfqdn())
        names = tuple(names)
        self._named = bool(names)
        self._names = {name.lower().rstrip(".") for name in (*names, *own)}
        self.cookie = cookie_name(port)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)  # type: ignore[arg-type]
        cookies = cookie_parser(headers.get("cookie", ""))
        state = scope.setdefault("state", {})
        state["nonce"] = secrets.token_urlsafe(16)
        state["language"] = chosen(cookies.get("openclaw_rl_language", ""), headers.get("accept-language", ""))
        words = texts(state["language"])
        state["lost"], state["reconnecting"] = words["frame.lost"], words["frame.reconnecting"]
        state["theme"] = theme = cookies.get("openclaw_rl_theme", "auto") \
            if cookies.get("openclaw_rl_theme") in THEMES else "auto"
        state["dark"] = THEMES[theme]
        state["cookie"], state["secure"] = self.cookie, self._secure
        refused = self._refused(scope, headers, cookies)
        if scope["type"] == "websocket":
            if refused is not None:
                await receive()
                await send({"type": "websocket.close", "code": 4403})
            else:
                await self.app(scope, receive, send)
            return
        host = headers.get("host", "")

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._harden(MutableHeaders(raw=message.setdefault("headers", [])), state["nonce"], host)
            await send(message)

        try:
            await (refused or self.app)(scope, receive, guarded)
        except RuntimeError as error:
            if str(error) != "No response returned.":  # Starlette's word for a reader who went away meanwhile
                raise

    def _refused(self, scope: MutableMapping[str, Any], headers: Headers, cookies: dict[str, str]) -> Response | None:
        """Why a request isn't taken, as a response; None when it is."""
        host, origin = headers.get("host", ""), headers.get("origin")
        name = host_name(host)
        if len(headers.getlist("host")) != 1 or not self.known(name):
            return PlainTextResponse(f"The dashboard is not known by the name {host[:200]!r}. Open it by an address of "
                                     "this machine, or add the name to dashboard.names.\n", 421)
        if origin is not None and not self._own(origin, host):
            return PlainTextResponse("Cross-site request rejected.\n", 403)
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not (
                headers.get("sec-fetch-mode") == "navigate" and scope.get("method") == "GET"):
            return PlainTextResponse("Cross-site request rejected.\n", 403)
        client = scope.get("client") or ("", 0)
        proxied = self._named or any(name in headers for name in ("forwarded", "x-forwarded-for", "x-real-ip", "via"))
        visitor = self._access.visitor(cookies.get(self.cookie, ""), str(client[0]), proxied, name)
        scope["state"]["visitor"] = visitor
        path = scope["path"]
        if visitor.reads or any(path == opened or (opened.endswith("/") and path.startswith(opened))
                                for opened in OPEN):
            return None
        if scope["type"] == "http" and scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
            query = scope.get("query_string", b"").decode("latin-1")
            return RedirectResponse("/login?next=" + quote(path + (f"?{query}" if query else ""), safe=""), 303)
        return PlainTextResponse("A key is required: sign in at /login.\n", 401)

    def known(self, name: str) -> bool:
        """Whether a host name is ours. An address can't be made to point elsewhere, so any of them may be."""
        if name in self._names or name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return is_loopback(name) or not self._access.loopback

    def _own(self, origin: str, host: str) -> bool:
        """Whether an origin is a page of ours. Behind a proxy with TLS pages are https while we speak plain text."""
        schemes = ("https",) if self._secure else ("http", "https")
        return any(origin.lower() == f"{scheme}://{host.lower()}" for scheme in schemes)

    def _harden(self, headers: MutableHeaders, nonce: str, host: str) -> None:
        sockets = f"ws://{host} wss://{host}"
        headers["content-security-policy"] = (
            # Vue compiles NiceGUI's templates in the browser, hence unsafe-eval; its inline scripts carry the nonce.
            f"default-src 'none'; script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
            f"img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' {sockets}; form-action 'self'; "
            "base-uri 'none'; frame-ancestors 'none'; manifest-src 'self'; worker-src 'self' blob:")
        headers["x-content-type-options"] = "nosniff"
        headers["x-frame-options"] = "DENY"
        headers["referrer-policy"] = "same-origin"
        headers["cross-origin-opener-policy"] = "same-origin"
        headers["cross-origin-resource-policy"] = "same-origin"
        if headers.get("content-type", "").startswith("text/html"):
            headers["cache-control"] = "no-store"


def host_name(host: str) -> str:
    """The name or address in a Host header, without port and brackets, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower().rstrip(".") if ":" in host else host.lower().rstrip(".")


def cookie_name(port: int) -> str:
    """Of the session's cookie."""
    return f"openclaw_rl_session_{port}"
