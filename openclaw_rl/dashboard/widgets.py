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
    """What the pages beyond the first one need beside the frame's own style."""
    ui.add_head_html('<link rel="stylesheet" href="/dash/pages.css"><script src="/dash/pages.js" defer></script>')


def script(function: str, *values: Any) -> None:
    """Call a function of static/pages.js. The values travel as data: nothing in them is read as code."""
    ui.run_javascript(f"whenReady('{function}', {json.dumps(values)})")


def every(seconds: float, refresh: Callable[[], Awaitable[float | None]], words: bool = True) -> None:
    """Call `refresh` at once and again and again, while the reader may see the page (`words`: what users said). It may
    give other seconds until the next time."""

    async def look() -> None:
        if visitor().words if words else visitor().reads:
            timer.interval = await refresh() or seconds
        else:
            timer.deactivate()
            shut_out()

    timer = ui.timer(seconds, look)


class Remade:
    """A part of a page that is made anew when what it shows has changed, and not while a dialog is open, since who
    types there would lose it. What changes often (times, counts) belongs into elements that are changed in place."""

    def __init__(self, classes: str = "", loading: bool = False) -> None:
        self.box = tag("div", t("parts.loading") if loading else "", classes)
        self._shown: object = self

    def show(self, key: object, make: Callable[[], object]) -> bool:
        """Let `make` fill it, unless it was made for an equal key. Gives whether it is up to date."""
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
    """A short word in a pill; `tone`: "good", "warn", "bad" or none."""
    return tag("span", text, f"d-chip {tone}".rstrip())


def when(at: float, classes: str = "d-muted") -> Tag:
    """A time, with the whole of it for those who ask."""
    return tag("time", clock(at) if at else "–", classes)


def text_block(text: str, label: str = "", limit: int = texts.SHOWN) -> Tag:
    """A text of somebody's, as it is: monospaced, wrapped, scrolled when it is long."""
    shown = texts.inert(text, limit)
    attributes = {"tabindex": "0", "role": "region", "aria_label": label} if label else {}
    return tag("pre", shown, "d-pre p-text", dir="auto", **attributes)


def facts(rows: Sequence[tuple[str, str | Callable[[], object]]]) -> None:
    """A list of names and what there is to them; what is empty is left out. A function makes its own elements."""
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
    """A card with a heading."""
    box = tag("section", "", f"d-card p-card {classes}".rstrip())
    with box:
        tag("h2", title, "d-h2")
    return box


def link(text: str, href: str, classes: str = "") -> Tag:
    """A link to a page of ours."""
    return tag("a", text, classes, href=href)


def nothing(text: str, more: str = "") -> Tag:
    """A state without anything, which says what would be here and how it comes."""
    with tag("div", "", "d-empty p-empty") as box:
        tag("p", text)
        if more:
            tag("p", more, "d-muted")
    return box


def broken(component: str, problem: str, works: str = "") -> Tag:
    """A component doesn't answer: since when, why, and what works all the same."""
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
    """A row of a table."""
    return tag("tr", "", classes, role="row")


def cell(title: str, text: str = "", classes: str = "") -> Tag:
    """A cell, with its column's title for narrow screens."""
    return tag("td", text, classes, role="cell", data_label=title)


def put(element: Tag, text: str, classes: str | None = None) -> None:
    """Change a text, and the classes that it has instead of those before; nothing is sent when it is the same."""
    if element.text != text:
        element.text = text
    if classes is not None and element.classes != classes.split():
        element.classes(replace=classes)


def button(text: str, do: Callable[[], Any], classes: str = "d-button", **attributes: str) -> Tag:
    """A button."""
    made = tag("button", text, classes, type="button", **attributes)
    made.on("click", do)
    return made


class Act:
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
    """A reason with who gives it, for whoever finds it later."""
    name = visitor().name
    who = f"by the key {name}, at the dashboard" if name and name != "token" else "by the operator, at the dashboard"
    return ", ".join(filter(None, (why, who)))


def tell(text: str) -> None:
    """Say what was done, also to screen readers."""
    ui.notify(text, type="positive", timeout=_SAID, close_button=t("parts.close"), position="bottom")


def path(*parts: object) -> str:
    """The address of a page of ours; what is in the parts stays in its place."""
    return "/" + "/".join(quote(str(part), safe="", errors="replace") for part in parts)


def form(action: str, label: str) -> Tag:
    """A form whose fields become the address's query, so that what it shows can be handed on."""
    return tag("form", "", "p-form", method="get", action=action, role="search", aria_label=label)


def field(label: str, name: str, value: str, **attributes: str) -> None:
    """A text field of a form."""
    with tag("label", "", "p-field"):
        tag("span", label)
        tag("input", "", **{"type": "text", "name": name, "value": value, **attributes})


def choice(label: str, name: str, value: str, choices: Sequence[tuple[str, str]]) -> None:
    """A choice of a form: (value, what it is called)."""
    with tag("label", "", "p-field"):
        tag("span", label)
        with tag("select", "", name=name):
            for one, called in choices:
                tag("option", called, value=one, **({"selected": "selected"} if one == value else {}))
