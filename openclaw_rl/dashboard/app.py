"""The web application: NiceGUI's pages behind the guard, and plain routes for sign-in and preferences."""

from __future__ import annotations

import asyncio
import inspect
import logging
from contextlib import asynccontextmanager
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from fastapi import FastAPI
from jinja2 import BaseLoader, ChoiceLoader, Environment, TemplateNotFound
from nicegui import client as nicegui_client
from nicegui import ui
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from openclaw_rl.dashboard import context, layout
from openclaw_rl.dashboard.access import ApiError
from openclaw_rl.dashboard.context import Dashboard
from openclaw_rl.dashboard.data.texts import line
from openclaw_rl.dashboard.guard import THEMES, Guard
from openclaw_rl.dashboard.i18n import LANGUAGES, t, texts
from openclaw_rl.dashboard.pages import Page, all_pages

logger = logging.getLogger(__name__)

_STATIC = Path(__file__).parent / "static"
_YEAR = 365 * 86400
#: Largest form of the sign-in page, bytes.
_FORM = 4096


def make_app(dashboard: Dashboard, *, names: tuple[str, ...] = (), secure: bool = False, port: int = 0) -> Guard:
    """The ASGI application of a dashboard; one in a process.

    Args:
        names: host names that it is known by, beside this machine's.
        secure: it is served with HTTPS.
        port: that it is served at.
    """
    context.install(dashboard)
    _keep_inline_scripts_apart()
    logging.getLogger("nicegui").addFilter(_inert)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> Any:
        collecting = asyncio.create_task(dashboard.collector.run())
        try:
            yield
        finally:
            collecting.cancel()
            await asyncio.gather(collecting, return_exceptions=True)
            await dashboard.mesh.close()
            await asyncio.to_thread(dashboard.history.close)

    outer = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    outer.mount("/dash", StaticFiles(directory=_STATIC), name="dash")
    outer.add_api_route("/login", _login, methods=["GET"])
    outer.add_api_route("/login", _sign_in, methods=["POST"])
    outer.add_api_route("/logout", _sign_out, methods=["POST"])
    outer.add_api_route("/language", _choose, methods=["POST"])
    outer.add_api_route("/theme", _choose, methods=["POST"])
    for page in all_pages():
        _register(page)
    ui.run_with(outer, title="OpenClaw-RL", favicon=_STATIC / "favicon.svg", dark=None, tailwind=False,
                binding_refresh_interval=None, show_welcome_message=False, reconnect_timeout=10,
                message_history_length=200)
    # Socket.IO takes any origin: the guard has refused all but our own, and knows of proxies with TLS.
    return Guard(outer, dashboard.access, names, secure, port)


def _register(page: Page) -> None:
    async def handler(request: Request) -> None:
        ui.page_title(f"{layout.title(page)} · OpenClaw-RL")
        with layout.frame(page) as allowed:
            if allowed:
                with layout.tag("div", "", "d-page") as place:
                    try:
                        made = page.build(**request.path_params)
                        if inspect.isawaitable(made):
                            await made
                    except Exception:
                        logger.exception("cannot render the page %s", page.path)
                        place.clear()
                        with place, layout.tag("section", "", "d-card d-empty", role="alert"):
                            layout.tag("h1", t("frame.failed"))
                            layout.tag("p", t("frame.failed_more"), "d-muted")

    ui.page(page.path)(handler)


def _inert(record: logging.LogRecord) -> bool:
    """Browsers may let NiceGUI log what they like: no control character of theirs reaches the operator's terminal."""
    record.msg, record.args = line(record.getMessage(), 500), ()
    return True


class _Template(BaseLoader):
    """NiceGUI's page, its inline scripts marked with the page's number, its language and theme the reader's."""

    def __init__(self, inner: BaseLoader) -> None:
        self._inner = inner

    def get_source(self, environment: Environment, template: str) -> Any:
        source, file, fresh = self._inner.get_source(environment, template)
        if template != "index.html":
            raise TemplateNotFound(template)
        changed = source.replace("<script", '<script nonce="{{ request.state.nonce }}"')
        changed = changed.replace("const dark = {{ dark }};", "const dark = {{ request.state.dark }};")
        changed = changed.replace('<html{% if html_lang %} lang="{{ html_lang }}"{% else %} dir="ltr"{% endif %}>',
                                  '<html lang="{{ request.state.language }}" dir="ltr">')
        changed = changed.replace("{{ translations.connection_lost }}", "{{ request.state.lost }}")
        changed = changed.replace("{{ translations.trying_to_reconnect }}", "{{ request.state.reconnecting }}")
        return changed, file, fresh


def _keep_inline_scripts_apart() -> None:
    """Let scripts of NiceGUI's page be told from others by the content security policy."""
    environment = nicegui_client.templates.env
    if not isinstance(environment.loader, ChoiceLoader):
        assert environment.loader is not None
        environment.loader = ChoiceLoader([_Template(environment.loader), environment.loader])
        environment.cache = {}


async def _login(request: Request) -> Response:
    return HTMLResponse(_form(request, ""))


async def _sign_in(request: Request) -> Response:
    fields = await _fields(request)
    if fields is None:
        return HTMLResponse(_form(request, "login.too_long"), 413)
    client = request.client.host if request.client else ""
    try:
        cookie = context.dash().access.sign_in(fields.get("key", "").strip(), client)
    except ApiError as error:
        busy = error.status == 429
        response: Response = HTMLResponse(_form(request, "login.busy" if busy else "login.wrong"), error.status)
        if busy and "Retry-After" in error.headers:
            response.headers["Retry-After"] = error.headers["Retry-After"]
        return response
    response = RedirectResponse(_ours(request.query_params.get("next", "/")), 303)
    secure = request.state.secure or request.headers.get("origin", "").startswith("https:")
    response.set_cookie(request.state.cookie, cookie, max_age=7 * 86400, httponly=True, samesite="strict",
                        secure=secure)
    return response


async def _sign_out(request: Request) -> Response:
    context.dash().access.sign_out(request.cookies.get(request.state.cookie, ""))
    response = RedirectResponse("/", 303)
    response.delete_cookie(request.state.cookie, httponly=True, samesite="strict")
    return response


async def _choose(request: Request) -> Response:
    """Remember the reader's language or theme."""
    fields = await _fields(request) or {}
    response = RedirectResponse(_ours(fields.get("next", "/")), 303)
    for name, allowed in (("language", LANGUAGES), ("theme", THEMES)):
        if fields.get(name) in allowed:
            response.set_cookie(f"openclaw_rl_{name}", fields[name], max_age=_YEAR, httponly=True, samesite="strict")
    return response


async def _fields(request: Request) -> dict[str, str] | None:
    """The fields of a form; None when it is larger than any of ours."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _FORM:
            return None
    return {name: values[-1] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}


def _ours(path: str) -> str:
    """A path of ours to go on to, whatever was asked for."""
    good = path.startswith("/") and not path.startswith("//") and "\\" not in path and path.isprintable()
    return path if good else "/"


def _form(request: Request, problem: str) -> str:
    """The sign-in page, which works without scripts. With one it takes the token of the start link, which stands behind
    a # so that no log and no other site ever sees it."""
    words = texts(request.state.language)
    theme = request.state.theme
    say = {key: escape(words[f"login.{key}"]) for key in ("title", "text", "key", "enter", "start")}
    told = f'<p class="d-problem" role="alert">{escape(words[problem])}</p>' if problem else ""
    return f"""<!doctype html>
<html lang="{request.state.language}" data-theme="{theme}"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{say["title"]} · OpenClaw-RL</title>
<link rel="icon" href="/dash/favicon.svg"><link rel="stylesheet" href="/dash/dash.css">
<script src="/dash/login.js" defer></script></head>
<body class="d-login"><main><h1>OpenClaw-RL</h1><p>{say["text"]}</p>{told}
<form method="post" id="login"><label for="key">{say["key"]}</label>
<input id="key" name="key" type="password" autocomplete="current-password" required autofocus>
<button type="submit">{say["enter"]}</button></form><p class="d-muted">{say["start"]}</p></main></body></html>"""



__all__ = ["make_app"]
