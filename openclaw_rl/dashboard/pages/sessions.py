"""Sessions: those in which something happened lately, and each with its turns."""

from __future__ import annotations

from nicegui import ui

from ..context import dash
from ..data import story, texts, turns
from ..data.parts import FAILURES, reason
from ..i18n import t
from ..layout import clock, heading, tag
from ..widgets import assets, broken, cell, chip, every, facts, link, nothing, path, put, row, section, table
from . import Page
from .turns import TurnLine, turn_table


async def build_list() -> None:
    """Make the page of all sessions."""
    assets()
    with tag("div", "", "d-bar"):
        heading(t("sessions.title"))
        link(t("turns.title"), "/turns")
    box = tag("div", t("parts.loading"))
    shown: list[object] = [None]

    async def look() -> None:
        try:
            found, down = await turns.sessions(dash().mesh)
        except FAILURES as error:
            if shown[0] != reason(error):
                shown[0] = reason(error)
                box.clear()
                box.text = ""
                with box:
                    broken("env_server", reason(error), t("turns.works"))
            return
        if shown[0] == (found, down):
            return
        shown[0] = (found, down)
        box.clear()
        box.text = ""
        with box:
            if not found:
                nothing(t("turns.none"), t("turns.none_more"))
                return
            tag("p", t("sessions.of_newest", count=sum(one.turns for one in found)), "d-muted")
            with tag("section", "", "d-card"):
                _, body = table(t("sessions.title"), [
                    (t("sessions.last"), ""), (t("turns.what"), "p-what"), (t("turns.session"), ""),
                    (t("sessions.turns"), "num"), (t("sessions.mean"), "num"), (t("turns.version"), "num")])
                with body:
                    for one in found[:200]:
                        _session_row(one)

    every(4.0, look)


def _session_row(one: turns.SessionRow) -> None:
    with row():
        with cell(t("sessions.last"), "", "p-nowrap"):
            tag("time", clock(one.last), "d-muted")
        with cell(t("turns.what"), "", "p-what"):
            link(texts.line(one.text) or t("turns.no_text"), path("sessions", one.id), "p-line p-plain").put(dir="auto")
        with cell(t("turns.session")):
            tag("span", texts.line(one.id, 40), "d-mono d-wrap")
            if one.background:
                chip(t("turns.episode"))
        cell(t("sessions.turns"), str(one.turns), "num")
        with cell(t("sessions.mean"), "", "num"):
            if one.mean is not None:
                chip(f"{one.mean:+.2f}", "good" if one.mean > 0 else "bad" if one.mean < 0 else "")
        cell(t("turns.version"), ", ".join(map(str, one.versions[-3:])), "num")


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
        with body:
            for turn in found.rows:
                if turn.id in lines:
                    lines[turn.id].show(turn)
                else:
                    lines[turn.id] = TurnLine(turn, fresh=bool(lines), session=False)

    every(3.0, look)


PAGES = [Page("/sessions", "turns", build_list, nav=False, words=True),
         Page("/sessions/{session_id:path}", "turns", build_one, nav=False, words=True)]
