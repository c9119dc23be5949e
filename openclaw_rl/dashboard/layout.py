"""Page frame: skip link, header, navigation, language and theme, sign-in, current problems."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement

from openclaw_rl.dashboard.access import visitor
from openclaw_rl.dashboard.context import dash
from openclaw_rl.dashboard.i18n import LANGUAGES, language, t
from openclaw_rl.dashboard.pages import Page, all_pages

#: Seconds for a browser to go where it is sent.
_SENT_AWAY = 1.0
_THEMES = {"auto": "brightness_auto", "light": "light_mode", "dark": "dark_mode"}


def title(page: Page) -> str:
    """Return the page's title in the reader's language."""
    return t(f"nav.{page.key}")


class Tag(TextElement):
    """An HTML element with text, which is never interpreted as markup, and child elements."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(tag=name, text=text)

    def put(self, **attributes: str) -> Tag:
        """Set attributes; unchanged ones send nothing."""
        for key, value in attributes.items():
            key = key.rstrip("_").replace("_", "-")
            if self.props.get(key) != value:
                self.props[key] = value
                self.update()
        return self


def tag(name: str, text: str = "", classes: str = "", /, **attributes: str) -> Tag:
    """Add an HTML element. Attributes: `aria_label` becomes `aria-label`, `for_` becomes `for`."""
    made = Tag(name, text)
    if classes:
        made.classes(classes)
    return made.put(**attributes)


@contextmanager
def frame(page: Page) -> Iterator[bool]:
    """Add the frame around a page's content. Yields whether the reader has access; if not, the frame says so."""
    who = visitor()
    ui.add_head_html('<link rel="stylesheet" href="/dash/dash.css">')
    ui.colors(primary="#0b5cad", positive="#1a7f37", negative="#b42318", warning="#8a5a00")
    tag("a", t("frame.skip"), "d-skip", href="#main")
    _no_landmark()
    with tag("header", "", "d-header", role="banner"):
        tag("a", "OpenClaw-RL", "d-brand", href="/")
        with tag("nav", "", "d-nav", aria_label=t("frame.navigation")):
            for other in all_pages():
                if other.nav:
                    current = {"aria_current": "page"} if other.key == page.key else {}
                    with tag("a", "", "d-nav-link", href=other.path, **current):
                        ui.icon(other.icon).props('aria-hidden="true"')
                        tag("span", title(other))
        with tag("div", "", "d-tools"):
            _switch("language", {key: (name, "") for key, name in LANGUAGES.items()}, language(), t("frame.language"))
            _switch("theme", {key: (t(f"frame.theme.{key}"), icon) for key, icon in _THEMES.items()},
                    ui.context.client.request.state.theme, t("frame.theme"))
            _who()
    banner()
    with tag("main", "", "d-main", id="main", tabindex="-1"):
        allowed = who.words if page.words else who.reads
        if not allowed:
            with tag("section", "", "d-card d-empty"):
                tag("h1", title(page))
                tag("p", t("frame.words_need_admin"))
                tag("a", t("frame.sign_in"), href=f"/login?next={quote(here(), safe='')}")
        yield allowed


def _no_landmark() -> None:
    """Remove the landmark role of NiceGUI's `main`, which contains header and navigation too."""
    slot = ui.context.client.content.parent_slot
    if slot is not None:
        slot.parent.props("role=presentation")


def banner() -> None:
    """Add a banner of components that do not respond, and since when. Changes are announced to screen readers."""
    with tag("div", "", "d-banner", role="status", aria_live="polite") as box:
        pass
    shown: list[tuple[str, ...]] = [()]

    def show() -> None:
        if not visitor().reads:
            timer.deactivate()
            shut_out()
            return
        seen = dash().mesh.all()
        lines: tuple[str, ...]
        if all(one.state == "ABSENT" for one in seen):
            lines = (t("frame.no_mesh", home=str(dash().home.root)),)
        else:
            lines = tuple(t("frame.down", name=one.name, since=clock(one.since), problem=one.problem)
                          for one in seen if not one.live)
        lines += tuple(t(key, **values) for key, values in dash().history.problems())
        if lines != shown[0]:
            shown[0] = lines
            box.clear()
            with box:
                for line in lines:
                    tag("p", line)

    timer = ui.timer(1.0, show, immediate=False)
    show()


def here() -> str:
    """Return path and query of the current page."""
    url = ui.context.client.request.url
    return url.path + (f"?{url.query}" if url.query else "")


def shut_out() -> None:
    """End a page whose reader has lost access: redirect the browser, and delete the page in case it stays."""
    client = ui.context.client
    ui.navigate.to("/login" if not visitor().reads else here())

    def end() -> None:
        if not client.is_deleted:
            client.delete()

    asyncio.get_running_loop().call_later(_SENT_AWAY, end)


def clock(at: float) -> str:
    """Format a time in the server's time zone, with the date unless it is today."""
    then, now = time.localtime(at), time.localtime()
    return time.strftime("%H:%M:%S" if then[:3] == now[:3] else "%Y-%m-%d %H:%M:%S", then)


def _switch(name: str, choices: dict[str, tuple[str, str]], chosen: str, label: str) -> None:
    """Add a one-button form that switches to the next choice."""
    keys = list(choices)
    following = keys[(keys.index(chosen) + 1) % len(keys)]
    with tag("form", method="post", action=f"/{name}"):
        tag("input", type="hidden", name="next", value=here())
        tag("input", type="hidden", name=name, value=following)
        text, icon = choices[chosen]
        told = f"{label}: {text}. {t('frame.switch_to', to=choices[following][0])}"
        with tag("button", "" if icon else choices[following][0], "d-tool", type="submit", title=told,
                 aria_label=told):
            if icon:
                ui.icon(icon).props('aria-hidden="true"')


def _who() -> None:
    """Add the user's name with a sign-out button, or a sign-in link."""
    who = visitor()
    if not who.name:
        tag("a", t("frame.sign_in"), "d-tool", href=f"/login?next={quote(here(), safe='')}")
        return
    with tag("form", method="post", action="/logout"):
        told = t("frame.sign_out", name=t("frame.operator") if who.name == "token" else who.name)
        with tag("button", "", "d-tool", type="submit", title=told, aria_label=told):
            ui.icon("logout").props('aria-hidden="true"')


def heading(text: str) -> Tag:
    """Add the page's heading."""
    return tag("h1", text, "d-h1")
