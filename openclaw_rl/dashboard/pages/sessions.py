"""Sessions page: recently active sessions, and the turns of each."""

from __future__ import annotations

from nicegui import ui

from openclaw_rl.dashboard.context import dash
from openclaw_rl.dashboard.data import story, texts, turns
from openclaw_rl.dashboard.data.parts import FAILURES, reason
from openclaw_rl.dashboard.i18n import t
from openclaw_rl.dashboard.layout import clock, heading, tag
from openclaw_rl.dashboard.pages import Page
from openclaw_rl.dashboard.pages.turns import TurnLine, turn_table
from openclaw_rl.dashboard.widgets import (
    RebuiltPart,
    assets,
    broken,
    cell,
    chip,
    every,
    facts,
    link,
    nothing,
    path,
    put,
    row,
    section,
    table,
)

#: Sessions that are shown, those in which something happened last.
_SHOWN = 200


async def build_list() -> None:
    """Make the page of all sessions."""
    assets()
    with tag("div", "", "d-bar"):
        heading(t("sessions.title"))
        link(t("turns.title"), "/turns")
    state = RebuiltPart(loading=True)
    with tag("section", "", "d-card") as card:
        _, body = table(t("sessions.title"), [
            (t("sessions.last"), ""), (t("turns.what"), "p-what"), (t("turns.session"), ""),
            (t("sessions.turns"), "num"), (t("sessions.mean"), "num"), (t("turns.version"), "num")])
    card.set_visibility(False)
    lines: dict[str, _SessionLine] = {}
    newest: list[object] = [None]

    async def look() -> None:
        mesh = dash().mesh
        try:
            top = await turns.newest(mesh)
            if top == newest[0] and lines:
                return
            found, _ = await turns.sessions(mesh)
            newest[0] = top
        except FAILURES as error:
            why = reason(error)
            state.show(why, lambda: broken("env_server", why, t("turns.works")))
            card.set_visibility(False)
            newest[0] = None
            return
        count, found = sum(one.turns for one in found), found[:_SHOWN]
        state.show(count, lambda: tag("p", t("sessions.of_newest", count=count), "d-muted") if count
                   else nothing(t("turns.none"), t("turns.none_more")))
        card.set_visibility(bool(found))
        for gone in lines.keys() - {one.id for one in found}:
            lines.pop(gone).row.delete()
        with body:
            for place, one in enumerate(found):
                if one.id not in lines:
                    lines[one.id] = _SessionLine(one)
                lines[one.id].show(one)
                if list(body.default_slot.children)[place] is not lines[one.id].row:
                    lines[one.id].row.move(target_index=place)

    every(4.0, look)


class _SessionLine:
    """A session's row, changed in place."""

    def __init__(self, one: turns.SessionRow) -> None:
        with row() as self.row:
            with cell(t("sessions.last"), "", "p-nowrap"):
                self._last = tag("time", "", "d-muted")
            with cell(t("turns.what"), "", "p-what"):
                self._what = link("", path("sessions", one.id), "p-line p-plain").put(dir="auto")
            with cell(t("turns.session")):
                tag("span", texts.line(one.id, 40), "d-mono d-wrap")
                if one.background:
                    chip(t("turns.episode"))
            self._turns = cell(t("sessions.turns"), "", "num")
            with cell(t("sessions.mean"), "", "num"):
                self._mean = chip("")
            self._versions = cell(t("turns.version"), "", "num")

    def show(self, one: turns.SessionRow) -> None:
        put(self._last, clock(one.last))
        put(self._what, texts.line(one.text) or t("turns.no_text"))
        put(self._turns, str(one.turns))
        mean = one.mean
        put(self._mean, "" if mean is None else f"{mean:+.2f}",
            "d-chip" if not mean else "d-chip good" if mean > 0 else "d-chip bad")
        self._mean.set_visibility(mean is not None)
        put(self._versions, ", ".join(map(str, one.versions[-3:])))


async def build_one(session_id: str) -> None:
    """Make the page of a session."""
    assets()
    ui.page_title(f"{t('turns.session')} {texts.line(session_id, 40)} · OpenClaw-RL")
    with tag("nav", "", "d-muted", aria_label=t("parts.place")):
        link(t("sessions.title"), "/sessions")
    heading(t("turns.session"))
    tag("p", texts.line(session_id), "d-mono d-wrap")
    problem = tag("div", "")
    about = section(t("turn.about"))
    with about:
        named = tag("div", "")
        link(t("sessions.as_list"), f"/turns?{turns.Filters(session=session_id).query()}")
    with tag("section", "", "d-card"):
        status = tag("p", t("parts.loading"), "d-muted", role="status")
        _, body = turn_table(session=False)
    lines: dict[str, TurnLine] = {}
    state: list[object] = [None]

    async def look() -> None:
        try:
            found = await story.session(dash().mesh, session_id)
        except FAILURES as error:
            if state[0] != reason(error):
                state[0] = reason(error)
                problem.clear()
                with problem:
                    if getattr(getattr(error, "code", None), "name", "") == "NOT_FOUND":
                        nothing(texts.inert(reason(error), 1000))
                    else:
                        broken("env_server", reason(error), t("turns.works"))
                put(status, "")
            return
        problem.clear()
        put(status, t("sessions.oldest_first", count=len(found.rows)))
        key = (found.session.SerializeToString(deterministic=True), len(found.feedback))
        if state[0] != key:
            state[0] = key
            named.clear()
            with named:
                chip(t("sessions.ended") if found.session.ended else t("sessions.open"),
                     "" if found.session.ended else "good")
                facts([(t("sessions.started"), clock(found.session.started_at.seconds)),
                       (t("sessions.last"), clock(found.session.last_active_at.seconds)),
                       (t("sessions.turns"), str(found.session.turns)),
                       (t("sessions.branches"), str(found.session.branches)),
                       (t("turn.feedback"), str(len(found.feedback)) if found.feedback else "")])
        for gone in lines.keys() - {turn.id for turn in found.rows}:  # forgotten, or older than those that are shown
            lines.pop(gone).row.delete()
        with body:
            for turn in found.rows:
                if turn.id in lines:
                    lines[turn.id].show(turn)
                else:
                    lines[turn.id] = TurnLine(turn, fresh=bool(lines), session=False)

    every(3.0, look)


PAGES = [Page("/sessions", "turns", build_list, nav=False, words=True),
         Page("/sessions/{session_id:path}", "turns", build_one, nav=False, words=True)]
