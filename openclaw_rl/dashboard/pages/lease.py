"""Lease page: live view of a sandbox's terminal or screen, and its actions."""

from __future__ import annotations

from nicegui import ui

from openclaw_rl.dashboard.context import dash
from openclaw_rl.dashboard.data import environments as data
from openclaw_rl.dashboard.data import texts
from openclaw_rl.dashboard.data.live import live_views
from openclaw_rl.dashboard.data.parts import FAILURES, reason
from openclaw_rl.dashboard.i18n import t
from openclaw_rl.dashboard.layout import clock, heading, tag
from openclaw_rl.dashboard.pages import Page
from openclaw_rl.dashboard.widgets import assets, broken, chip, every, facts, link, nothing, put, section


async def build(lease_id: str) -> None:
    """Make the page."""
    assets()
    ui.page_title(f"{t('lease.title')} {texts.line(lease_id, 40)} · OpenClaw-RL")
    with tag("nav", "", "d-muted", aria_label=t("parts.place")):
        link(t("environments.title"), "/environments")
    heading(t("lease.title"))
    tag("p", texts.line(lease_id), "d-mono d-wrap")
    status = tag("p", t("parts.loading"), "d-muted", role="status")
    problem = tag("div", "")
    about = tag("div", "")
    with tag("div", "", "p-two"):
        with section(t("lease.view")):
            image = tag("img", "", "g-screen", alt=t("lease.screenshot"))
            image.set_visibility(False)
            pane = tag("pre", "", "g-terminal", tabindex="0", role="region", aria_label=t("lease.terminal"), dir="ltr")
            pane.set_visibility(False)
            seen_at = tag("p", "", "d-muted p-note")
        with section(t("lease.actions")):
            actions = tag("div", "", "p-text d-pre", tabindex="0", role="log", aria_label=t("lease.actions"))
    live = live_views(dash().mesh)
    view = live.open(lease_id)
    ui.context.client.on_delete(lambda: live.close(lease_id))
    shown: list[object] = [-1, None, None]

    async def look() -> None:
        if view.changes != shown[0]:
            shown[0] = view.changes
            image.set_visibility(bool(view.image))
            if view.image:
                image.put(src=view.image)
            pane.set_visibility(bool(view.text) or not view.image)
            put(pane, view.text)
            put(seen_at, t("lease.seen", at=clock(view.at)) if view.at else "")
            put(status, t("lease.ended") if view.ended else "" if not view.problem else t("lease.broken"))
            _tell_actions()
        lease, why = view.lease, view.problem
        if lease is None and not view.ended and view.changes:
            try:
                lease = await data.lease(dash().mesh, lease_id)
            except FAILURES as error:
                why = reason(error)
        if shown[1] != why:
            shown[1] = why
            problem.clear()
            if why:
                with problem:
                    if view.ended:
                        nothing(texts.inert(why, 1000))
                    else:
                        broken("env_server", why, t("environments.works"))
        key = None if lease is None else lease.SerializeToString(deterministic=True)
        if lease is not None and shown[2] != key:
            shown[2] = key
            about.clear()
            with about, section(t("turn.about")):
                if lease.problem:
                    chip(t("environments.problem"), "bad")
                    tag("p", texts.inert(lease.problem, 1000), "d-problem d-wrap")
                facts([(t("environments.type"), texts.line(lease.type)), (t("lease.holder"), texts.line(lease.holder)),
                       (t("episodes.task"), texts.line(lease.task_id)), (t("lease.steps"), str(lease.steps)),
                       (t("lease.since"), clock(lease.acquired_at.seconds)),
                       (t("lease.expires"), clock(lease.expires_at.seconds))])

    def _tell_actions() -> None:
        if shown[2] is not None and len(shown) > 3 and shown[3] == list(view.actions):
            return
        shown[3:] = [list(view.actions)]
        actions.clear()
        with actions:
            for at, action in reversed(view.actions):
                with tag("p", ""):
                    tag("span", f"{clock(at)} ", "d-muted")
                    tag("span", action)
            if not view.actions:
                tag("p", t("lease.no_actions"), "d-muted")

    every(1.0, look)


PAGES = [Page("/leases/{lease_id:path}", "environments", build, nav=False, words=True)]
