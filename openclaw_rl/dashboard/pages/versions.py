"""Versions page: tree, metrics and live scores of all versions, and the operator's actions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

from openclaw_rl.dashboard.context import dash
from openclaw_rl.dashboard.data import texts
from openclaw_rl.dashboard.data import versions as data
from openclaw_rl.dashboard.data.parts import FAILURES, reason
from openclaw_rl.dashboard.i18n import t
from openclaw_rl.dashboard.layout import heading, tag
from openclaw_rl.dashboard.pages import Page
from openclaw_rl.dashboard.widgets import (
    ActionButton,
    RebuiltPart,
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
    section,
    table,
    when,
)

if TYPE_CHECKING:
    from openclaw_rl.client.facts import Version
    from openclaw_rl.dashboard.data.versions import Branch, VersionList

#: Versions that are shown, the newest.
_SHOWN = 300
STATES = {"active": "good", "pinned": "good", "refused": "bad", "rejected": "bad", "taken back": "warn",
           "rolled back": "warn", "void": "warn"}


async def build() -> None:
    """Make the page."""
    assets()
    heading(t("versions.title"))
    problem = RebuiltPart(loading=True)
    with section(t("versions.training")) as training:
        with tag("div", "", "p-chips"):
            chips, waits = RebuiltPart("p-chips"), tag("span", "", "d-muted")
        buttons = RebuiltPart("p-buttons")
    training.set_visibility(False)
    tree = RebuiltPart("p-story")

    async def look() -> None:
        try:
            found = await data.every(dash().mesh)
        except FAILURES as error:
            why = reason(error)
            problem.show(why, lambda: broken("trainer", why, t("versions.works")))
            training.set_visibility(False)
            tree.show(None, lambda: None)
            return
        problem.show(found.down, lambda: _partly(found))
        training.set_visibility(True)
        put(waits, texts.line(found.trainer, 300))
        chips.show((found.active, found.pinned, found.paused), lambda: _chips(found))
        buttons.show((found.pinned, found.paused, found.down), lambda: _buttons(found, look))
        rows = found.rows[:_SHOWN]
        tree.show(([(asdict(one.version), one.depth, one.parent_live, one.gate) for one in rows], len(found.rows)),
                  lambda: _show(found))

    every(3.0, look, words=False)


def _partly(found: VersionList) -> None:
    for name in found.down:
        tag("p", t("versions.partly", name=name), "d-problem", role="status")


def _show(found: VersionList) -> None:
    if not found.rows:
        nothing(t("versions.none"))
        return
    with tag("section", "", "d-card"):
        columns = ["number", "made", "algorithm", "turns", "figures", "gate", "live", "parent_live", "pause", "servers"]
        _, body = table(t("versions.title"), [
            (t(f"versions.{name}"), "num" if name in ("turns", "pause", "live", "parent_live") else "")
            for name in columns])
        with body:
            for one in found.rows[:_SHOWN]:
                _row(one)
    if len(found.rows) > _SHOWN:
        tag("p", t("versions.more", count=len(found.rows) - _SHOWN), "d-muted")


def _chips(found: VersionList) -> None:
    if found.active is not None:
        chip(t("versions.answers", number=found.active), "good")
    if found.pinned:
        chip(t("versions.pinned_now"), "warn")
    if found.paused:
        chip(t("versions.paused_now"), "warn")


def _buttons(found: VersionList, look: Callable[[], Awaitable[None]]) -> None:
    mesh = dash().mesh
    down = t("versions.trainer_down") if "trainer" in found.down else ""
    no_policy = t("versions.policy_down") if "policy_server" in found.down else ""

    async def pause(why: str) -> str:
        await data.pause(mesh, why)
        return t("versions.did_pause")

    async def resume(_: str) -> str:
        await data.resume(mesh)
        return t("versions.did_resume")

    async def train(_: str) -> str:
        return texts.line((await data.train_now(mesh))[1], 300)

    async def unpin(why: str) -> str:
        return t("versions.did_unpin", number=await data.pin(mesh, None, why, False))

    if found.paused:
        ActionButton(t("versions.resume"), t("versions.resume_says"), resume, blocked=down, done=look)
    else:
        ActionButton(t("versions.pause_training"), t("versions.pause_says"), pause, why=True, blocked=down, done=look)
    ActionButton(t("versions.train"), t("versions.train_says"), train,
        blocked=down or (t("versions.train_paused") if found.paused else ""), done=look)
    if found.pinned:
        ActionButton(t("versions.unpin"), t("versions.unpin_says"), unpin, why=True, blocked=no_policy, done=look)


def _row(one: Branch) -> None:
    version = one.version
    with row():
        with cell(t("versions.number"), "", "p-nowrap"):
            for _ in range(min(one.depth, 8)):
                tag("span", "", "p-tree", aria_hidden="true")
            link(t("turns.trained_version", number=version.version), path("versions", version.version))
            if version.parent is not None:
                tag("span", " ← ", "d-muted", aria_label=t("versions.from"))
                link(str(version.parent), path("versions", version.parent), "d-muted")
            if version.state:
                chip(t(f"versions.state.{version.state}"), STATES.get(version.state, ""))
        with cell(t("versions.made"), "", "p-nowrap"):
            if version.created_at:
                when(datetime.fromisoformat(version.created_at).timestamp())
        cell(t("versions.algorithm"), texts.line(version.algorithm, 40))
        cell(t("versions.turns"), str(len(version.turns)), "num")
        cell(t("versions.figures"), figures(version), "d-muted")
        with cell(t("versions.gate")):
            if one.gate:
                chip(t(f"versions.gate.{one.gate}"), "good" if one.gate == "passed" else "bad")
        cell(t("versions.live"), live(version.live), "num")
        cell(t("versions.parent_live"), live(one.parent_live), "num")
        cell(t("versions.pause"), f"{version.metrics['pause_ms']:.0f} ms" if "pause_ms" in version.metrics else "",
             "num")
        with cell(t("versions.servers")):
            if version.deliveries:
                active = sum(bool(delivery["active"]) for delivery in version.deliveries)
                each = "; ".join(f"{one['address']} {one['detail']}" for one in version.deliveries)
                chip(t("versions.servers_of", active=active, all=len(version.deliveries)),
                     "good" if active else "").put(title=texts.line(each, 400))


def figures(version: Version) -> str:
    """The figures of its step that a list has room for."""
    names = [name for name in data.FIGURES if name in version.metrics]
    return ", ".join(f"{name} {version.metrics[name]:.3g}" for name in names[:3])


def live(score: dict[str, float] | None) -> str:
    """How the turns that it answered were judged."""
    if score is None:
        return ""
    return t("versions.live_score", mean=f"{score['mean']:+.2f}", turns=f"{score['turns']:.0f}")


PAGES = [Page("/versions", "versions", build, "account_tree")]
