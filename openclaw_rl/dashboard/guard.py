"""Middleware that checks origin and access of every request.

Refused are names that aren't this machine's (a web site that lets its name point here, DNS rebinding) and origins
other than our own (another site's scripts and sockets). What goes out gets a content security policy: scripts only
from here, none inline but NiceGUI's own, which carry a number that is new for each page.
"""

from __future__ import annotations

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
from openclaw_rl.rpc.auth.web_pages import STATUS, HostNames, host_name, validate_host, validate_site

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
        self._hosts = HostNames.of((*names, *own), access.loopback, "dashboard.names")
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
        host = headers.get("host", "")
        rejection = (validate_host(headers) or self._hosts.validate(host)
                     or validate_site(headers, scope.get("method", ""), self._secure))
        if rejection is not None:
            return PlainTextResponse(f"{rejection.message}\n", STATUS[rejection.code])
        name = host_name(host)
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


def cookie_name(port: int) -> str:
    """Of the session's cookie."""
    return f"openclaw_rl_session_{port}"
