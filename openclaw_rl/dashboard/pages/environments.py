"""Environments page: use of each type, and live views of leased sandboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nicegui import ui

from openclaw_rl.dashboard.access import visitor
from openclaw_rl.dashboard.context import dash
from openclaw_rl.dashboard.data import environments as data
from openclaw_rl.dashboard.data import texts
from openclaw_rl.dashboard.data.live import View, live_views
from openclaw_rl.dashboard.data.parts import FAILURES, reason
from openclaw_rl.dashboard.i18n import t
from openclaw_rl.dashboard.layout import heading, tag
from openclaw_rl.dashboard.pages import Page
from openclaw_rl.dashboard.widgets import (
    assets,
    broken,
    cell,
    chip,
    every,
    link,
    nothing,
    path,
    put,
    row,
    script,
    table,
)

if TYPE_CHECKING:
    from openclaw_rl.v1.environment_pb2 import EnvironmentInfo, Lease

#: Leases that are shown, the newest.
_SHOWN = 200
_TERMINAL = 12


async def build() -> None:
    """Make the page."""
    assets()
    with tag("div", "", "d-bar"):
        heading(t("environments.title"))
        link(t("episodes.title"), "/episodes")
    problem = tag("div", "")
    status = tag("p", t("parts.loading"), "d-muted", role="status")
    kinds = tag("div", "")
    tag("h2", t("environments.leases"), "d-h2")
    empty = tag("div", "")
    grid = _Grid()
    shown: list[object] = [None]

    async def look() -> None:
        try:
            found, leases = await data.overview(dash().mesh)
        except FAILURES as error:
            put(status, "")
            if shown[0] != reason(error):
                shown[0] = reason(error)
                problem.clear()
                with problem:
                    broken("env_server", reason(error), t("environments.works"))
            return
        problem.clear()
        put(status, "" if found else t("environments.none"))
        key = [kind.SerializeToString(deterministic=True) for kind in found]
        if shown[0] != key:
            shown[0] = key
            kinds.clear()
            with kinds:
                if found:
                    _kinds(found)
        empty.clear()
        if not leases:
            with empty:
                nothing(t("environments.no_leases"), t("environments.no_leases_more"))
        grid.show(leases)

    every(2.0, look)


def _kinds(found: list[EnvironmentInfo]) -> None:
    with tag("section", "", "d-card"):
        names = ("type", "backend", "in_use", "warm", "starting", "waiting", "tasks")
        _, body = table(t("environments.title"), [
            (t(f"environments.{name}"), "num" if name in ("warm", "starting", "waiting", "tasks") else "")
            for name in names])
        with body:
            for kind in found:
                _kind(kind)


def _kind(kind: EnvironmentInfo) -> None:
    with row():
        with cell(t("environments.type"), ""), tag("div", ""):
            tag("b", texts.line(kind.type, 60))
            if kind.kind != kind.type:
                tag("span", f" {texts.line(kind.kind, 40)}", "d-muted")
            if kind.problem:
                chip(t("environments.problem"), "bad")
                tag("pre", texts.inert(kind.problem, 2000), "d-pre d-problem")
        cell(t("environments.backend"), " · ".join(filter(None, (texts.line(kind.backend, 40),
                                                                  texts.line(kind.image, 80)))), "d-wrap")
        with cell(t("environments.in_use"), ""), tag("div", ""):
            tag("span", t("environments.of", leased=kind.leased, capacity=kind.capacity))
            full = kind.leased >= kind.capacity > 0
            with tag("span", "", "p-bar full" if full else "p-bar", aria_hidden="true"):
                share = min(1.0, kind.leased / kind.capacity) if kind.capacity else 0.0
                tag("span", "").style(f"width: {share * 100:.1f}%")
        cell(t("environments.warm"), str(kind.warm), "num")
        cell(t("environments.starting"), str(kind.starting), "num")
        with cell(t("environments.waiting"), "", "num"):
            if kind.waiting:
                chip(str(kind.waiting), "warn")
            else:
                tag("span", "0")
        cell(t("environments.tasks"), str(kind.tasks), "num")


class _Card:
    """A leased sandbox, small."""

    def __init__(self, lease: Lease) -> None:
        self.id = lease.lease_id
        with tag("a", "", "g-card", href=path("leases", lease.lease_id), data_card=lease.lease_id) as self.box:
            with tag("span", "", "p-chips"):
                tag("b", texts.line(lease.type, 30))
                self._state = tag("span", "", "d-chip")
            self._text = tag("pre", t("environments.waiting_for_view"), "g-view", aria_hidden="true")
            self._image = tag("img", "", "g-image", alt="")
            self._image.set_visibility(False)
            self._facts = tag("span", "", "d-muted p-note d-wrap")
        self._changes = -1

    def know(self, lease: Lease) -> None:
        """What the list of leases tells."""
        put(self._state, t("environments.problem") if lease.problem else t("environments.steps", count=lease.steps),
            "d-chip bad" if lease.problem else "d-chip")
        put(self._facts, " · ".join(filter(None, (texts.line(lease.task_id, 60), texts.line(lease.holder, 40)))))

    def look(self, view: View) -> None:
        """What is seen in it by now."""
        if view.changes == self._changes:
            return
        self._changes = view.changes
        self._image.set_visibility(bool(view.small))
        self._text.set_visibility(not view.small)
        if view.small:
            self._image.put(src=view.small)
        else:
            last = "\n".join(view.text.splitlines()[-_TERMINAL:])
            put(self._text, view.problem or last or t("environments.waiting_for_view"))


class _Grid:
    """All leases; only those on the reader's screen are looked into."""

    def __init__(self) -> None:
        self._box = tag("div", "", "g-grid", role="list", aria_label=t("environments.leases"))
        self._cards: dict[str, _Card] = {}
        self._watched: dict[str, View] = {}
        self._client = ui.context.client
        self._live = live_views(dash().mesh)
        ui.on("cards_seen", self._seen)
        self._client.on_delete(lambda: self._watch([]))
        ui.timer(1.0, self._draw)
        script("watchCards", f"c{self._box.id}")

    def show(self, leases: list[Lease]) -> None:
        """The leases that there are now."""
        wanted = {lease.lease_id: lease for lease in leases[-_SHOWN:]}
        for gone in [lease_id for lease_id in self._cards if lease_id not in wanted]:
            self._cards.pop(gone).box.delete()
        with self._box:
            for lease_id, lease in wanted.items():
                if lease_id not in self._cards:
                    self._cards[lease_id] = _Card(lease)
                self._cards[lease_id].know(lease)
        self._watch([lease_id for lease_id in self._watched if lease_id in self._cards])

    def _seen(self, event: Any) -> None:
        """The browser tells which cards are on its screen; names that are none of ours are left out."""
        told = event.args if isinstance(event.args, list) else []
        self._watch([lease_id for lease_id in dict.fromkeys(map(str, told[:_SHOWN])) if lease_id in self._cards]
                    if visitor().words else [])

    def _watch(self, wanted: list[str]) -> None:
        for lease_id in [old for old in self._watched if old not in wanted]:
            self._live.close(lease_id)
            del self._watched[lease_id]
        for lease_id in wanted:
            if lease_id not in self._watched:
                self._watched[lease_id] = self._live.open(lease_id)

    def _draw(self) -> None:
        if not visitor().words:
            self._watch([])
            return
        for lease_id, view in self._watched.items():
            if lease_id in self._cards:
                self._cards[lease_id].look(view)


PAGES = [Page("/environments", "environments", build, "grid_view", words=True)]
