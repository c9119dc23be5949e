"""Widgets shared by pages. Texts of users, tools and models go through `data.texts` and are only ever shown as text."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import quote
from weakref import WeakKeyDictionary, WeakSet

from nicegui import Client, ui

from openclaw_rl.dashboard.access import NotAllowed, visitor
from openclaw_rl.dashboard.context import dash
from openclaw_rl.dashboard.data import texts
from openclaw_rl.dashboard.data.parts import FAILURES, reason
from openclaw_rl.dashboard.i18n import t
from openclaw_rl.dashboard.layout import Tag, clock, here, shut_out, tag

#: Milliseconds until a message that says what was done goes.
_SAID = 8000
#: Characters of a fact that gets a line of its own.
_LONG = 90
#: Dialogs of each open page.
_DIALOGS: WeakKeyDictionary[Client, WeakSet[ui.dialog]] = WeakKeyDictionary()


def assets() -> None:
    """Add style and scripts that all pages except the overview need."""
    ui.add_head_html('<link rel="stylesheet" href="/dash/pages.css"><script src="/dash/pages.js" defer></script>')


def script(function: str, *values: Any) -> None:
    """Call a function of static/pages.js. Values are passed as data and never evaluated."""
    ui.run_javascript(f"whenReady('{function}', {json.dumps(values)})")


def every(seconds: float, refresh: Callable[[], Awaitable[float | None]], words: bool = True) -> None:
    """Call `refresh` at once and then every `seconds`, while the reader has access (`words`: to users' texts). It may
    return the seconds until the next call."""

    async def look() -> None:
        if visitor().words if words else visitor().reads:
            timer.interval = await refresh() or seconds
        else:
            timer.deactivate()
            shut_out()

    timer = ui.timer(seconds, look)


class RebuiltPart:
    """A part of a page that is rebuilt when its key changes, but not while a dialog is open, whose input would be lost.
    Frequently changing values (times, counts) belong in elements that are updated in place."""

    def __init__(self, classes: str = "", loading: bool = False) -> None:
        self.box = tag("div", t("parts.loading") if loading else "", classes)
        self._shown: object = self

    def show(self, key: object, make: Callable[[], object]) -> bool:
        """Rebuild the part by `make` unless the key is unchanged. Returns whether it is up to date."""
        if key != self._shown:
            if any(dialog.value for dialog in _DIALOGS.get(ui.context.client, ())):
                return False  # the next look brings it
            self._shown = key
            self.box.clear()
            self.box.text = ""
            with self.box:
                make()
        return True


def chip(text: str, tone: str = "") -> Tag:
    """Add a chip; `tone`: "good", "warn", "bad" or none."""
    return tag("span", text, f"d-chip {tone}".rstrip())


def when(at: float, classes: str = "d-muted") -> Tag:
    """Add a time."""
    return tag("time", clock(at) if at else "–", classes)


def text_block(text: str, label: str = "", limit: int = texts.SHOWN) -> Tag:
    """Add a verbatim text: monospaced, wrapped, scrollable."""
    shown = texts.inert(text, limit)
    attributes = {"tabindex": "0", "role": "region", "aria_label": label} if label else {}
    return tag("pre", shown, "d-pre p-text", dir="auto", **attributes)


def facts(rows: Sequence[tuple[str, str | Callable[[], object]]]) -> None:
    """Add a list of names and values, without empty ones. A function as value adds its own elements."""
    with tag("dl", "", "p-facts"):
        for name, value in rows:
            if not value:
                continue
            with tag("div", "", "p-long" if isinstance(value, str) and len(value) > _LONG else ""):
                tag("dt", name)
                with tag("dd", "" if callable(value) else value, "d-wrap"):
                    if callable(value):
                        value()


def section(title: str, classes: str = "") -> Tag:
    """Add a card with a heading."""
    box = tag("section", "", f"d-card p-card {classes}".rstrip())
    with box:
        tag("h2", title, "d-h2")
    return box


def link(text: str, href: str, classes: str = "") -> Tag:
    """Add a link to a page of the dashboard."""
    return tag("a", text, classes, href=href)


def nothing(text: str, more: str = "") -> Tag:
    """Add an empty state that says what will be shown and how to get it."""
    with tag("div", "", "d-empty p-empty") as box:
        tag("p", text)
        if more:
            tag("p", more, "d-muted")
    return box


def broken(component: str, problem: str, works: str = "") -> Tag:
    """Add a notice that a component does not respond: since when, why, and what still works."""
    seen = dash().mesh.status(component)
    with tag("div", "", "d-card d-empty p-broken", role="alert") as box:
        if seen.live:
            tag("p", t("parts.failed", name=component))
        else:
            tag("p", t("parts.down", name=component, since=clock(seen.since)))
        tag("p", texts.inert(problem, 1000), "d-wrap")
        tag("p", works or t("parts.works"), "d-muted")
    return box


def table(label: str, columns: Sequence[tuple[str, str]]) -> tuple[Tag, Tag]:
    """A table that is a list of cards where it is narrow. Gives the whole, and its body for `row`.

    Args:
        columns: (title, classes).
    """
    with tag("div", "", "d-scroll"), tag("table", "", "d-table p-table", role="table", aria_label=label) as whole:
        with tag("thead", "", role="rowgroup"), tag("tr", "", role="row"):
            for title, classes in columns:
                tag("th", title, classes, scope="col", role="columnheader")
        body = tag("tbody", "", role="rowgroup")
    return whole, body


def row(classes: str = "") -> Tag:
    """Add a table row."""
    return tag("tr", "", classes, role="row")


def cell(title: str, text: str = "", classes: str = "") -> Tag:
    """Add a table cell, with its column's title for narrow screens."""
    return tag("td", text, classes, role="cell", data_label=title)


def put(element: Tag, text: str, classes: str | None = None) -> None:
    """Change an element's text and replace its classes; unchanged values send nothing."""
    if element.text != text:
        element.text = text
    if classes is not None and element.classes != classes.split():
        element.classes(replace=classes)


def button(text: str, do: Callable[[], Any], classes: str = "d-button", **attributes: str) -> Tag:
    """Add a button."""
    made = tag("button", text, classes, type="button", **attributes)
    made.on("click", do)
    return made


class ActionButton:
    """A button that changes something in the mesh: it asks first, saying what will happen, and tells what came of it.

    Args:
        label: what stands on it.
        says: what will happen.
        run: does it with the reason given, and gives a sentence on what was done.
        why: ask for a reason, too.
        blocked: why it can't be done now; empty when it can.
        done: called after it was done.
    """

    def __init__(self, label: str, says: str, run: Callable[[str], Awaitable[str]], *, why: bool = False,
                 blocked: str = "", done: Callable[[], Awaitable[None]] | None = None) -> None:
        self._label, self._says, self._run, self._why, self._done = label, says, run, why, done
        no_key = "" if visitor().acts else t("frame.needs_admin")
        blocked = no_key or blocked
        with tag("span", "", "p-act"):
            self.button = button(label, self._ask, "d-button", **({"disabled": "disabled", "title": blocked}
                                                                  if blocked else {}))
            if blocked:
                note = tag("span", blocked, "d-muted p-note")
                self.button.put(aria_describedby=f"c{note.id}")
                if no_key:
                    link(t("frame.sign_in"), f"/login?next={quote(here(), safe='')}", "p-note")

    def _ask(self) -> None:
        with ui.context.client.content:  # it goes on when the part of the page that the button is in is made anew
            dialog = ui.dialog()
        _DIALOGS.setdefault(ui.context.client, WeakSet()).add(dialog)
        with dialog, ui.card().classes("d-card p-dialog") as card:
            title = tag("h2", self._label, "d-h2")
            says = tag("p", self._says)
            dialog.props(f'aria-labelledby="c{title.id}" aria-describedby="c{says.id}"')
            self._field: Tag | None = None
            given = {"text": ""}
            if self._why:
                with tag("label", t("parts.reason"), "p-field"):
                    field = tag("input", "", type="text", maxlength="500", name="reason", autocomplete="off")
                    field.on("input", lambda event: given.update(text=str(event.args)[:500]),
                             js_handler="(event) => emit(event.target.value)")
            problem = tag("p", "", "d-problem", role="alert")
            problem.set_visibility(False)
            with tag("div", "", "p-buttons"):
                button(t("parts.cancel"), dialog.close)
                confirm = button(self._label, lambda: None, "d-button p-confirm")

            async def act() -> None:
                confirm.put(disabled="disabled")
                problem.set_visibility(False)
                try:
                    visitor().require_acts()
                    said = await self._run(_signed(given["text"].strip()) if self._why else "")
                except NotAllowed:
                    failed = t("frame.needs_admin")
                except FAILURES as error:
                    failed = texts.inert(reason(error), 1000)
                except TimeoutError:
                    failed = t("parts.timeout")
                else:
                    dialog.close()
                    tell(said)
                    if self._done is not None:
                        await self._done()
                    return
                confirm.props.pop("disabled", None)
                confirm.update()
                put(problem, failed)
                problem.set_visibility(True)

            confirm.on("click", act)
        dialog.on("hide", dialog.delete)
        card.props('role="document"')
        dialog.open()


def _signed(why: str) -> str:
    """Return a reason with the name of its author."""
    name = visitor().name
    who = f"by the key {name}, at the dashboard" if name and name != "token" else "by the operator, at the dashboard"
    return ", ".join(filter(None, (why, who)))


def tell(text: str) -> None:
    """Show a notification, also to screen readers."""
    ui.notify(text, type="positive", timeout=_SAID, close_button=t("parts.close"), position="bottom")


def path(*parts: object) -> str:
    """Return the URL path of a page; its parts are quoted."""
    return "/" + "/".join(quote(str(part), safe="", errors="replace") for part in parts)


def form(action: str, label: str) -> Tag:
    """Add a form whose fields become the URL's query, so that the result can be shared."""
    return tag("form", "", "p-form", method="get", action=action, role="search", aria_label=label)


def field(label: str, name: str, value: str, **attributes: str) -> None:
    """Add a text field."""
    with tag("label", "", "p-field"):
        tag("span", label)
        tag("input", "", **{"type": "text", "name": name, "value": value, **attributes})


def choice(label: str, name: str, value: str, choices: Sequence[tuple[str, str]]) -> None:
    """Add a choice of (value, label) pairs."""
    with tag("label", "", "p-field"):
        tag("span", label)
        with tag("select", "", name=name):
            for one, called in choices:
                tag("option", called, value=one, **({"selected": "selected"} if one == value else {}))
