"""Logs page: component logs and the journal, followed."""

from __future__ import annotations

from nicegui import ui

from openclaw_rl.dashboard.context import dash
from openclaw_rl.dashboard.data import logs as data
from openclaw_rl.dashboard.data import texts
from openclaw_rl.dashboard.data.logs import Line, Source
from openclaw_rl.dashboard.i18n import t
from openclaw_rl.dashboard.layout import heading, tag
from openclaw_rl.dashboard.pages import Page
from openclaw_rl.dashboard.widgets import assets, button, choice, every, field, form, put, script

#: Lines in the browser at most, and most that one look brings.
MOST = 1000
_EVERY = 0.7


async def build() -> None:
    """Make the page."""
    assets()
    query = ui.context.client.request.query_params
    name = query.get("source", "") if query.get("source", "") in (*data.SOURCES, "all") else "all"
    text, level = query.get("text", "")[:200], query.get("level", "") if query.get("level") in data.LEVELS else ""
    heading(t("logs.title"))
    with form("/logs", t("logs.title")):
        field(t("logs.text"), "text", text, type="search", maxlength="200")
        choice(t("logs.source"), "source", name, [("all", t("logs.all")), *(
            (one, t("logs.journal") if one == data.JOURNAL else one) for one in data.SOURCES)])
        choice(t("logs.level"), "level", level, [("", t("turns.any")), *((one, t(f"logs.level.{one}"))
                                                                      for one in data.LEVELS)])
        tag("button", t("turns.find"), "d-button", type="submit")
    _Pane([one for one in data.SOURCES if one != data.JOURNAL] if name == "all" else [name], text, level)


class _Pane:
    """The lines. They come in the order in which each source wrote them."""

    def __init__(self, names: list[str], text: str, level: str) -> None:
        self._text, self._level = text, level
        logs = data.shared_logs(dash().mesh)
        self._sources = [logs.open(name) for name in names]

        def leave() -> None:
            for name in names:
                logs.close(name)

        ui.context.client.on_delete(leave)
        self._told = dict.fromkeys(names, 0)
        self._paused = False
        self._first = True
        with tag("div", "", "p-buttons"):
            self._pause = button(t("logs.pause"), self._toggle, "d-button", aria_pressed="false")
            button(t("logs.newest"), lambda: script("toEnd", f"c{self._box.id}"))
            self._status = tag("span", "", "d-muted", role="status")
        self._problems = tag("p", "", "d-problem d-wrap", role="status")
        self._problems.set_visibility(False)
        self._box = tag("div", "", "l-box", role="log", tabindex="0", aria_label=t("logs.title"), aria_live="off")
        every(_EVERY, self._look)

    def _toggle(self) -> None:
        self._paused = not self._paused
        put(self._pause, t("logs.go_on") if self._paused else t("logs.pause"))
        self._pause.put(aria_pressed="true" if self._paused else "false")

    async def _look(self) -> None:
        problems = [t("logs.down", name=source.name, problem=texts.line(source.problem, 300))
                    for source in self._sources if source.problem]
        put(self._problems, " ".join(problems))
        self._problems.set_visibility(bool(problems))
        if self._paused:
            waiting = sum(1 for source in self._sources for _ in source.after(self._told[source.name]))
            put(self._status, t("logs.waiting", count=waiting) if waiting else t("logs.paused"))
            return
        fresh: list[tuple[Source, Line]] = []
        for source in self._sources:
            for line in source.after(self._told[source.name]):
                self._told[source.name] = line.number
                if data.matches(line, self._text, self._level):
                    fresh.append((source, line))
        if len(self._sources) > 1:
            fresh.sort(key=lambda one: one[1].at)
        if fresh:
            several = len(self._sources) > 1
            script("lines", f"c{self._box.id}", [[line.level, source.name if several else "", line.text]
                                                 for source, line in fresh[-MOST:]], MOST, self._first)
            self._first = False
        where = ", ".join(dict.fromkeys(source.address for source in self._sources if source.address))
        put(self._status, t("logs.nothing") if self._first else t("logs.from", where=where))


PAGES = [Page("/logs", "logs", build, "article", words=True)]
