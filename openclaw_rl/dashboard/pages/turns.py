"""Turns page: live list of turns, newest first, with search and filters."""

from __future__ import annotations

from nicegui import ui

from openclaw_rl.dashboard.context import dash
from openclaw_rl.dashboard.data import texts
from openclaw_rl.dashboard.data import turns as data
from openclaw_rl.dashboard.data.parts import FAILURES, reason
from openclaw_rl.dashboard.data.turns import Filters, TurnRow, TurnsPage
from openclaw_rl.dashboard.i18n import t
from openclaw_rl.dashboard.layout import Tag, clock, heading, tag
from openclaw_rl.dashboard.pages import Page
from openclaw_rl.dashboard.widgets import (
    assets,
    broken,
    cell,
    choice,
    every,
    field,
    form,
    link,
    nothing,
    path,
    put,
    row,
    table,
)
from openclaw_rl.v1 import turn_pb2

#: Rows of a live list before the oldest go.
_MOST = 2 * data.SIZE
_SCORES = {1: ("+1", "good"), 0: ("0", ""), -1: ("−1", "bad")}
_FATES = {"trained": "good", "dropped": "warn", "pending": "", "not_trainable": ""}
_CLASSES = {turn_pb2.TURN_CLASS_MAIN: "main", turn_pb2.TURN_CLASS_SIDE: "side"}


async def build() -> None:
    """Make the page."""
    assets()
    query = ui.context.client.request.query_params
    filters, token = Filters.of(query), query.get("from", "")
    with tag("div", "", "d-bar"):
        heading(t("turns.title"))
        link(t("turns.sessions"), "/sessions")
    _search(filters)
    _chosen(filters)
    _List(filters, token)


def _search(filters: Filters) -> None:
    def choices(kind: str, values: tuple[str, ...]) -> list[tuple[str, str]]:
        return [("", t("turns.any")), *((value, t(f"turns.{kind}.{value}")) for value in values)]

    with form("/turns", t("turns.search")):
        field(t("turns.text"), "text", filters.text, type="search", maxlength="200")
        choice(t("turns.class"), "class", filters.turn_class, choices("class", tuple(data.CLASSES)))
        choice(t("turns.score"), "score", filters.score, choices("score", (*data.SCORES, "none")))
        choice(t("turns.fate"), "fate", filters.fate, choices("fate", data.FATES))
        field(t("turns.version"), "version", filters.version, inputmode="numeric", size="6")
        field(t("turns.session"), "session", filters.session, size="12")
        field(t("turns.episode"), "episode", filters.episode, size="12")
        tag("button", t("turns.find"), "d-button", type="submit")


def _chosen(filters: Filters) -> None:
    """The filters in force, each with a way out of it."""
    if not filters.query():
        return
    with tag("div", "", "p-chips"):
        for name, key in (("text", "text"), ("turn_class", "class"), ("score", "score"), ("fate", "fate"),
                          ("version", "version"), ("session", "session"), ("episode", "episode")):
            if value := getattr(filters, name):
                shown = t(f"turns.{key}.{value}") if key in ("class", "score", "fate") else texts.line(value, 60)
                link(f"{t(f'turns.{key}')}: {shown} ✕", f"/turns?{data.without(filters, name).query()}", "d-chip",
                     ).put(aria_label=t("turns.without", name=t(f"turns.{key}"), value=shown))
        link(t("turns.all"), "/turns")


class TurnLine:
    """A turn's row, changed in place as more becomes known of it."""

    def __init__(self, turn: TurnRow, fresh: bool = False, session: bool = True) -> None:
        summary, self.at = turn.summary, turn.at
        with row("p-new" if fresh else "") as self.row:
            with cell(t("turns.time"), "", "p-nowrap"):
                tag("time", clock(turn.at), "d-muted")
            with cell(t("turns.what"), "", "p-what"):
                asked = texts.line(summary.request_text) or t("turns.no_text")
                link(asked, path("turns", turn.id), "p-line p-plain").put(dir="auto")
                tag("span", texts.line(summary.response_text) or t("turns.no_text"), "p-line", dir="auto")
            if session:
                with cell(t("turns.session")):
                    link(texts.line(summary.session_id, 24), path("sessions", summary.session_id), "d-mono")
            with cell(t("turns.class")):
                tag("span", t(f"turns.class.{_CLASSES.get(summary.turn_class, 'unknown')}"),
                    title=texts.line(summary.class_reason))
                if summary.HasField("episode"):
                    link(t("turns.step", number=summary.episode.step),
                         f"/turns?{Filters(episode=summary.episode.episode_id).query()}", "p-note")
            with cell(t("turns.score")):
                self._score = tag("span", "", "d-chip")
            with cell(t("turns.fate")):
                self._fate = tag("span", "", "d-chip")
                self._trained = tag("a", "", "p-note")
            with cell(t("turns.version"), "", "num"):
                link(str(summary.policy_version), path("versions", summary.policy_version))
        self.show(turn)

    def show(self, turn: TurnRow) -> None:
        """Tell what is known by now."""
        fate = turn.fate
        shown, tone = ("–", "") if fate.score is None else _SCORES.get(fate.score, (str(fate.score), ""))
        put(self._score, shown, f"d-chip {tone}".rstrip())
        put(self._fate, t(f"turns.fate.{fate.fate}"), f"d-chip {_FATES[fate.fate]}".rstrip())
        self._fate.put(title=texts.line(fate.reason))
        if fate.trained_version is not None:
            put(self._trained, t("turns.trained_version", number=fate.trained_version))
            self._trained.put(href=path("versions", fate.trained_version))
        self._trained.set_visibility(fate.trained_version is not None)


def turn_table(session: bool = True) -> tuple[Tag, Tag]:
    """An empty table of turns."""
    columns = [(t("turns.time"), ""), (t("turns.what"), "p-what"), *([(t("turns.session"), "")] if session else []),
               (t("turns.class"), ""), (t("turns.score"), ""), (t("turns.fate"), ""), (t("turns.version"), "num")]
    return table(t("turns.title"), columns)


class _List:
    """The list. New turns come in on top of the first page; what the reader looks at stays where it is, since rows are
    put before it and changed in place."""

    def __init__(self, filters: Filters, token: str) -> None:
        self._filters, self._token = filters, token
        self._lines: dict[str, TurnLine] = {}
        self._full = False
        self._status = tag("p", t("parts.loading"), "d-muted", role="status", aria_live="polite")
        self._problem = tag("div", "")
        self._partly = tag("p", "", "d-problem", role="status")
        self._partly.set_visibility(False)
        with tag("section", "", "d-card"):
            self._table, self._body = turn_table()
            self._empty = tag("div", "")
        self._table.set_visibility(False)
        self._pager = tag("nav", "", "p-buttons", aria_label=t("turns.pages"))
        with self._pager:
            self._first = link(t("turns.newest"), f"/turns?{filters.query()}", "d-button p-plain")
            self._older = link(t("turns.older"), "", "d-button p-plain")
        self._first.set_visibility(bool(token))
        self._older.set_visibility(False)
        every(2.0, self.refresh)

    async def refresh(self) -> None:
        """Look again."""
        try:
            page = await data.page(dash().mesh, self._filters, self._token, **({"calls": 1} if self._full else {}))
            there = {turn.id for turn in page.rows}
            known = page.rows + await data.again(dash().mesh, [old for old in self._lines if old not in there])
        except FAILURES as error:
            self._broken(reason(error))
            return
        self._problem.clear()
        for turn in known:
            if turn.id in self._lines:
                self._lines[turn.id].show(turn)
        if not self._full:
            self._fill(page)
        elif not self._token:  # a page behind the first one stays as it was
            self._renew(page)
        put(self._partly, t("turns.partly", down=", ".join(t(f"parts.{name}") for name in page.down)))
        self._partly.set_visibility(bool(page.down))
        self._show_empty(page.next)

    def _fill(self, page: TurnsPage) -> None:
        with self._body:
            for turn in page.rows:
                self._lines[turn.id] = TurnLine(turn)
        self._full = True
        self._go_on(page.next)
        put(self._status, t("turns.found", count=len(page.rows), looked=page.looked_at)
            if self._filters.query() and page.looked_at > len(page.rows) else "")

    def _renew(self, page: TurnsPage) -> None:
        """Turns that are new go on top, and the oldest go, so that a page left open stays light."""
        oldest = min((line.at for line in self._lines.values()), default=0.0) if len(self._lines) >= data.SIZE else 0.0
        fresh = [turn for turn in page.rows if turn.id not in self._lines and turn.at >= oldest]
        if not fresh:
            return
        with self._body:
            for turn in reversed(fresh):  # each in its place: one that took long comes after those that were faster
                place = sum(line.at > turn.at for line in self._lines.values())
                self._lines[turn.id] = made = TurnLine(turn, fresh=True)
                made.row.move(target_index=place)
        put(self._status, t("turns.fresh", count=len(fresh)))
        gap = len(fresh) == len(page.rows) >= data.SIZE  # there may be others between these and those before
        order = sorted(self._lines, key=lambda turn_id: self._lines[turn_id].at)
        for old in order[: len(order) - (len(fresh) if gap else _MOST)]:
            self._lines.pop(old).row.delete()
            self._go_on(page.next)

    def _go_on(self, token: str) -> None:
        self._older.put(href=f"/turns?{self._filters.query(**{'from': token})}")
        self._older.set_visibility(bool(token))

    def _show_empty(self, more: str) -> None:
        self._table.set_visibility(bool(self._lines))
        self._empty.clear()
        if not self._lines:
            with self._empty:
                if more:
                    nothing(t("turns.none_yet_here"))
                elif self._filters.query():
                    nothing(t("turns.none_fit"), t("turns.none_fit_more"))
                else:
                    nothing(t("turns.none"), t("turns.none_more"))

    def _broken(self, problem: str) -> None:
        put(self._status, "")
        self._problem.clear()
        with self._problem:
            broken("env_server", problem, t("turns.works"))


PAGES = [Page("/turns", "turns", build, "forum", words=True)]
