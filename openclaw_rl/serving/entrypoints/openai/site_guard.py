"""Middleware that keeps web pages away from the API, but for those of `cors_origins`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from openclaw_rl.rpc.auth.web_pages import (
    STATUS,
    HostNames,
    PageRejection,
    validate_host,
    validate_json,
    validate_site,
)
from openclaw_rl.runtime.rejection import Rejection
from openclaw_rl.serving.entrypoints.openai.errors import ApiError

_SETTINGS = "components.policy_server"
#: Response headers that scripts of allowed pages may read.
_EXPOSED = ("X-OpenClaw-Turn-Id", "X-OpenClaw-Policy-Version", "X-Request-Id", "Retry-After", "Retry-After-Ms",
            "X-RateLimit-Limit-Requests", "X-RateLimit-Remaining-Requests", "X-RateLimit-Reset-Requests")


class SiteGuard:
    """ASGI middleware. Refusals have OpenAI's shape.

    Args:
        app: what it guards.
        hosts: the names that requests may be addressed to; None: any.
        names_matter: whether `hosts` counts now. Where a key is required it need not: a page that reaches the server by
            DNS rebinding has none.
        origins: of web pages that may use the API.
        secure: the listener speaks HTTPS.
        refused: called with a reason for the metrics.
    """

    def __init__(self, app: ASGIApp, hosts: HostNames | None, names_matter: Callable[[], bool],
                 origins: Iterable[str], secure: bool, refused: Callable[[str], None]) -> None:
        self._app, self._hosts, self._names_matter = app, hosts, names_matter
        self._origins, self._secure, self._refused = frozenset(origins), secure, refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (rejection := self._validate(scope)) is not None:
            self._refused(rejection.code)
            response = ApiError(STATUS[rejection.code], rejection.message, code=rejection.code).response()
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _validate(self, scope: Scope) -> Rejection[PageRejection] | None:
        headers, method = Headers(scope=scope), scope["method"]
        if (bad := validate_host(headers, scope["http_version"])) is not None:
            return bad
        if self._hosts is not None and "host" in headers and self._names_matter() and (
                unknown := self._hosts.validate(headers["host"])) is not None:
            return unknown
        cross = validate_site(headers, method, self._secure, self._origins, f"{_SETTINGS}.cors_origins")
        return cross or (validate_json(headers) if method == "POST" else None)


def guarded(app: ASGIApp, hosts: HostNames | None = None, names_matter: Callable[[], bool] = lambda: True,
            origins: Iterable[str] = (), secure: bool = False,
            refused: Callable[[str], None] = lambda _: None) -> ASGIApp:
    """`app` behind a `SiteGuard`, and preflights of the pages of `origins` answered. The parameters are the guard's."""
    origins = tuple(origins)
    guard = SiteGuard(app, hosts, names_matter, origins, secure, refused)
    if not origins:
        return guard
    return CORSMiddleware(guard, allow_origins=origins, allow_methods=("GET", "POST"), allow_headers=("*",),
                          expose_headers=_EXPOSED, max_age=600, allow_private_network=True)


def host_names(host: str, names: Iterable[str]) -> HostNames:
    """The names of the policy server: its configured host, and `names`."""
    return HostNames.of((host, *names), True, f"{_SETTINGS}.names")
