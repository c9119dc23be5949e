"""Learning page: whether it gets better, by the judgements of users' turns."""

from __future__ import annotations

import time

from openclaw_rl.dashboard.context import dash
from openclaw_rl.dashboard.data import learning as data
from openclaw_rl.dashboard.data.learning import Learning, OfVersion, Share
from openclaw_rl.dashboard.data.parts import FAILURES, reason
from openclaw_rl.dashboard.i18n import t
from openclaw_rl.dashboard.layout import heading, tag
from openclaw_rl.dashboard.pages import Page
from openclaw_rl.dashboard.widgets import (
    RebuiltPart,
    assets,
    broken,
    cell,
    chip,
    every,
    link,
    nothing,
    path,
    row,
    section,
    table,
)

#: Versions that are shown, the newest.
_SHOWN = 20


async def build() -> None:
    """Make the page."""
    assets()
    heading(t("learning.title"))
    state = RebuiltPart(loading=True)
    content = RebuiltPart("p-story")

    async def look() -> None:
        try:
            found = await data.learning(dash().mesh)
        except FAILURES as error:
            why = reason(error)
            state.show(why, lambda: broken("prm_judge", why, t("parts.works")))
            content.show(None, lambda: None)
            return
        state.show("", lambda: None)
        content.show(found, lambda: _show(found))

    every(15.0, look, words=False)


def _show(found: Learning) -> None:
    if not found.judged:
        nothing(t("learning.none"), t("learning.none_more"))
        return
    _verdict(found)
    with section(t("learning.by_version")):
        _, body = table(t("learning.by_version"), [
            (t("learning.version"), ""), (t("learning.complaints"), ""), (t("learning.interval"), "num"),
            (t("learning.judged"), "num"), (t("learning.praised"), "num"), (t("learning.learned"), "num"),
            (t("learning.changed"), "")])
        with body:
            for one in found.versions[:_SHOWN]:
                _version(one)
    with section(t("learning.over_time")):
        title = t("learning.hour" if found.hourly else "learning.day")
        _, body = table(t("learning.over_time"), [
            (title, ""), (t("learning.complaints"), ""), (t("learning.interval"), "num"),
            (t("learning.judged"), "num")])
        with body:
            for begin, share in found.periods:
                with row():
                    cell(title, time.strftime("%F %H:00" if found.hourly else "%F", time.localtime(begin)),
                         "p-nowrap")
                    _share(share)
    tag("p", t("learning.how", turns=found.looked_at, judged=found.judged)
        + (f" {t('learning.more')}" if found.more else ""), "d-muted")


def _verdict(found: Learning) -> None:
    """Say in one sentence what the figures allow to be said."""
    active = found.active
    base = next((one for one in found.versions if one.version == 0), None)
    if active is None or active.version == 0 or base is None:
        tag("p", t("learning.no_comparison"))
        return
    verdict = {True: "better", False: "worse", None: "open"}[data.better(base.share, active.share)]
    tag("p", t(f"learning.{verdict}", version=active.version, now=_percent(active.share.rate),
               before=_percent(base.share.rate), judged=active.share.judged), role="status")


def _version(one: OfVersion) -> None:
    with row():
        with cell(t("learning.version"), "", "p-nowrap"):
            link(t("turns.trained_version", number=one.version), path("versions", one.version))
            if one.active:
                chip(t("versions.state.active"), "good")
        _share(one.share)
        cell(t("learning.praised"), _percent(one.share.praised / one.share.judged), "num")
        cell(t("learning.learned"), "" if one.learned is None else str(one.learned), "num")
        with cell(t("learning.changed")):
            if one.parent is not None:
                link(t("learning.compare", number=one.parent), f"{path('versions', one.version)}?other={one.parent}")


def _share(share: Share) -> None:
    """Three cells: the rate, its interval, the number of turns."""
    with cell(t("learning.complaints")):
        tag("span", _percent(share.rate))
        with tag("div", "", "d-meter", aria_hidden="true"):
            tag("div", "", "d-meter-bar").style(f"width: {100 * share.rate:.0f}%")
    least, most = share.interval
    cell(t("learning.interval"), f"{_percent(least)} – {_percent(most)}", "num")
    cell(t("learning.judged"), str(share.judged), "num")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


PAGES = [Page("/learning", "learning", build, "trending_up")]
